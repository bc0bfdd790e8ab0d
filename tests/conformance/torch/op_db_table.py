"""What is special about entries of PyTorch's table: those whose numbers cannot be compared, and those that are known
not to pass, with the reason. A wrong result, a crash or a hang is never expected.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

#: entries whose numbers are arbitrary: uninitialized memory, or random
ARBITRARY = (
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "uniform", "bernoulli",
    "randn", "rand", "normal*", "multinomial*", "cauchy", "exponential", "geometric", "log_normal", "rand_like",
    "randn_like", "randint*", "nn.functional.*dropout*",
)  # fmt: skip

_BRANCH = "`torch.export` does not trace it: Python decides by the result, or by a number that the program computes"
_SPARSE = "sparse tensors"
_DEVICE = "there are samples for other devices only"

#: entries that do not pass -> why
KNOWN = {
    **dict.fromkeys(("allclose", "equal", "corrcoef", "cov", "nn.functional.gaussian_nll_loss",
                     "nn.functional.one_hot"), _BRANCH),
    **dict.fromkeys(("linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss"),
                    "`torch.export` does not trace it: PyTorch knows no shape of its result without the data"),
    **dict.fromkeys(("combinations", "narrow"), "`torch.export` loses a size that depends on data"),
    "masked_select": "of a mask larger than the tensor, for which PyTorch's own program asserts a size that is wrong",
    "tensor_split": "slices at places that the program computes",
    "as_strided.partial_views": "`as_strided` of a tensor whose memory is not in order",
    "nn.functional.instance_norm": "in training, with running statistics, whose new values PyTorch's operator hides",
    **dict.fromkeys(("nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"),
                    "windows at random places"),
    "hash_tensor": "a hash of PyTorch's own, without an import function",
    **dict.fromkeys(("nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none"),
                    "operators of torch.nn's own, which have no decomposition; without chunks it passes"),
    **dict.fromkeys(("to_sparse", "sparse.mm.reduce", "sparse.sampled_addmm"), _SPARSE),
    **dict.fromkeys(("torch._scaled_mm", "torch._scaled_mm_v2", "torch.ops.aten._efficient_attention_forward",
                     "torch.ops.aten._flash_attention_forward", "nn.functional.batch_norm.without_cudnn"), _DEVICE),
    **dict.fromkeys(("jiterator_unary", "jiterator_binary", "jiterator_2inputs_2outputs",
                     "jiterator_4inputs_with_extra_args", "jiterator_binary_return_by_ref"),
                    "PyTorch itself runs it on GPUs only"),
}  # fmt: skip
#: the outcomes of an entry that passes, and of one that may be known not to
GOOD, REFUSED = ("pass", "random", "incomparable"), ("unsupported", "no reference")


def surprise(name: str, outcome: str) -> str:
    """What is unexpected about the outcome of an entry; empty if nothing is."""
    if outcome in GOOD:
        return "passes, although it is known not to: take it out of op_db_table.py" if name in KNOWN else ""
    if outcome in REFUSED:
        return "" if name in KNOWN else "does not pass, and op_db_table.py does not say why"
    return f"is never expected: {outcome}"


def arbitrary(name: str) -> bool:
    """Whether any number is right."""
    return any(fnmatchcase(name, pattern) for pattern in ARBITRARY)
