"""What `test_amx.py` runs in a process of its own, on a processor with AMX or under the emulator of its instructions:

    python amx_cases.py emulator.so cases.json [part of names]      ("native" instead of the emulator)

Each case compiles kernels for a processor with AMX, runs them, and compares with NumPy. The results are written to the
file: for each case nothing, or what went wrong.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from dataclasses import replace

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.lang import te
from tilewright.schedule.rules import schedule
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu import description as host_module
from tilewright.tensor.kernel import Kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
#: of the largest value; f32 sums in another order
TOLERANCE = 2e-6
AMX = ("amx-tile", "amx-bf16", "amx-int8")
real = host_module.host()
described = replace(
    real, features=tuple(dict.fromkeys((*real.features, *AMX))), l1_bytes=48 << 10, l2_bytes=2 << 20, cores=2
)
emulator = None
rng = np.random.default_rng(0)


def count(name: str) -> int:
    """How often an instruction was executed so far; the emulator counts."""
    return emulator.amx_count(name.encode()) if emulator is not None else 0


def run(kernel: Kernel, *arrays: np.ndarray, decisions=None, threads=(1, 2)) -> np.ndarray:
    """The result of a kernel with the rule for tiles, the same for every number of threads."""
    found = schedule(kernel, described, decisions)
    assert found.rule == "tile-contraction", found.refused
    before = count("ldtilecfg")
    built = found.schedule.build(threads=1)
    results = [built.with_threads(n)(*arrays).copy() for n in threads]
    assert emulator is None or (count("ldtilecfg") > before and emulator.amx_configured() == 0)
    for y in results[1:]:
        assert y.tobytes() == results[0].tobytes(), "two threads give other bits than one"
    return results[0]


def halves(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(BF16)


def close(y: np.ndarray, want: np.ndarray, tolerance: float = TOLERANCE) -> None:
    error = np.abs(y.astype(np.float64) - want).max() / np.abs(want).max()
    assert error <= tolerance, f"off by {error:.1e} of the largest value"


# ---- kernels -------------------------------------------------------------------------------------------------------


def matmul(m: int, k: int, n: int, x: str = "extf", w: str = "extf", batch: int = 0) -> Kernel:
    """x [batch, m, k] times w [k, n]."""
    inner, outer, add, multiply, zero = (
        ("bf16", "f32", "addf", "mulf", "f32(0.0)") if x == "extf" else ("i8", "i32", "addi", "muli", "i32(0)")
    )
    b, at = (f"{batch}, ", "h, ") if batch else ("", "")
    lines = [f"def mm(x: {inner}[{b}{m}, {k}], w: {inner}[{k}, {n}], y: out({outer}[{b}{m}, {n}])):"]
    extents = {"h": batch, "i": m, "j": n, "q": k}
    loops = [f"for {v} in serial({e}):" for v, e in extents.items() if e]
    lines += ["    " * (d + 1) + text for d, text in enumerate(loops)]
    product = f"{multiply}({x}[{outer}](x[{at}i, q]), {w}[{outer}](w[q, j]))"
    body = f"s0: y[{at}i, j] = reduce({add}(y[{at}i, j], {product}), init={zero}, over=(q,))"
    return te.from_nest("\n".join([*lines, "    " * (len(loops) + 1) + body]), constants=["w"])


def with_epilogue(m: int, k: int, n: int) -> Kernel:
    """bf16(relu(x w + b) + r)"""
    return te.from_nest(
        f"""
        def mm(x: bf16[{m}, {k}], w: bf16[{k}, {n}], b: f32[{n}], r: bf16[{m}, {n}], y: out(bf16[{m}, {n}])):
            t = local(f32[{m}, {n}])
            for i in serial({m}):
                for j in serial({n}):
                    for q in serial({k}):
                        s0: t[i, j] = reduce(addf(t[i, j], mulf(extf[f32](x[i, q]), extf[f32](w[q, j]))), init=f32(0.0), over=(q,))
            for i1 in serial({m}):
                for j1 in serial({n}):
                    s1: y[i1, j1] = truncf[bf16](addf(maximumf(addf(t[i1, j1], b[j1]), f32(0.0)), extf[f32](r[i1, j1])))""",  # noqa: E501
        constants=["w"],
    )


def conv(size: int, channels: int, out: int, window: int, stride: int = 1, kind: str = "bf16") -> tuple[Kernel, int]:
    """A convolution without padding, channels last, and the height of its result."""
    after = (size - window) // stride + 1
    outer, add, multiply, extend, zero = (
        ("f32", "addf", "mulf", "extf", "f32(0.0)") if kind == "bf16" else ("i32", "addi", "muli", "extsi", "i32(0)")
    )
    at = f"x[h * {stride} + a, v * {stride} + b, c]"
    text = f"""
        def conv(x: {kind}[{size}, {size}, {channels}], w: {kind}[{window}, {window}, {channels}, {out}], y: out({outer}[{after}, {after}, {out}])):
            for h in serial({after}):
                for v in serial({after}):
                    for o in serial({out}):
                        for a in serial({window}):
                            for b in serial({window}):
                                for c in serial({channels}):
                                    s0: y[h, v, o] = reduce({add}(y[h, v, o], {multiply}({extend}[{outer}]({at}), {extend}[{outer}](w[a, b, c, o]))), init={zero}, over=(a, b, c))"""  # noqa: E501
    return te.from_nest(text, constants=["w"]), after


def convolved(x: np.ndarray, w: np.ndarray, after: int, stride: int) -> np.ndarray:
    kind = np.int64 if x.dtype == np.int8 else np.float64
    total = np.zeros((after, after, w.shape[3]), kind)
    for a in range(w.shape[0]):
        for b in range(w.shape[1]):
            span = x[a : a + after * stride : stride, b : b + after * stride : stride][:after, :after]
            total += span.astype(kind) @ w[a, b].astype(kind)
    return total


# ---- cases ---------------------------------------------------------------------------------------------------------


def sizes_case(m: int, k: int, n: int):
    def case() -> None:
        x, w = halves(m, k), halves(k, n)
        close(run(matmul(m, k, n), x, w), x.astype(np.float64) @ w.astype(np.float64))

    return case


def conv_case(*sizes: int):
    def case() -> None:
        kernel, after = conv(*sizes)
        size, channels, out, window, *stride = sizes
        x, w = halves(size, size, channels), halves(window, window, channels, out)
        close(run(kernel, x, w), convolved(x, w, after, *stride or [1]))

    return case


def bytes_case(x_sign: str, w_sign: str):
    kinds = {"s": (np.int8, -128, 128, "extsi"), "u": (np.uint8, 0, 256, "extui")}

    def case() -> None:
        for m, k, n in ((21, 192, 35), (4, 64, 16), (70, 36, 9)):
            (tx, lx, hx, ex), (tw_, lw, hw, ew) = kinds[x_sign], kinds[w_sign]
            x, w = rng.integers(lx, hx, (m, k)).astype(tx), rng.integers(lw, hw, (k, n)).astype(tw_)
            x[0], w[:, 0] = lx, hw - 1  # the largest sums
            before = count(f"tdpb{x_sign}{w_sign}d")
            y = run(matmul(m, k, n, ex, ew), x.view(np.int8), w.view(np.int8))
            np.testing.assert_array_equal(y, x.astype(np.int64) @ w.astype(np.int64))
            assert emulator is None or count(f"tdpb{x_sign}{w_sign}d") > before

    return case


def bytes_conv() -> None:
    for sizes in ((9, 32, 20, 3, 1), (11, 64, 17, 3, 2)):
        kernel, after = conv(*sizes, kind="i8")
        size, channels, out, window, stride = sizes
        x = rng.integers(-128, 128, (size, size, channels)).astype(np.int8)
        w = rng.integers(-128, 128, (window, window, channels, out)).astype(np.int8)
        np.testing.assert_array_equal(run(kernel, x, w), convolved(x, w, after, stride))


def epilogue() -> None:
    for m, k, n in ((50, 64, 40), (33, 32, 17)):
        x, w, b, r = halves(m, k), halves(k, n), rng.standard_normal(n).astype(np.float32), halves(m, n)
        want = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b, 0) + r.astype(np.float64)
        close(run(with_epilogue(m, k, n), x, w, b, r), want, 2**-8)


def batched() -> None:
    x, w = halves(3, 21, 64), halves(64, 24)
    close(run(matmul(21, 64, 24, batch=3), x, w), x.astype(np.float64) @ w.astype(np.float64))


def whole_numbers() -> None:
    """Sums that f32 holds exactly: no difference is allowed."""
    x, w = (rng.integers(-9, 10, s).astype(BF16) for s in ((37, 96), (96, 50)))
    np.testing.assert_array_equal(run(matmul(37, 96, 50), x, w), x.astype(np.float64) @ w.astype(np.float64))


def special_numbers() -> None:
    """Denormals count as zero; NaN and infinity stay in their rows."""
    x, w = halves(16, 32), np.ones((32, 16), BF16)
    x[0], x[1, 3], x[2, 5] = np.float32(1e-39), np.nan, np.inf
    y = run(matmul(16, 32, 16), x, w)
    assert (y[0] == 0).all() and np.isnan(y[1]).all() and np.isposinf(y[2]).all() and np.isfinite(y[3:]).all()


def every_decision() -> None:
    """All register tiles and orders that a tuner may choose."""
    m, k, n = 37, 64, 40
    kernel = matmul(m, k, n)
    x, w = halves(m, k), halves(k, n)
    want = x.astype(np.float64) @ w.astype(np.float64)
    for name, decision in schedule(kernel, described).schedule.decisions.items():
        for choice in decision.candidates:
            close(run(kernel, x, w, decisions={name: choice}, threads=(2,)), want)


def whole_model() -> None:
    """precision="bf16" from the graph on: layers, an epilogue, two threads."""
    weights = [rng.standard_normal(s).astype(np.float32) / 8 for s in ((64, 48), (48, 33))]
    a, b = weights
    text = """func.func @main(%x: tensor<21x64xf32> {tw.name = "x"}) -> (tensor<21x33xf32> {tw.name = "y"}) {
  %a = "tw.constant"() {symbol = "a"} : () -> tensor<64x48xf32>
  %b = "tw.constant"() {symbol = "b"} : () -> tensor<48x33xf32>
  %0 = "tw.matmul"(%x, %a) : (tensor<21x64xf32>, tensor<64x48xf32>) -> tensor<21x48xf32>
  %1 = "tw.relu"(%0) : (tensor<21x48xf32>) -> tensor<21x48xf32>
  %2 = "tw.matmul"(%1, %b) : (tensor<21x48xf32>, tensor<48x33xf32>) -> tensor<21x33xf32>
  return %2 : tensor<21x33xf32>
}
"""
    from tilewright.ir.constants import ConstantTable
    from tilewright.ir.context import parse
    from tilewright.ir.graph import Graph

    def compiled(**options):
        table = ConstantTable()
        table.add(a, "a")
        table.add(b, "b")
        return tw.compile(Graph(parse(text), table), threads=2, **options)

    x = rng.standard_normal((21, 64)).astype(np.float32)
    before = count("tdpbf16ps")
    model = compiled(precision="bf16")
    close(model.run({"x": x})[0], np.maximum(x.astype(np.float64) @ a, 0) @ b, 2e-2)
    assert emulator is None or count("tdpbf16ps") > before
    assert "2 kernels with products of tiles" in model.explain(), model.explain()


def quantized_model() -> None:
    """A QDQ model gives the same bits with tiles and without."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    arrays = {
        "sx": np.float32(0.05),
        "zx": np.uint8(131),
        "sy": np.float32(0.4),
        "zy": np.uint8(120),
        "w": rng.integers(-127, 128, (40, 32, 3, 3)).astype(np.int8),
        "sw": rng.uniform(0.002, 0.01, 40).astype(np.float32),
        "b": rng.integers(-500, 500, 40).astype(np.int32),
    }
    arrays["sb"] = arrays["sx"] * arrays["sw"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "sb"], ["bf"], axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    ends = [[info("x", TensorProto.UINT8, [1, 32, 9, 9])], [info("y", TensorProto.UINT8, [1, 40, 9, 9])]]
    given = [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()]
    graph = helper.make_graph(nodes, "small", *ends, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    x = rng.integers(0, 256, (1, 32, 9, 9)).astype(np.uint8)
    before = count("tdpbusd")
    got = tw.compile(model, threads=2).run({"x": x})[0].copy()
    assert emulator is None or count("tdpbusd") > before
    describe_as(replace(described, features=tuple(f for f in described.features if f not in AMX)))
    want = tw.compile(model, threads=2).run({"x": x})[0]
    describe_as(described)
    np.testing.assert_array_equal(got, want)


def ceilings() -> None:
    """The loops that measure what the instructions can do, cut short."""
    from tilewright.targets.cpu import ceilings as module

    module._STEPS, module.host = 1, lambda: described
    before = [count(name) for name in ("tdpbf16ps", "tdpbusd")]
    found = module.measure(2, ("bf16", "i8"), ("none",))
    assert found.compute["bf16"] > 0 and found.compute["i8"] > 0
    assert emulator is None or (count("tdpbf16ps") > before[0] and count("tdpbusd") > before[1])


def attention_case(queries: int, keys: int, depth: int, mask: str = "", causal: bool = False, shared: int = 2):
    """Scores on tiles, against float64."""

    def case() -> None:
        kinds = {"q": f"1x2x{queries}x{depth}xbf16", **dict.fromkeys("kv", f"1x{shared}x{keys}x{depth}xbf16")}
        kinds |= {"m": f"{mask}xf32"} if mask else {}
        given = ", ".join(f'%{n}: tensor<{t}> {{tw.name = "{n}"}}' for n, t in kinds.items())
        names, types = ", ".join(f"%{n}" for n in kinds), ", ".join(f"tensor<{t}>" for t in kinds.values())
        text = f"""func.func @main({given}) -> (tensor<{kinds["q"]}> {{tw.name = "y"}}) {{
          %y = "tw.attention"({names}) {{scale = 0.2, causal = {str(causal).lower()}, offset = {keys - queries},
            operandSegmentSizes = array<i32: 1, 1, 1, {int(bool(mask))}>}} : ({types}) -> tensor<{kinds["q"]}>
          return %y : tensor<{kinds["q"]}>
        }}"""
        q, k, v = halves(2, queries, depth), halves(shared, keys, depth), halves(shared, keys, depth)
        m = rng.standard_normal((queries, keys)).astype(np.float32) if mask else np.zeros((queries, keys), np.float32)
        before = count("tdpbf16ps")
        arrays = {"q": q[None], "k": k[None], "v": v[None]} | ({"m": m} if mask else {})
        results = [tw.compile(text, threads=n).run(arrays)[0].copy() for n in (1, 2)]
        assert emulator is None or count("tdpbf16ps") > before
        assert results[0].tobytes() == results[1].tobytes()
        scores = 0.2 * q.astype(np.float64) @ np.repeat(k.astype(np.float64), 2 // shared, 0).transpose(0, 2, 1) + m
        if causal:
            scores[:, np.arange(keys) > np.arange(queries)[:, None] + keys - queries] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ np.repeat(v.astype(np.float64), 2 // shared, 0)
        close(results[0][0], want, 1e-2)

    return case


def pieces() -> None:
    """Long reductions are cut, and sums put aside in between; a small first-level cache makes them long."""
    for kernel, x, w, want in _long():
        found = schedule(kernel, described)
        text = found.schedule.source("nest")
        assert found.rule == "tile-contraction" and "_init" in text, found.refused
        before = count("tileloadd")
        close(run(kernel, x, w), want(x, w))
        assert emulator is None or count("tileloadd") > before
        without = run(kernel, x, w, decisions={"pieces": False}, threads=(2,))
        close(without, want(x, w))


def _long():
    for m, k, n in ((128, 640, 40), (101, 640, 64)):
        x, w = halves(m, k), halves(k, n)
        yield matmul(m, k, n), x, w, lambda x, w: x.astype(np.float64) @ w.astype(np.float64)
    kernel, after = conv(14, 64, 32, 3)
    x, w = halves(14, 14, 64), halves(3, 3, 64, 32)
    yield kernel, x, w, lambda x, w: convolved(x, w, after, 1)


def first_layer() -> None:
    """An image with its channels first: the reduction's neighbours are columns, rows of tiles overlap."""
    size, out, after = 20, 24, 7
    kernel = te.from_nest(
        f"""
        def conv(x: bf16[3, {size}, {size}], w: bf16[3, 7, 8, {out}], y: out(f32[{after}, {after}, {out}])):
            for h in serial({after}):
                for v in serial({after}):
                    for o in serial({out}):
                        for c in serial(3):
                            for a in serial(7):
                                for b in serial(8):
                                    s0: y[h, v, o] = reduce(addf(y[h, v, o], mulf(extf[f32](x[c, h * 2 + a, v * 2 + b]), extf[f32](w[c, a, b, o]))), init=f32(0.0), over=(c, a, b))""",  # noqa: E501
        constants=["w"],
    )
    x, w = halves(3, size, size), halves(3, 7, 8, out)
    want = convolved(x.transpose(1, 2, 0), w.transpose(1, 2, 0, 3), after, 2)
    close(run(kernel, x, w), want)


CASES = {
    **{f"matmul {m}x{k}x{n}": sizes_case(m, k, n) for m, k, n in (
        (50, 80, 40), (16, 32, 16), (33, 96, 17), (4, 64, 2), (7, 48, 100), (200, 144, 70), (49, 32, 5), (97, 66, 32),
    )},
    **{f"conv {' '.join(map(str, s))}": conv_case(*s) for s in (
        (11, 16, 20, 3), (7, 32, 24, 1), (14, 32, 33, 1), (15, 32, 16, 3, 2), (9, 64, 8, 3),
    )},
    **{f"bytes {x}{w}": bytes_case(x, w) for x in "su" for w in "su"},
    "bytes conv": bytes_conv,
    "epilogue": epilogue,
    "first layer": first_layer,
    "ceilings": ceilings,
    "pieces": pieces,
    "attention": attention_case(50, 70, 64),
    "attention, one vector of queries": attention_case(16, 49, 32, shared=1),
    "attention with a mask": attention_case(33, 33, 48, mask="33x33"),
    "causal attention": attention_case(40, 75, 64, causal=True, shared=1),
    "batched": batched,
    "whole numbers": whole_numbers,
    "special numbers": special_numbers,
    "every decision": every_decision,
    "whole model": whole_model,
    "quantized model": quantized_model,
}  # fmt: skip


def describe_as(description) -> None:
    """Let this process take itself for a machine with that description."""
    host_module.host = lambda: description
    CpuTarget.describe = lambda self: description


def main(library: str, path: str, only: str = "") -> None:
    global emulator
    if library != "native":
        emulator = ctypes.CDLL(library)
        emulator.amx_count.argtypes, emulator.amx_count.restype = [ctypes.c_char_p], ctypes.c_long
        assert emulator.amx_install() == 0
    describe_as(described)
    results = {}
    for name, case in ((n, c) for n, c in CASES.items() if only in n):
        try:
            case()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        with open(path, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
