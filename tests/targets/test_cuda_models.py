"""Small models for NVIDIA GPUs: every kernel in the emulator beside the processor's, and through NVIDIA's assembler.
`benchmarks/cuda_kernels.py` does so with large ones."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda_emulator import needs_compiler
from support.cuda_models import CheckedModel


@needs_compiler
@pytest.mark.parametrize("precision, apart", [("f32", 1e-4), ("bf16", 5e-2)])
@pytest.mark.parametrize("name", ["resnet_tiny", "bert_tiny"])
def test_every_kernel_of_a_model_is_right_and_fits(name, precision, apart, case, tmp_path):
    exported = case(name)
    made = CheckedModel(exported.path, "cuda", precision=precision)
    found = made.run([exported.inputs[i.name] for i in made.package.program.inputs])
    assert not {k.name: k.failed for k in made.kernels.values() if k.failed}
    assert set(made.kernels) == set(made.package.program.symbols) - {"copy"}
    for a, want in zip(found, exported.expected.values(), strict=True):
        assert np.abs(a - want).max() <= apart * np.abs(want).max()
    rules = {k.rule for k in made.kernels.values()}
    assert ("tensor_cores" in rules) == (precision == "bf16")
    made.assemble(["sm_80"], tmp_path)
    for k in made.kernels.values():
        assert k.taken["sm_80"].spilled == 0, k.name
