"""What a graph says is what is computed: constants in a row, factors, integers, signed zeros (docs/semantics.md)."""

import numpy as np
import torch
from onnx import helper, numpy_helper

import tilewright as tw


def node(op, ins, outs, **attributes):
    return helper.make_node(op, ins.split(), outs.split(), **attributes)


def run(nodes, feeds, outputs, weights, **options):
    """The outputs by name of a model of the inputs and constants given, all outputs of one dtype."""
    kind = helper.np_dtype_to_tensor_dtype
    inputs = [helper.make_tensor_value_info(n, kind(v.dtype), v.shape) for n, v in feeds.items()]
    made = [helper.make_tensor_value_info(n, kind(np.dtype(d)), None) for n, d in outputs.items()]
    graph = helper.make_graph(nodes, "g", inputs, made, [numpy_helper.from_array(v, n) for n, v in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return dict(zip(outputs, tw.compile(model, threads=1, **options).run(feeds), strict=True))


MAGIC = np.float32(12582912)  # adding it rounds to integers
F32 = np.float32


def test_constants_in_a_row():
    r = np.random.default_rng(1)
    x = (r.standard_normal((3, 8)) * 100).astype(F32)
    x[0, :4] = [1e20, -1e20, 3e38, -0.0]
    image = (r.standard_normal((1, 3, 5, 5)) * 20).astype(F32)
    weights = {
        "c": MAGIC, "w": r.standard_normal((8, 4)).astype(F32), "b": np.zeros(4, F32), "big": F32(1e30),
        "small": F32(1e-30), "zero": F32(0), "k": r.standard_normal((2, 3, 3, 3)).astype(F32),
        "kb": r.random(2).astype(F32), "one": F32(1), "three": F32(3), "seven": F32(7),
    }  # fmt: skip
    nodes = [
        node("Add", "x c", "a"), node("Sub", "a c", "rounded"),
        node("MatMul", "x w", "m"), node("Add", "m c", "mc"), node("Sub", "mc c", "product"),
        node("Mul", "x big", "up"), node("Mul", "up small", "overflow"),
        node("Mul", "x small", "down"), node("Mul", "down small", "down2"), node("Mul", "down2 big", "underflow"),
        node("Add", "x zero", "plain_zero"),
        node("Conv", "image k kb", "v"), node("Add", "v c", "vc"), node("Sub", "vc c", "conv"),
        node("Conv", "image k", "u"), node("Add", "u c", "uc"), node("Sub", "uc c", "conv_without_bias"),
        node("Div", "x three", "thirds"), node("Mul", "thirds seven", "sevenths"),
        node("Exp", "x", "e"), node("Add", "e one", "e1"), node("Log", "e1", "logarithm"),
    ]  # fmt: skip
    names = ["rounded", "product", "overflow", "underflow", "plain_zero", "conv", "conv_without_bias", "sevenths"]
    feeds = {"x": x, "image": image}
    made = run(
        nodes,
        feeds,
        dict.fromkeys([*names, "logarithm", "m", "v", "u"], F32),
        {n: np.asarray(v) for n, v in weights.items()},
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(made["rounded"], (x + MAGIC) - MAGIC)
        np.testing.assert_array_equal(made["overflow"], x * F32(1e30) * F32(1e-30))
        np.testing.assert_array_equal(made["underflow"], x * F32(1e-30) * F32(1e-30) * F32(1e30))
        np.testing.assert_array_equal(made["sevenths"], x / F32(3) * F32(7))
        np.testing.assert_array_equal(np.isinf(made["logarithm"]), x > 88.73)
        for name, before in (("product", "m"), ("conv", "v"), ("conv_without_bias", "u")):
            whole = (made[before] + MAGIC) - MAGIC  # what was added up differs in its last digits
            assert (np.abs(made[name] - whole) <= (np.abs(whole) < 1e6)).all() or np.array_equal(made[name], whole), (
                name
            )
            assert (made[name][np.abs(whole) < 1e6] % 1 == 0).all(), name
    assert not np.signbit(made["plain_zero"][0, 3])

    fast = run(nodes[:2], {"x": x}, {"rounded": F32}, {"c": MAGIC.reshape(())}, fast_math=True)
    np.testing.assert_array_equal(fast["rounded"], x)


def test_halves():
    """Factors and offsets that halves have no digits, or no room for."""
    half, r = np.float16, np.random.default_rng(4)
    x = (1000 + r.integers(-2, 3, (2, 4, 3)) * 0.5).astype(half)
    y = (r.standard_normal((3, 256)) * 30).astype(half)
    weights = {
        "s": np.array([1, 1, 50, 1]), "b": np.zeros(4), "m": np.array([1000, 1000, 999, 1001]),
        "v": np.array([1e-4, 1, 3e-4, 25]), "q": r.standard_normal((256, 8)) * 0.05, "k": np.array(1e-5),
    }  # fmt: skip
    weights = {n: v.astype(half) for n, v in weights.items()}
    nodes = [node("BatchNormalization", "x s b m v", "norm"), node("MatMul", "y q", "p"), node("Mul", "p k", "scaled")]
    made = run(nodes, {"x": x, "y": y}, {"norm": half, "scaled": half}, weights)
    wide = {n: v.astype(np.float64)[:, None] if v.ndim == 1 else v for n, v in weights.items()}
    with np.errstate(over="ignore"):
        norm = ((x - wide["m"]) / np.sqrt(wide["v"] + 1e-5) * wide["s"]).astype(half)
    np.testing.assert_allclose(made["norm"], norm, rtol=1e-3)
    scaled = (y.astype(F32) @ weights["q"].astype(F32)).astype(half) * weights["k"]
    keep = np.abs(scaled) > 1e-4  # normal numbers
    np.testing.assert_allclose(made["scaled"][keep], scaled[keep], rtol=2e-3)


def test_batch_norm_of_a_large_mean():
    """(x - mean) first where x * k - mean * k would lose the digits; folded into weights as ever."""
    r = np.random.default_rng(5)
    x = (1000 + r.standard_normal((2, 3, 64)) * 0.01).astype(F32)
    weights = {"s": np.ones(3, F32), "b": np.zeros(3, F32), "m": np.full(3, 1000, F32), "v": np.full(3, 1e-4, F32)}
    made = run([node("BatchNormalization", "x s b m v", "y")], {"x": x}, {"y": F32}, weights)["y"]
    np.testing.assert_allclose(made, (x.astype(np.float64) - 1000) / np.sqrt(1e-4 + 1e-5), rtol=1e-5, atol=1e-6)


def test_powers_of_floats():
    x = np.array([4, 0, -0.0, -np.inf, np.inf, np.nan, -4, 1e-40, 3e38, -3e38], F32)
    exponents = [-0.5, 0.5, -1, 2, 3, 1]
    names = [f"y{i}" for i in range(len(exponents))]
    nodes = [node("Pow", f"x e{i}", f"y{i}") for i in range(len(exponents))]
    weights = {f"e{i}": np.array(e, F32) for i, e in enumerate(exponents)}
    made = run(nodes, {"x": x}, dict.fromkeys(names, F32), weights)
    for name, e in zip(names, exponents, strict=True):
        with np.errstate(all="ignore"):
            expected = np.power(x.astype(np.float64), np.full(x.size, float(e))).astype(F32)
        np.testing.assert_allclose(made[name], expected, rtol=1e-6, err_msg=f"x ** {e}")
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(made[name])[numbers], np.signbit(expected)[numbers], f"x ** {e}")


def power(x, y, dtype):
    """x ** y of integers that wrap; negative powers truncated toward zero."""
    if y < 0:
        return np.array({1: 1, -1: 1 if y % 2 == 0 else -1}.get(int(x), 0), dtype)
    return np.array(pow(int(x), int(y), 1 << 64), np.uint64).astype(dtype)


def test_integers():
    top = 2**63 - 1
    x = np.array([3, 2, -1, 7, -1, 1, 0, 5, -3, 3, -(2**63), 0], np.int64)
    y = np.array([65537, 65536, 65537, 131073, -3, -2, -1, -1, top, 2**62 + 5, 3, 0], np.int64)
    small = {"x32": x.astype(np.int32), "y32": np.clip(y, -(2**31), 2**31 - 1).astype(np.int32)}
    unsigned = {"x8": x.astype(np.uint8), "y8": y.astype(np.uint8)}
    nodes = [
        node("Pow", "x y", "wide"), node("Pow", "x cy", "known_exponents"), node("Pow", "cx cy", "folded"),
        node("Pow", "x five", "fifth"), node("Pad", "x pads value", "padded"),
        node("ReduceMean", "big", "mean", keepdims=0),
    ]  # fmt: skip
    weights = {"cx": x, "cy": y, "five": np.array(5), "pads": np.array([0, 2]), "value": np.array(2**53 + 1)}
    weights["big"] = np.array([2**60 + 1, 2**60 + 3, -(2**55) - 7, 5])
    names = ["wide", "known_exponents", "folded", "fifth", "padded", "mean"]
    made = run(nodes, {"x": x, "y": y}, dict.fromkeys(names, np.int64), weights)
    expected = [power(a, b, np.int64) for a, b in zip(x, y, strict=True)]
    for name in ("wide", "known_exponents", "folded"):
        np.testing.assert_array_equal(made[name], expected, name)
    np.testing.assert_array_equal(made["fifth"], x**5)
    np.testing.assert_array_equal(made["padded"], [*x, 2**53 + 1, 2**53 + 1])
    assert made["mean"] == int(weights["big"].astype(object).sum()) // 4
    for feeds, dtype in ((small, np.int32), (unsigned, np.uint8)):
        a, b = feeds.values()
        z = run([node("Pow", " ".join(feeds), "z")], feeds, {"z": dtype}, {})["z"]
        np.testing.assert_array_equal(z, [power(p, q, dtype) for p, q in zip(a, b, strict=True)])


def test_pad_of_pytorch():
    class Model(torch.nn.Module):
        def forward(self, x):
            zero = torch.nn.functional.pad(x.float(), (1, 0), value=-0.0)
            return torch.ops.aten.constant_pad_nd(x, (1, 0), 2**60 + 1), x ** torch.full_like(x, -1), zero

    x = torch.tensor([[1, 2, -1]])
    padded, power, zero = tw.compile(torch.export.export(Model(), (x,)), threads=1)(x.numpy())
    np.testing.assert_array_equal(padded, [[2**60 + 1, 1, 2, -1]])
    np.testing.assert_array_equal(power, [[1, 0, -1]])
    assert np.signbit(np.asarray(zero)[0]).tolist() == [True, False, False, True]


def test_numbers_that_halves_have_no_room_for():
    """PyTorch computes with them in f32: 1e-5 has four digits in f16, 1e-8 is 0 there, and 1e5 infinite."""

    class Model(torch.nn.Module):
        def forward(self, x, y):
            return (
                x * 1e-5,
                y * 1e5,
                x * 1e-8,
                y / 1e5 * 3,
                y * torch.tensor(1e5),
            )

    x = torch.tensor([60000.0, 1000.0, 3.0, -0.1] * 4).half()
    y = (torch.arange(16) * 1e-4).half()
    made = tw.compile(torch.export.export(Model(), (x, y)), threads=1)(x.numpy(), y.numpy())
    for number, (got, want) in enumerate(zip(made, Model()(x, y), strict=True)):
        np.testing.assert_allclose(
            np.asarray(got, F32), want.float().numpy(), rtol=1e-3, atol=6e-8, err_msg=str(number)
        )
