"""Quantized PyTorch: the operators `quantized_decomposed`, graphs of pt2e, torchao's quantized weights."""

import collections
import re
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

from torch import nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402, F401  (registers the operators)

import tilewright as tw  # noqa: E402
from tilewright.compat import torch_backend  # noqa: E402
from tilewright.errors import UnsupportedError  # noqa: E402

q = torch.ops.quantized_decomposed
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
FLOAT_PRODUCTS = {"conv", "matmul"}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Function(nn.Module):
    """A function of tensors as a module, with tensors built in."""

    def __init__(self, function, **known):
        super().__init__()
        self.function = function
        for name, value in known.items():
            self.register_buffer(name, value)

    def forward(self, *xs):
        return self.function(self, *xs)


def both(function, *xs, **known):
    """What PyTorch and the compiled module give."""
    module = Function(function, **known)
    return module(*xs), tw.compile(module, xs, threads=1)(*xs)


def operators(module, *xs, **options):
    """How many of each operator the graph has after `simplify`."""
    text = tw.compile(module, xs, stop_after="simplify", **options).text()
    return collections.Counter(re.findall(r'"tw\.(\w+)"', text))


def levels(made, want):
    """The largest difference of quantized numbers, and the part of them that differ."""
    apart = (made.to(torch.int32) - want.to(torch.int32)).abs()
    return apart.max().item(), (apart > 0).float().mean().item()


# ---- operators, without torchao --------------------------------------------------------------------------------------

RANGES = [(torch.uint8, 0, 255, 130), (torch.int8, -128, 127, 3), (torch.int8, -8, 7, 0), (torch.int16, -500, 400, 7)]


def test_one_scale_for_a_tensor():
    x = torch.randn(64, 50) * 4
    scale = torch.tensor([0.031])

    def f(self, x):
        made = []
        for dtype, low, high, zero in RANGES:
            code = q.quantize_per_tensor(x, 0.031, zero, low, high, dtype)
            made += [code, q.dequantize_per_tensor(code, 0.031, zero, low, high, dtype)]
            code = q.quantize_per_tensor(x, self.scale, torch.tensor(zero), low, high, dtype)
            made += [code, q.dequantize_per_tensor(code, self.scale, torch.tensor(zero), low, high, dtype)]
        return made

    want, made = both(f, x, scale=scale)
    for w, m in zip(want, made, strict=True):
        assert w.dtype == m.dtype
        if w.dtype != torch.float32:
            most, part = levels(m, w)
            assert most <= 1 and part < 1e-3
    for w, m in zip(want[1::2], made[1::2], strict=True):
        torch.testing.assert_close(m, w, rtol=1e-6, atol=0.031001)


def test_dequantized_without_loss():
    """All 256 codes, zero points within and beyond the dtype, bf16 results, i32 biases."""
    codes = torch.arange(-128, 128, dtype=torch.int32).to(torch.int8)

    def f(self, x, b):
        return (
            q.dequantize_per_tensor(x, 0.3, -7, -128, 127, torch.int8),
            q.dequantize_per_tensor(x, 0.3, 300, -128, 127, torch.int8),
            q.dequantize_per_tensor(x, 0.3, 2, -128, 127, torch.int8, out_dtype=torch.bfloat16),
            q.dequantize_per_tensor(b, 0.001, 0, -(2**31), 2**31 - 1, torch.int32),
            q.dequantize_per_tensor.tensor2(
                x, self.scale, torch.tensor(1), torch.tensor(-128), torch.tensor(127), torch.int8
            ),
        )

    b = torch.randint(-100000, 100000, (8,), dtype=torch.int32)
    want, made = both(f, codes, b, scale=torch.tensor(0.25))
    for w, m in zip(want, made, strict=True):
        torch.testing.assert_close(m, w, rtol=1e-2 if w.dtype == torch.bfloat16 else 1e-6, atol=0)


def test_channels_groups_and_tokens():
    x = torch.randn(6, 64) * 3
    scales, zeros = torch.rand(6) * 0.1 + 0.01, torch.randint(-4, 5, (6,))
    groups, group_zeros = torch.rand(6, 2) * 0.3 + 0.1, torch.randint(-2, 3, (6, 2))

    def f(self, x):
        made = q.quantize_per_channel(x, self.scales, self.zeros, 0, -127, 127, torch.int8)
        by_group = q.quantize_per_channel_group(x, self.groups, self.group_zeros, -8, 7, torch.int8, 32)
        scale, zero = q.choose_qparams_per_token_asymmetric(x, torch.int8)
        by_token = q.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        last = (-8, 7, torch.int8, 32, torch.float32)
        plain, none = q.choose_qparams_per_token(x, torch.int8)
        return (
            made, q.dequantize_per_channel(made, self.scales, self.zeros, 0, -127, 127, torch.int8),
            q.dequantize_per_channel(made, self.scales, None, 0, -127, 127, torch.int8),
            q.dequantize_per_channel(made, self.scales, self.scales * 10, 0, -127, 127, torch.int8),
            by_group, q.dequantize_per_channel_group(by_group, self.groups, self.group_zeros, *last),
            q.dequantize_per_channel_group(by_group, self.groups, None, *last),
            scale, zero, by_token, q.dequantize_per_token(by_token, scale, zero, -128, 127, torch.int8, torch.float32),
            q.convert_element_type.no_fuse(x, torch.float16), plain, none,
        )  # fmt: skip

    want, made = both(f, x, scales=scales, zeros=zeros, groups=groups, group_zeros=group_zeros)
    for i, (w, m) in enumerate(zip(want, made, strict=True)):
        # PyTorch says f64 and i64 of the last two when it exports them, and f32 when it computes them
        assert w.dtype == m.dtype or i >= len(want) - 2
        torch.testing.assert_close(m.to(w.dtype), w, **CLOSE)


def test_constants_are_quantized_by_pytorch():
    """Weights that are quantized in the graph become constants of PyTorch's own numbers."""

    def f(self, x):
        w = q.quantize_per_channel(self.w, self.scales, self.zeros, 0, -127, 127, torch.int8)
        return x @ q.dequantize_per_channel(w, self.scales, self.zeros, 0, -127, 127, torch.int8).t()

    known = {"w": torch.randn(8, 32), "scales": torch.full((8,), 0.02), "zeros": torch.zeros(8, dtype=torch.int64)}
    want, made = both(f, torch.randn(3, 32), **known)
    torch.testing.assert_close(made, want, **CLOSE)
    found = operators(Function(f, **known), torch.randn(3, 32))
    assert found["block_matmul"] == 1 and not found["quantize_linear"] and not FLOAT_PRODUCTS & set(found)


@pytest.mark.parametrize("dtype, low, high", [(torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.uint8, 0, 127)])
def test_scales_that_are_chosen(dtype, low, high):
    def f(self, x):
        made = []
        for choose in (q.choose_qparams.tensor, q.choose_qparams_symmetric.tensor):
            scale, zero = choose(x, low, high, 2.0**-12, dtype)
            made += [scale, zero, q.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)]
        return made

    module = Function(f)
    run = tw.compile(module, (torch.randn(5, 9),), threads=1)
    for x in (torch.randn(5, 9), torch.rand(5, 9) + 1, -torch.rand(5, 9), torch.zeros(5, 9)):
        for w, m in zip(module(x), run(x), strict=True):
            assert w.shape == m.shape
            torch.testing.assert_close(m, w, **CLOSE)


class Hand(nn.Module):
    """A convolution, ReLU and linear layer in the form that pt2e gives them."""

    def __init__(self, dynamic=False):
        super().__init__()
        self.dynamic = dynamic
        self.register_buffer("w", torch.randint(-127, 128, (8, 3, 3, 3), dtype=torch.int8))
        self.register_buffer("sw", torch.rand(8) * 0.01 + 0.002)
        self.register_buffer("v", torch.randint(-127, 128, (10, 8 * 4 * 4), dtype=torch.int8))
        self.register_buffer("sv", torch.rand(10) * 0.01 + 0.002)
        self.bias, self.last = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(10))

    def bytes(self, x, scale, zero):
        if self.dynamic:
            scale, zero = q.choose_qparams.tensor(x, 0, 255, 2.0**-12, torch.uint8)
            code = q.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
            return q.dequantize_per_tensor.tensor(code, scale, zero, 0, 255, torch.uint8)
        code = q.quantize_per_tensor(x, scale, zero, 0, 255, torch.uint8)
        return q.dequantize_per_tensor(code, scale, zero, 0, 255, torch.uint8)

    def weights(self, w, scale):
        zero = torch.zeros(len(w), dtype=torch.int64)
        return q.dequantize_per_channel(w, scale, zero, 0, -127, 127, torch.int8)

    def forward(self, x):
        x = nn.functional.conv2d(self.bytes(x, 0.03, 120), self.weights(self.w, self.sw), self.bias)
        x = self.bytes(torch.relu(x).flatten(1), 0.05, 0)
        return nn.functional.linear(x, self.weights(self.v, self.sv), self.last)


def test_products_are_integers():
    module, x = Hand().eval(), torch.randn(2, 3, 6, 6)
    found = operators(module, x)
    assert found["integer_conv"] == found["integer_matmul"] == found["requantize"] == 1
    assert not FLOAT_PRODUCTS & set(found)
    run = tw.compile(module, (x,), threads=1)
    for given in (x, torch.randn(2, 3, 6, 6) * 2):
        want, made = module(given), run(given)
        # a number between two codes may be rounded to the other one: one step times a weight
        atol = 2 * 0.05 * (127 * module.sv.max()).item()
        torch.testing.assert_close(made, want, rtol=1e-4, atol=atol)
        assert ((made - want).abs() < 1e-4 * want.abs().max()).float().mean() > 0.5


def test_products_of_scales_that_are_chosen_are_integers():
    module, x = Hand(dynamic=True).eval(), torch.randn(2, 3, 6, 6)
    found = operators(module, x)
    assert found["integer_conv"] == found["integer_matmul"] == 1 and not FLOAT_PRODUCTS & set(found)
    run = tw.compile(module, (x,), threads=1)
    for given in (x, torch.rand(2, 3, 6, 6) + 1):
        torch.testing.assert_close(run(given), module(given), rtol=1e-4, atol=1e-3)


def test_what_is_not_imported_is_said():
    class Computed(nn.Module):
        def forward(self, x, low):
            return q.quantize_per_tensor.tensor2(x, torch.tensor(0.1), torch.tensor(0), low, low + 9, torch.int8)

    with pytest.raises(UnsupportedError, match=r"quantize_per_tensor.tensor2: 1 node .*range is computed"):
        tw.compile(Computed(), (torch.randn(4), torch.tensor(-4)))

    class Half(nn.Module):
        def forward(self, x):
            return q.choose_qparams.tensor(x, 0, 255, 1e-3, torch.uint8)

    with pytest.raises(UnsupportedError, match=r"choose_qparams\.tensor: 1 node"):
        tw.compile(Half(), (torch.randn(4, dtype=torch.float16),))


# ---- products with packed weights ------------------------------------------------------------------------------------


def test_products_of_aten_with_weights_of_few_bits():
    n, k, group = 48, 128, 32
    w8, s8 = torch.randint(-128, 128, (n, k), dtype=torch.int8), torch.rand(n) * 0.01
    w4 = torch.randint(0, 16, (n, k), dtype=torch.int32)
    both4 = torch.stack([torch.rand(k // group, n) * 0.1 + 0.01, torch.randn(k // group, n) * 0.1], -1)
    known = {"w8": w8, "s8": s8, "w4": torch._convert_weight_to_int4pack_for_cpu(w4, 1), "both4": both4}

    def f(self, x, codes):
        return (
            torch._weight_int8pack_mm(x, self.w8, self.s8),
            torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.w4, group, self.both4),
            torch._int_mm(codes, self.w8.t()),
        )

    x, codes = torch.randn(17, k), torch.randint(-128, 128, (17, k), dtype=torch.int8)
    want, made = both(f, x, codes, **known)
    for w, m in zip(want, made, strict=True):
        torch.testing.assert_close(m, w, rtol=1e-5, atol=1e-5 * w.abs().max().item())
    found = operators(Function(f, **known), x, codes)
    assert found["block_matmul"] == 2 and found["integer_matmul"] == 1 and not FLOAT_PRODUCTS & set(found)


class Weights(nn.Module):
    """``x @ ((codes - zero) * scale).T`` by group, as exporters write it."""

    def __init__(self, bits, k, n, group, zeros, dtype=torch.float32):
        super().__init__()
        low = -(1 << bits - 1)
        self.group = group
        self.register_buffer("codes", torch.randint(low, -low, (n, k), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(n, k // group, 1).to(dtype) * 0.1 + 0.01)
        form = (n, k // group, 1)
        self.register_buffer("zero", {
            "none": torch.zeros(form, dtype=torch.int8),
            "whole": torch.randint(low, -low, form, dtype=torch.int8),
            "floats": torch.rand(form) * 4 - 2,
        }[zeros])  # fmt: skip

    def weights(self, dtype):
        codes = self.codes.reshape(len(self.codes), -1, self.group).to(dtype)
        return ((codes - self.zero.to(dtype)) * self.scale.to(dtype)).reshape(len(self.codes), -1)

    def forward(self, x):
        return x @ self.weights(self.scale.dtype).t()

    def exact(self, x):
        return x.double() @ self.weights(torch.float64).t()


@pytest.mark.parametrize("bits, k, n, group, zeros, dtype", [
    (8, 96, 24, 96, "none", torch.float32), (8, 100, 7, 100, "whole", torch.float32),
    (4, 128, 33, 32, "floats", torch.float32), (3, 64, 16, 16, "whole", torch.float32),
    (2, 192, 5, 48, "none", torch.float32), (4, 64, 8, 32, "whole", torch.bfloat16),
])  # fmt: skip
def test_weights_stay_packed(bits, k, n, group, zeros, dtype):
    module = Weights(bits, k, n, group, zeros, dtype).eval()
    x = torch.randn(2, 3, k).to(dtype)
    found = operators(module, x)
    assert found["block_matmul"] == 1 and not FLOAT_PRODUCTS & set(found)
    run, want = tw.compile(module, (x,), threads=1), module.exact(x)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    assert (run(x).double() - want).abs().max() <= tolerance * want.abs().max()


def test_weights_that_do_not_fit_blocks_are_floats():
    """Groups of 8 are smaller than any block: dequantized at compile time, with the right numbers."""
    module, x = Weights(4, 64, 8, 8, "none").eval(), torch.randn(3, 64)
    found = operators(module, x)
    assert found["matmul"] == 1 and not found["block_matmul"]
    torch.testing.assert_close(tw.compile(module, (x,), threads=1)(x), module(x), **CLOSE)


def test_open_batch():
    module = Weights(4, 64, 24, 32, "whole").eval()
    batch = torch.export.Dim("batch", min=1, max=9)
    run = tw.compile(module, (torch.randn(4, 64),), dynamic_shapes=({0: batch},), threads=1)
    for m in (1, 5, 9):
        x = torch.randn(m, 64)
        torch.testing.assert_close(run(x), module(x), **CLOSE)


# ---- torchao ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torchao():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = pytest.importorskip("torchao", reason="torchao is not installed: pip install tilewright[models]")
        import torchao.quantization  # noqa: F401
    return made


def configs(torchao):
    from torchao.quantization.granularity import PerAxis, PerGroup

    a = torchao.quantization
    group = {"weight_dtype": torch.int4, "granularity": PerGroup(32)}
    return {
        "int8": a.Int8WeightOnlyConfig(),
        "int8 groups": a.Int8WeightOnlyConfig(granularity=PerGroup(32)),
        "int4 groups": a.IntxWeightOnlyConfig(**group),
        "int4 zero points": a.IntxWeightOnlyConfig(**group, mapping_type=a.MappingType.ASYMMETRIC),
        "int3 rows": a.IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=PerAxis(0)),
        "8da8w": a.Int8DynamicActivationInt8WeightConfig(),
        "8da4w": a.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
    }


NAMES = ("int8", "int8 groups", "int4 groups", "int4 zero points", "int3 rows", "8da8w", "8da4w")


def small(dtype=torch.float32):
    return nn.Sequential(nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 40)).eval().to(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_torchao(torchao, name):
    module, x = small(), torch.randn(2, 5, 128)
    torchao.quantization.quantize_(module, configs(torchao)[name])
    found = operators(module, x)
    assert found["integer_matmul" if name == "8da8w" else "block_matmul"] == 2 and not FLOAT_PRODUCTS & set(found)
    want, made = module(x), tw.compile(module, (x,), threads=1)(x)
    torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5 * want.abs().max().item())


def test_torchao_bf16(torchao):
    module, x = small(torch.bfloat16), torch.randn(5, 128).bfloat16()
    torchao.quantization.quantize_(module, configs(torchao)["int4 groups"])
    assert operators(module, x)["block_matmul"] == 2
    want, made = module(x), tw.compile(module, (x,), threads=1)(x)
    torch.testing.assert_close(made, want, rtol=2e-2, atol=2e-2 * want.abs().max().item())


def test_torchao_int4_of_the_cpu(torchao):
    """Weights that are packed for PyTorch's own product of 4 bits."""
    int4 = pytest.importorskip("torchao.prototype.quantization.int4", reason="this torchao packs no int4 for the CPU")
    module, x = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32)).eval(), torch.randn(5, 128)
    torchao.quantization.quantize_(module, int4.PrototypeInt4WeightOnlyConfig(group_size=32))
    assert operators(module, x)["block_matmul"] == 2
    want, made = module(x), tw.compile(module, (x,), threads=1)(x)
    torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5 * want.abs().max().item())


@pytest.mark.parametrize("name", ["int8", "int4 groups", "8da8w"])
def test_torchao_from_torch_compile(torchao, name, monkeypatch):
    graphs = []
    compile_graph = torch_backend.compile_graph

    def spy(graph, *arguments, **named):
        graphs.append(graph.constants)
        return compile_graph(graph, *arguments, **named)

    monkeypatch.setattr(torch_backend, "compile_graph", spy)
    torch._dynamo.reset()
    module, x = small(), torch.randn(5, 128)
    torchao.quantization.quantize_(module, configs(torchao)[name])
    with torch.no_grad():
        run = torch.compile(module, backend=torch_backend.backend, options={"threads": 1, "freeze": True})
        for given in (x, x * 2):
            want = module(given)
            torch.testing.assert_close(run(given), want, rtol=1e-5, atol=1e-5 * want.abs().max().item())
    assert len(graphs) == 1 and len(graphs[0]) >= 4  # the weights and scales of both layers are built in


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2)
        self.linear = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.linear(torch.relu(self.second(x)).flatten(1))


def converted(torchao, module, x, **options):
    """A module quantized by pt2e."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(**options))
        prepared = prepare_pt2e(torch.export.export(module.eval(), (x,)).module(), quantizer)
        for _ in range(4):
            prepared(torch.randn_like(x))
        return convert_pt2e(prepared)


@pytest.mark.parametrize("options", [{}, {"reduce_range": True}, {"is_dynamic": True}])
def test_pt2e(torchao, options):
    x = torch.randn(2, 3, 8, 8)
    module = converted(torchao, Net(), x, **options)
    found, run = operators(module, x), tw.compile(module, (x,), threads=1)
    dynamic = "is_dynamic" in options  # convolutions with padding have no integer form then
    assert found["integer_matmul"] == 1 and not found["matmul"]
    assert dynamic or (found["integer_conv"] == 2 and found["requantize"] == 2 and not found["conv"])
    for x in [torch.randn_like(x) for _ in range(4)]:
        want = module(x)
        apart = (run(x) - want).abs().max() / want.abs().max()
        assert apart < 2e-2  # codes that differ by one are rare, and are some parts in a thousand of a result
