"""Modules of PyTorch as they come: structure of arguments and results, buffers, memory, errors."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

import tilewright as tw  # noqa: E402
from tilewright.errors import InputError, UnsupportedError, UsageError  # noqa: E402
from tilewright.frontends.torch import arrays  # noqa: E402
from tilewright.frontends.torch.program import TorchProgram  # noqa: E402


@dataclass
class Pair:
    first: torch.Tensor
    second: list


class Nested(torch.nn.Module):
    def forward(self, x, options, *, scale=2, extra=None):
        y = x * scale + options["shift"]
        return {"y": y, "pair": Pair(y.sum(), [options["shift"], None, 7, y])}


def test_nested_arguments_and_results():
    torch.export.register_dataclass(Pair)
    x, shift = torch.randn(2, 3), torch.randn(3)
    examples = {"x": x, "options": {"shift": shift}, "scale": 3, "extra": None}
    run = tw.compile(Nested(), examples, threads=1)
    got, want = run(**examples), Nested()(**examples)
    assert isinstance(got["pair"], Pair) and got["pair"].second[1:3] == [None, 7]
    for g, w in ((got["y"], want["y"]), (got["pair"].first, want["pair"].first), (got["pair"].second[0], shift)):
        torch.testing.assert_close(g, w)
    torch.testing.assert_close(run(extra=None, scale=3, options={"shift": shift}, x=x)["y"], want["y"])


def test_arguments_that_do_not_fit():
    x, shift = torch.randn(2, 3), torch.randn(3)
    run = tw.compile(Nested(), {"x": x, "options": {"shift": shift}, "scale": 3}, threads=1)
    with pytest.raises(InputError, match="made for 3"):
        run(x=x, options={"shift": shift}, scale=4)
    torch.testing.assert_close(run(x, {"shift": shift}, scale=3)["y"], x * 3 + shift)  # by position as well
    with pytest.raises(InputError, match="structure"):
        run(x, [shift], scale=3)
    with pytest.raises(InputError, match="not a tensor"):
        run(x=1.5, options={"shift": shift}, scale=3)
    with pytest.raises(InputError, match=r"f32\[2, 4\]"):
        run(x=torch.randn(2, 4), options={"shift": shift}, scale=3)
    with pytest.raises(InputError, match=r"torch.float64, the program takes torch.float32(?s:.*)x.to\(torch.float32\)"):
        run(x=x.double(), options={"shift": shift}, scale=3)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2), persistent=False)
        self.register_buffer("offset", torch.ones(2), persistent=False)
        self.bn = torch.nn.BatchNorm1d(2)

    def forward(self, x):
        self.count += 1
        return self.bn(x) * self.count + self.offset


def test_buffers_that_the_module_updates():
    torch.manual_seed(0)
    ours, theirs = Counter(), Counter()
    x = torch.randn(5, 2)
    run = tw.compile(ours, (x,), threads=1)
    assert ours.count.tolist() == [0, 0]
    for _ in range(3):
        torch.testing.assert_close(run(x), theirs(x), rtol=1e-5, atol=1e-5)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-5, atol=1e-6)


def test_inputs_that_the_module_writes_to():
    class Write(torch.nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    run = tw.compile(Write(), (torch.zeros(3),), threads=1)
    x = torch.zeros(3)
    assert run(x).tolist() == [2, 2, 2] and x.tolist() == [1, 1, 1]


def test_parameters_share_the_memory_of_the_module():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        module = torch.nn.Linear(4, 8).to(dtype)
        program = TorchProgram.of(module, (torch.randn(2, 4, dtype=dtype),), None)
        known = program.known["p_weight"]
        assert known.__array_interface__["data"][0] == module.weight.data_ptr()
        graph = program.graph({})
        assert any(np.shares_memory(a, known) for _, a in graph.constants.items())


def test_tensors_in_and_out_are_not_copied():
    t = torch.randn(3, 4).bfloat16()
    assert arrays.tensor(arrays.view(t)).data_ptr() == t.data_ptr()
    assert torch.equal(arrays.tensor(arrays.view(t)), t)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats(dtype):
    torch.manual_seed(0)
    module, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).to(dtype), torch.randn(3, 8, dtype=dtype)
    close = {"rtol": 2e-3, "atol": 1e-4} if dtype == torch.float16 else {}  # halves are rounded at other places
    torch.testing.assert_close(tw.compile(module, (x,), threads=1)(x), module(x).detach(), **close)


def test_exported_programs_and_results_that_are_inputs():
    class Same(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return x, y, y, x.view(4)

    x = torch.randn(2, 2)
    program = torch.export.export(Same(), (x,), strict=False)
    for g, w in zip(tw.compile(program, threads=1)(x), Same()(x), strict=True):
        torch.testing.assert_close(g, w)
    assert tw.compile(program, stop_after="import").inputs()[0][1].dims == (2, 2)


class Unknown(torch.nn.Module):
    def forward(self, x):
        x = torch.hash_tensor(x) + x
        return torch.hash_tensor(x), torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).dequantize()


def test_all_operators_that_are_missing_are_one_error():
    with pytest.raises(UnsupportedError) as e:
        tw.compile(Unknown(), (torch.eye(3),))
    text = str(e.value)
    assert "3 operators" in text and "aten.hash_tensor" in text and "aten.quantize_per_tensor" in text
    assert "2 nodes" in text and "test_torch_programs.py:" in text and "in forward" in text


def test_what_cannot_be_exported():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(UnsupportedError, match="cannot export"):
        tw.compile(Branch(), (torch.ones(2),))


class Padded(torch.nn.Module):
    """As audio codecs compute their padding: by tensors, on which Python decides."""

    def __init__(self, counts=False):
        super().__init__()
        self.register_buffer("stride", torch.tensor(3))
        self.register_buffer("calls", torch.tensor(4))
        self.counts = counts

    def forward(self, x):
        if self.counts:
            self.calls += 1
        frames = torch.ceil((x.shape[-1] - self.stride + 1) / self.stride + 1).to(torch.int64) - 1
        missing = frames * self.stride - x.shape[-1] + self.calls
        return torch.nn.functional.pad(x, (0, missing)) if missing > 2 else x


def test_buffers_that_are_whole_numbers_decide_branches():
    x = torch.randn(2, 7)
    module = Padded()
    run = tw.compile(module, (x,), threads=1)
    torch.testing.assert_close(run(x), module(x))
    assert type(module) is Padded and run(x).shape == (2, 10)


def test_not_if_the_module_writes_to_one():
    with pytest.raises(UnsupportedError, match="cannot export"):
        tw.compile(Padded(counts=True), (torch.randn(2, 7),), threads=1)


def test_examples_are_needed():
    with pytest.raises(UsageError, match="example inputs"):
        tw.compile(torch.nn.ReLU())
    with pytest.raises(UsageError, match="example_inputs has no meaning"):
        tw.compile("module {}", (1,))
    with pytest.raises(UnsupportedError, match=r"aten.relu: .* of complex tensors"):
        tw.compile(torch.nn.ReLU(), (torch.ones(2, dtype=torch.complex64),))


def test_nothing_else_imports_pytorch():
    code = """
import sys
import tilewright as tw
from tilewright.frontends import protocol
protocol.front_ends()
run = tw.compile('func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\\n return %x : tensor<2xf32>\\n}', threads=1)
import tilewright.cli.app, tilewright.tune
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_decompositions_are_pytorchs_and_see_operators_that_are_registered_later():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return torch.ops.tilewright_tests.twice(torch.nn.functional.instance_norm(x))

    from tilewright.frontends.torch import program

    x = torch.linspace(-1, 1, 24).reshape(1, 2, 12)
    tw.compile(torch.nn.Softsign(), (x,))
    with torch.library._scoped_library("tilewright_tests", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        exported = torch.export.export(Twice(), (x,))
        ours, theirs = program._run_decompositions(exported), exported.run_decompositions(program.decompositions())
        assert str(ours.graph) == str(theirs.graph)
        assert "twice" not in str(ours.graph)
        assert "instance_norm" in str(ours.graph)
        torch.testing.assert_close(tw.compile(Twice(), (x,))(x), Twice()(x))
