"""`dynamic_shapes`: one program for all sizes of a module's open dimensions, against PyTorch at many of them."""

import itertools
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from torch.export import Dim  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.driver import compiler  # noqa: E402
from tilewright.errors import InputError, UnsupportedError, UsageError  # noqa: E402
from tilewright.support import size_encoding  # noqa: E402
from tilewright.support.formulas import evaluate  # noqa: E402

VOCABULARY, LONGEST = 50, 64
#: (batch, seq): the smallest, the largest, odd ones, and those for which modules like to branch
SIZES = [(1, 1), (1, 2), (2, 1), (1, 17), (3, 5), (2, 31), (5, 33), (8, 64), (1, 64), (8, 1), (4, 63)]


def of(forward):
    """A module of a function of one or two tensors."""

    class One(torch.nn.Module):
        def forward(self, x):
            return forward(x)

    class Two(torch.nn.Module):
        def forward(self, x, y):
            return forward(x, y)

    return One() if forward.__code__.co_argcount == 1 else Two()


def axes(*dims):
    return dict(enumerate(dims))


def b(low=1, high=6):
    return Dim("b", min=low, max=high)


def s(low=1, high=40):
    return Dim("s", min=low, max=high)


def tensors(x):
    return [t for t in torch.utils._pytree.tree_leaves(x) if t is not None]


def check(got, want, where):
    for g, w in zip(tensors(got), tensors(want), strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w, where
            continue
        assert (g.shape, g.dtype) == (w.shape, w.dtype), where
        if w.numel():
            scale = w.double().abs().max().item()
            torch.testing.assert_close(g.double(), w.double(), rtol=1e-4, atol=1e-4 * scale, equal_nan=True)


# ---- models --------------------------------------------------------------------------------------------------------


def text_model(name):
    transformers = pytest.importorskip("transformers", reason="pip install tilewright[models]")
    torch.manual_seed(0)
    common = {"vocab_size": VOCABULARY, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    body = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    if name == "bert":
        config = transformers.BertConfig(**common, **body, max_position_embeddings=LONGEST)
        return transformers.BertModel(config).eval()
    if name == "gpt2":
        config = transformers.GPT2Config(**common, n_embd=32, n_layer=1, n_head=2, n_positions=LONGEST)
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.LlamaConfig(**common, **body, num_key_value_heads=1, max_position_embeddings=LONGEST)
    return transformers.LlamaForCausalLM(config).eval()


def text(batch, seq, masked):
    made = {"input_ids": torch.randint(0, VOCABULARY, (batch, seq))}
    if masked:
        mask = torch.ones(batch, seq, dtype=torch.int64)
        mask[:, seq - seq // 3 :] = 0
        made["attention_mask"] = mask
    return made


@pytest.mark.parametrize(
    ("name", "masked"), [("bert", True), ("gpt2", False), ("llama", True)], ids=["bert", "gpt2", "llama"]
)
def test_text_models_with_open_batch_and_length(name, masked, monkeypatch):
    module, examples = text_model(name), text(1, 8, masked)
    dims = axes(Dim("batch", min=1, max=8), Dim("seq", min=1, max=LONGEST))
    run = tw.compile(module, examples, dynamic_shapes=dict.fromkeys(examples, dims), threads=1)
    assert all(t.shape == ("batch", "seq") for t in run.executable.inputs)
    assert "attention" in str(run.executable.explain())  # one kernel, as for known sizes
    monkeypatch.setattr(compiler, "run", lambda *_: pytest.fail("a size was compiled"))
    for batch, seq in SIZES:
        given = text(batch, seq, masked)
        with torch.no_grad():
            check(run(**given), module(**given).to_tuple(), (batch, seq))
    with pytest.raises(InputError, match=r"seq is 65 .* it has to be 1 to 64"):
        run(**text(2, LONGEST + 1, masked))


@pytest.mark.parametrize("steps", [2, 3])
def test_strides_behind_each_other(steps):
    """PyTorch takes (h // 2) // 2 for h // 4."""

    class Net(torch.nn.Module):
        def forward(self, x):
            for _ in range(steps):
                x = torch.nn.functional.max_pool2d(x, 2)
            return x

    run = tw.compile(
        Net(), (torch.randn(1, 2, 32, 16),), dynamic_shapes={"x": {2: Dim("h", min=16, max=64)}}, threads=1
    )
    for h in (16, 37, 63):
        x = torch.randn(1, 2, h, 16)
        torch.testing.assert_close(run(x), Net()(x))


def test_images_with_open_batch():
    torch.manual_seed(0)
    nn = torch.nn
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    module = nn.Sequential(first, last).eval()
    run = tw.compile(module, (torch.randn(1, 3, 8, 8),), dynamic_shapes=(axes(b()),), threads=1)
    for batch in (1, 2, 5, 6):
        x = torch.randn(batch, 3, 8, 8)
        check(run(x), module(x), batch)


# ---- operators and formulas ----------------------------------------------------------------------------------------

HALF = Dim("h", min=1, max=9)
CASES = {
    "mean by hand": (lambda x: x.sum(1) / x.shape[1], [(3, 7)], (axes(b(), s()),)),
    "positions": (
        lambda x: x + torch.arange(x.shape[1]) * 0.5 + torch.arange(1, x.shape[1] + 1, dtype=torch.float32),
        [(3, 7)],
        (axes(b(), s()),),
    ),
    "sizes as results": (lambda x: (x + 1, x.shape[0] * x.shape[1], x.shape[1] // 2), [(3, 7)], (axes(b(), s()),)),
    "two lengths": (
        lambda x, y: torch.cat([x, y], 1).softmax(1),
        [(3, 7), (3, 5)],
        (axes(b(), s()), axes(b(), Dim("t", min=1, max=9))),
    ),
    "triangle": (lambda x: torch.tril(torch.ones(x.shape[0], x.shape[0])) @ x, [(6, 4)], (axes(s()),)),
    "turned": (lambda x: (x.roll(1, 0), x.flip(1), x[:, -1]), [(3, 7)], (axes(b(), s()),)),
    "variance": (lambda x: (x.var(1), x.std(0, correction=0)), [(3, 7)], (axes(b(2), s(2)),)),
    "half of it": (lambda x, y: x[::2] + y, [(6, 4), (3, 4)], (axes(2 * HALF), axes(HALF))),
    "slices": (lambda x: (x[:, 1:], x[:, ::2], x[:, : x.shape[1] // 2], x[:, :9]), [(3, 7)], (axes(b(), s(2)),)),
    "smaller": (lambda x: x[:, : min(x.shape[1], 16)], [(3, 7)], (axes(b(), s()),)),
    "multiples": (lambda x: x.view(x.shape[0], -1, 6).mean(1), [(3, 12)], (axes(b(), "s:6..60:6"),)),
    "ours": (lambda x, y: x + y, [(1, 8)] * 2, (axes(tw.Dim("b", 1, 9), tw.Dim("s", 4, 32, 4)),) * 2),
    "unnamed": (lambda x, y: x * y, [(3, 7)] * 2, (axes(Dim.AUTO(min=1, max=9), Dim.DYNAMIC(max=20)),) * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_formulas_of_sizes(name):
    forward, shapes, dims = CASES[name]
    torch.manual_seed(0)
    module = of(forward)
    run = tw.compile(module, tuple(torch.randn(x) for x in shapes), dynamic_shapes=dims, threads=1)
    known = run.executable.sizes
    ends = [(-(-d.low // d.divisor), d.high // d.divisor, d.divisor) for d in known.dims]
    for pick in itertools.product(*[sorted({a * k, (a + z) // 2 * k, z * k}) for a, z, k in ends]):
        at = dict(zip(known.names, pick, strict=True))
        given = [torch.randn(evaluate(shape, pick)) for shape in known.inputs]
        check(run(*given), module(*given), at)


def test_sizes_that_do_not_fit():
    forward, shapes, dims = CASES["half of it"]
    run = tw.compile(of(forward), tuple(torch.randn(x) for x in shapes), dynamic_shapes=dims, threads=1)
    with pytest.raises(InputError, match=r"dimension \d of input 'x' .* is 5, but 2\*h is 6"):
        run(torch.randn(5, 4), torch.randn(3, 4))


# ---- what is right or refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward", [lambda x: x * 2 if x.shape[0] == 1 else x * 3, lambda x: x.squeeze(0)], ids=["branch", "squeeze"]
)
def test_modules_that_do_something_else_for_a_size_of_one(forward):
    x = torch.randn(3, 4)
    with pytest.raises(UnsupportedError, match="something else where b is 1"):
        tw.compile(of(forward), (x,), dynamic_shapes=(axes(b()),))
    run = tw.compile(of(forward), (x,), dynamic_shapes=(axes(b(2)),), threads=1)
    check(run(x[:2]), of(forward)(x[:2]), 2)
    with pytest.raises(InputError, match=r"b is 1 .* 2 to 6"):
        run(x[:1])


def test_what_is_refused():
    def refused(kind, text, forward, dims, x=None):
        x = torch.randn(3, 7) if x is None else x
        with pytest.raises(kind, match=text) as e:
            tw.compile(of(forward), (x,), dynamic_shapes=(dims,))
        return str(e.value)

    refused(UsageError, "dimension b .* no largest size", lambda x: x + 1, axes(Dim("b")))
    refused(UsageError, "dimension b:1..9 is b:1..8", lambda x: x + 1, axes("b:1..8", "b:1..9"))
    said = refused(UnsupportedError, "ranges do not fit", lambda x: x if x.shape[1] > 4 else x * 2, axes(b(), s()))
    assert "min=5" in said
    said = refused(UnsupportedError, "nonzero", lambda x: x.nonzero(), axes(b(), s()))
    assert "test_torch_dynamic.py:" in said
    table = torch.nn.functional.interpolate
    said = refused(UnsupportedError, "open size", lambda x: table(x, size=(8, 8)), {2: s(2)}, torch.randn(1, 2, 5, 6))
    assert "upsample_nearest2d" in said and "test_torch_dynamic.py:" in said


# ---- exported programs ---------------------------------------------------------------------------------------------


def test_exported_programs():
    module, x = of(lambda x: x.softmax(1) * x.shape[0]), torch.randn(3, 7)
    exported = torch.export.export(module, (x,), dynamic_shapes=(axes(b(), s()),), strict=False)
    run = tw.compile(exported, threads=1)
    for shape in ((1, 1), (2, 40), (6, 3)):
        x = torch.randn(shape)
        check(run(x), module(x), shape)
    narrow = tw.compile(exported, inputs={"x": (tw.Dim("rows", 1, 4), 16)}, threads=1)
    x = torch.randn(4, 16)
    check(narrow(x), module(x), "given")
    assert narrow.executable.inputs[0].shape == ("rows", 16)
    assert tw.compile(exported, inputs={"x": (2, 5)}, stop_after="import").inputs()[0][1].dims == (2, 5)
    with pytest.raises(UsageError, match=r"exported for s:1\.\.40"):
        tw.compile(exported, inputs={"x": (2, 41)})
    with pytest.raises(UsageError, match="what they are"):
        tw.compile(exported, dynamic_shapes=(axes(b()),))


def test_neither_examples_nor_stand_ins_reach_the_code(monkeypatch):
    """Other sizes of the examples, other numbers for symbols: the same nests, the same formulas."""

    def forward(x):
        return (x / x.shape[1] + torch.arange(x.shape[1]))[:, -2:], x.shape[1] // 2 - 1

    def made(shape):
        examples, options = (torch.randn(shape),), {"dynamic_shapes": (axes(b(), "s:4..40:2"),), "threads": 1}
        nests = tw.compile(of(forward), examples, **options, stop_after="schedule").text()
        run = tw.compile(of(forward), examples, **options)
        return re.sub(r"_[0-9a-f]{10}\b", "", nests), run.executable.sizes, run.call.results

    first = made((3, 8))
    monkeypatch.setattr(size_encoding, "_FIRST", 70_001)
    monkeypatch.setattr(size_encoding, "_APART", 7_000)
    assert made((5, 14)) == first
