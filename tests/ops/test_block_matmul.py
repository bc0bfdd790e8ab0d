"""Products with weights in blocks of a few bits (`MatMulNBits`): every form against the dequantized float64 product, on
descriptions of processors with and without instructions for bytes."""

from __future__ import annotations

import shutil
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.driver.compiler import compile_state
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.ops.block_quantized import IntegerBlockMatmul, QuantizeBlocks
from tilewright.ops.block_weights import BlockWeights
from tilewright.schedule import rules
from tilewright.schedule.finish import finish
from tilewright.schedule.rules import schedule
from tilewright.schedule.work import work_of
from tilewright.targets.base import find
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu.description import describe_arm, host

HERE = host()
MACHINES = {
    "vnni": HERE,
    "avx2": replace(
        HERE,
        cpu="x86-64-v3",
        features=tuple(f for f in HERE.features if not f.startswith(("avx512", "amx", "avxvnni"))),
        vector_bytes=32,
        vector_registers=16,
    ),
    "plain": replace(
        HERE,
        cpu="x86-64",
        features=tuple(f for f in HERE.features if f in ("cmov", "cx8", "sse", "sse2")),
        vector_bytes=16,
        vector_registers=16,
    ),
}
FEATURES = ("cmov", "cx8", "cx16", "sahf", "popcnt", "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2")
MACHINES |= {
    "ssse3": replace(MACHINES["plain"], features=FEATURES),
    "avx512": replace(HERE, features=tuple(f for f in HERE.features if "vnni" not in f and "amx" not in f)),
}
NEEDS = {"vnni": "avx512vnni", "avx2": "avx2", "plain": "sse2", "ssse3": "ssse3", "avx512": "avx512bw"}


@pytest.fixture
def machine(request, monkeypatch):
    """Compile for a processor; skipped where this one cannot run its code."""
    name = getattr(request, "param", "vnni")
    if NEEDS[name] not in HERE.features:
        pytest.skip(f"needs {NEEDS[name]}")
    monkeypatch.setattr(CpuTarget, "describe", lambda self: MACHINES[name])
    return name


def parts(x, bits):
    """The numbers in bytes, the lowest bits first, along the last dimension."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((x[..., None] >> shifts) & ((1 << bits) - 1)).reshape(*x.shape[:-1], -1)


class Case:
    """A random product: its model, its input, and what it stands for."""

    def __init__(self, rows, n, k, bits=4, block=32, zero="none", level=0, bias=False, dtype=np.float32, seed=0):
        rng = np.random.default_rng([seed, rows, n, k, bits, block])
        blocks = -(-k // block)
        w = rng.integers(0, 256, (n, blocks, block * bits // 8), dtype=np.uint8)
        s = rng.uniform(0.01, 0.1, n * blocks).astype(dtype)
        inputs = {"w": w, "s": s}
        z = np.full((n, blocks), 1 << bits - 1, np.float64)
        if zero == "packed":
            inputs["z"] = rng.integers(0, 256, n * -(-blocks * bits // 8), dtype=np.uint8)
            z = parts(inputs["z"].reshape(n, -1), bits)[:, :blocks].astype(np.float64)
        elif zero == "floats":
            inputs["z"] = rng.uniform(0, 1 << bits, n * blocks).astype(dtype)
            z = inputs["z"].reshape(n, blocks).astype(np.float64)
        names = ["x", "w", "s", "z" if "z" in inputs else "", "", "b" if bias else ""]
        if bias:
            inputs["b"] = rng.standard_normal(n).astype(dtype)
        numbers = parts(w, bits).astype(np.float64)
        weights = ((numbers - z[..., None]) * s.reshape(n, blocks, 1).astype(np.float64)).reshape(n, -1)[:, :k]
        self.x = rng.standard_normal((rows, k)).astype(dtype)
        self.expected = self.x.astype(np.float64) @ weights.T + inputs.get("b", np.zeros(1)).astype(np.float64)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        node = helper.make_node(
            "MatMulNBits", names, ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block,
            accuracy_level=level,
        )  # fmt: skip
        info = helper.make_tensor_value_info
        arrays = [numpy_helper.from_array(v, name) for name, v in inputs.items()]
        graph = helper.make_graph([node], "g", [info("x", kind, [rows, k])], [info("y", kind, [rows, n])], arrays)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def error(self, **options):
        """The largest difference from the float64 product, relative to its largest element."""
        (y,) = tw.compile(self.model, threads=options.pop("threads", 1), **options)(self.x)
        assert y.shape == self.expected.shape and y.dtype == self.x.dtype
        return abs(y.astype(np.float64) - self.expected).max() / abs(self.expected).max()


#: the largest errors: f32 at level 0; at level 4 activations have 7 bits and a sign
EXACT, ROUNDED = 5e-6, 2e-2
#: (rows, columns, K): odd ones too, K that ends within a block, one tile and several
SIZES = [(1, 64, 256), (3, 37, 100), (8, 130, 96), (17, 48, 65), (128, 33, 64)]


@pytest.mark.parametrize("machine", ["vnni", "avx2", "plain"], indirect=True)
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(machine, size, level):
    assert Case(*size, level=level, zero="packed" if size[0] % 2 else "none").error() < (ROUNDED if level else EXACT)


@pytest.mark.parametrize("machine", ["vnni", "avx2"], indirect=True)
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["none", "packed", "floats"])
def test_bits_and_zero_points(machine, bits, zero, level):
    error = Case(2, 35, 150, bits, 32, zero, level).error()
    assert error < (ROUNDED if level else EXACT)
    assert level == 0 or zero == "floats" or error > EXACT  # it is what was asked for


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks(machine, bits, block, level):
    assert Case(5, 40, 2 * block + 7, bits, block, "packed", level).error() < (ROUNDED if level else EXACT)


@pytest.mark.parametrize("machine", ["ssse3", "avx512"], indirect=True)
@pytest.mark.parametrize("bits", [4, 8])
def test_other_instructions_for_bytes(machine, bits):
    assert EXACT < Case(3, 40, 64, bits, level=4).error() < ROUNDED


def nest_of(case):
    """The kernel of the product and its loop nest."""
    state, _ = compile_state(case.model, threads=1, stop_after="schedule", cache=False)
    (name,) = (n for n in state.nests if "matmul" in n)
    return state.kernels[name], state.nests[name]


@pytest.mark.parametrize("bits, instruction", [(4, "sdot"), (8, "mul")])
def test_aarch64(machine, bits, instruction):
    kernel, _ = nest_of(Case(3, 40, 64, bits, level=4))
    arm = describe_arm("aarch64-unknown-linux-gnu", ("neon", "fp-armv8", "dotprod"))
    nest = finish(schedule(kernel, arm).schedule.nest())
    assert instruction in find("cpu").tuning().forms()["asm"](nest, arm)


@pytest.mark.parametrize("level", [0, 4])
def test_executed_work(machine, level):
    """Unpacking is shared by the rows of a tile: little beside the multiply-adds, which are done once."""
    rows, n, k = 20, 96, 256
    kernel, nest = nest_of(Case(rows, n, k, level=level))
    assert 1.0 <= work_of(kernel, nest).operations / (2 * rows * n * k) < 1.5


@pytest.mark.parametrize("level", [1, 2, 3])
def test_other_accuracy_levels_are_f32(machine, level):
    assert Case(2, 32, 64, level=level).error() < EXACT


@pytest.mark.parametrize("level", [0, 4])
def test_bias_and_halves(machine, level):
    assert Case(3, 40, 96, bias=True, level=level).error() < (ROUNDED if level else EXACT)
    assert Case(3, 40, 96, bias=True, level=level, dtype=np.float16).error() < (ROUNDED if level else 1e-3)


@pytest.mark.parametrize("level", [0, 4])
def test_threads_agree(machine, level):
    case = Case(5, 300, 128, level=level)
    one, two = (tw.compile(case.model, threads=n)(case.x)[0] for n in (1, 2))
    assert one.tobytes() == two.tobytes()


def test_extreme_activations(machine):
    case = Case(1, 32, 64, level=4)
    assert not tw.compile(case.model)(np.zeros_like(case.x))[0].any()
    large = tw.compile(case.model)(case.x * np.float32(1e30))[0]
    np.testing.assert_allclose(large, tw.compile(case.model)(case.x)[0] * np.float32(1e30), rtol=1e-5)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite_stay_visible(machine, number):
    for level in (0, 4):
        case = Case(2, 32, 64, level=level)
        case.x[1, 3] = number
        (y,) = tw.compile(case.model, threads=1)(case.x)
        assert np.isfinite(y[0]).all() and not np.isfinite(y[1]).any()


def test_tiny_activations(machine):
    case = Case(1, 32, 64, level=4)
    case.x[:] = 1e-40
    assert np.isfinite(tw.compile(case.model, threads=1)(case.x)[0]).all()


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("zero", ["none", "packed"])
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_c_target(zero, level):
    assert Case(3, 37, 100, 4, 32, zero, level).error(target="c") < (ROUNDED if level else EXACT)


def test_verified(machine):
    """The operators' references agree with their kernels, and so does what they are decomposed into."""
    for level in (0, 4):
        case = Case(3, 40, 64, level=level, zero="packed")
        tw.compile(case.model, verify=True, threads=1)


def test_weights_are_not_dequantized(machine):
    """What a program keeps and works in is not much more than the weights of the model."""
    for level in (0, 4):
        case = Case(8, 256, 1024, level=level)
        program = tw.compile(case.model, threads=1).package.program
        kept = sum(c.nbytes for c in program.constants)
        assert kept < 1.3 * (256 * 1024 // 2 + 256 * 32 * 4), level
        assert program.arena_size + program.scratch_size < 64 << 10


@pytest.mark.parametrize("machine", ["vnni", "avx2"], indirect=True)
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("columns, most", [(96, 9), (33, 300)])
def test_open_rows(machine, level, columns, most):
    case = Case(4, columns, 96, level=level, zero="packed")
    weights = np.linalg.lstsq(case.x.astype(np.float64), case.expected, rcond=None)[0]  # what the rows of x tell
    for value in (case.model.graph.input[0], case.model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    run = tw.compile(case.model, inputs={"x": (tw.Dim("rows", 1, most), 96)}, threads=1)
    rng = np.random.default_rng(0)
    for rows in (1, 3, most):
        x = (rng.standard_normal((rows, 4)) @ case.x).astype(np.float32)
        want = x.astype(np.float64) @ weights
        assert abs(run(x)[0] - want).max() / abs(want).max() < (ROUNDED if level else EXACT)


@pytest.mark.parametrize("kind, low, high", [("INT4", -8, 8), ("UINT4", 0, 16), ("INT8", -128, 128)])
@pytest.mark.parametrize("block", [0, 16, 48])
def test_dequantized_weights_stay_packed(machine, kind, low, high, block):
    """A MatMul with a constant behind DequantizeLinear, with scales of columns or of blocks."""
    rng = np.random.default_rng([block, high])
    k, n, kind = 96, 40, getattr(onnx.TensorProto, kind)
    w = rng.integers(low, high, (k, n))
    s = rng.uniform(0.01, 0.1, (k // block, n) if block else n).astype(np.float32)
    z = rng.integers(low, high, s.shape) if block != 48 else np.full(s.shape, (low + high) // 2)
    spread = [np.repeat(a, block, 0) if block else a for a in (z, s)]
    dequantize = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0 if block else 1, block_size=block)
    arrays = [
        numpy_helper.from_array(s, "s"),
        *(onnx.helper.make_tensor(name, kind, a.shape, a.flatten()) for name, a in (("w", w), ("z", z))),
    ]
    ends = [helper.make_tensor_value_info(*v) for v in (("x", 1, [2, 3, k]), ("y", 1, [2, 3, n]))]
    nodes = [dequantize, helper.make_node("MatMul", ["x", "d"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert "tw.block_matmul" in tw.compile(model, stop_after="simplify").text()
    x = rng.standard_normal((2, 3, k)).astype(np.float32)
    want = x.astype(np.float64) @ ((w - spread[0]) * spread[1].astype(np.float64))
    assert abs(tw.compile(model, threads=1)(x)[0] - want).max() / abs(want).max() < EXACT


# ---- all forms of weights ------------------------------------------------------------------------------------------

TABLES = {
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    "fp4": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
}
#: bits, numbers of a block, dtype of the outer scales and the blocks of one, that of the inner scales, whether there is
#: a minimum, and a table: what GGUF's types become
FORMS = {
    "q4_0": (4, 32, "f16", 1, "", False, ""),
    "q4_1": (4, 32, "f16", 1, "", True, ""),
    "q5_0": (5, 32, "f16", 1, "", False, ""),
    "q5_1": (5, 32, "f16", 1, "", True, ""),
    "q8_0": (8, 32, "f16", 1, "", False, ""),
    "q2_k": (4, 16, "f16", 4, "ui8", True, ""),
    "q3_k": (4, 16, "f16", 4, "i8", False, ""),
    "q4_k": (4, 32, "f16", 2, "ui8", True, ""),
    "q5_k": (5, 32, "f16", 2, "ui8", True, ""),
    "q6_k": (6, 16, "f16", 8, "i8", False, ""),
    "iq4_nl": (4, 32, "f16", 1, "", False, "iq4"),
    "iq4_xs": (4, 32, "f16", 4, "i8", False, "iq4"),
    "mxfp4": (4, 32, "f8E8M0FNU", 1, "", False, "fp4"),
    "nvfp4": (4, 16, "f32", 8, "f8E4M3FN", False, "fp4"),
}


def weights_of(form, n=40, k=128, seed=0):
    """Random ones of a form."""
    bits, block, outer, each, inner, least, table = FORMS[form]
    rng = np.random.default_rng([seed, n, k])
    blocks = k // block
    scale = rng.uniform(0.01, 0.1, (n, blocks // each)).astype(np.float16 if outer == "f16" else np.float32)
    if outer == "f8E8M0FNU":
        scale = rng.integers(120, 126, scale.shape, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)

    def fine():
        if inner == "f8E4M3FN":
            return rng.integers(0, 120, (n, blocks), dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
        return rng.integers(0, 64, (n, blocks)).astype(np.uint8) if inner == "ui8" else fine_signed()

    def fine_signed():
        return rng.integers(-32, 32, (n, blocks)).astype(np.int8)

    more = {"inner": fine()} if inner else {}
    if least:
        more |= {"minimum": rng.uniform(0.01, 0.1, scale.shape).astype(np.float16), "offset": 0}
        more |= {"inner_minimum": fine()} if inner else {}
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    return BlockWeights.of_codes(codes, bits, block, scale, table=TABLES.get(table, ()), **more)


def products(w, rows, x_block, kinds=("bytes", "floats")):
    """A graph of x by bytes and by f32 times weights."""
    make = Maker([("x", Type((rows, w.shape[1]), "f32"))])
    x, given = make.inputs[0], [None if a is None else make.constant(a, f"c{i}") for i, a in enumerate(w.operands)]
    made = []
    if "bytes" in kinds:
        parts = make("quantize_blocks", x, block=x_block, part=w.block)
        made.append(("bytes", make("integer_block_matmul", *parts, *given, **w.attributes)))
    if "floats" in kinds:
        made.append(("floats", make("block_matmul", x, *given, **w.attributes)))
    return make.finish(made)


def agree(run, w, rows, x_block):
    x = np.random.default_rng(rows).standard_normal((rows, w.shape[1])).astype(np.float32)
    q, scale, sums = QuantizeBlocks.reference(x, block=x_block, part=w.block)
    want = {
        "bytes": IntegerBlockMatmul.reference(q, scale.astype(np.float64), sums, *w.operands, **w.attributes),
        "floats": x.astype(np.float64) @ w.dequantized(np.float64).T,
    }
    for name, found in zip([t.name for t in run.outputs], run(x), strict=True):
        assert found.shape == want[name].shape
        assert abs(found - want[name]).max() / abs(want[name]).max() < EXACT


@pytest.mark.parametrize("form", FORMS)
def test_forms(machine, form):
    """By bytes with open rows: few and many, tiles and what is left; blocks of x of one and of several of weights."""
    w, x_block = weights_of(form), 64 if form == "q4_k" else 32
    run = tw.compile(products(w, None, x_block, "bytes"), inputs={"x": (tw.Dim("T", 1, 40), 128)}, threads=1)
    for rows in (1, 3, 8, 17, 40):
        agree(run, w, rows, x_block)
    agree(tw.compile(products(w, 17, x_block, "floats"), threads=1), w, 17, x_block)


def test_floats_of_open_rows(machine):
    w = weights_of("q6_k")
    run = tw.compile(products(w, None, 32, "floats"), inputs={"x": (tw.Dim("T", 1, 40), 128)}, threads=1)
    for rows in (1, 3, 8, 17, 40):
        agree(run, w, rows, 32)


@pytest.mark.parametrize("machine", ["avx2", "plain"], indirect=True)
@pytest.mark.parametrize("form", ["q5_1", "q6_k", "iq4_xs"])
def test_forms_on_other_processors(machine, form):
    w = weights_of(form)
    agree(tw.compile(products(w, 17, 32), threads=1), w, 17, 32)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_forms_in_c():
    for form in ("q5_k", "nvfp4"):  # C99 has no halves
        w = weights_of(form)
        least = None if w.minimum is None else w.minimum.astype(np.float32)
        w = replace(w, scale=w.scale.astype(np.float32), minimum=least)
        agree(tw.compile(products(w, 3, 32), target="c"), w, 3, 32)


@pytest.mark.parametrize("form", ["q5_k", "q6_k", "mxfp4", "nvfp4"])
def test_forms_decomposed(machine, form, monkeypatch):
    """What the operators are without kernels of their own."""
    for mnemonic in rules.direct_operators() & {"block_matmul", "integer_block_matmul"}:
        monkeypatch.delitem(rules.DIRECT, mnemonic)
    w = weights_of(form)
    agree(tw.compile(products(w, 3, 32), threads=1, cache=False), w, 3, 32)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_looked_up(machine, form):
    """Bit for bit, from the words that a product reads: there is one array of them."""
    w = weights_of(form, n=96)
    make = Maker([("x", Type((None, w.shape[1]), "f32")), ("i", Type((None,), "i32"))])
    given = [None if a is None else make.constant(a, f"c{i}") for i, a in enumerate(w.operands)]
    rows = make("block_lookup", make.inputs[1], *given, **w.attributes)
    graph = make.finish([("rows", rows), ("y", make("block_matmul", make.inputs[0], *given, **w.attributes))])
    run = tw.compile(graph, inputs={"x": (tw.Dim("T", 1, 9), 128), "i": (tw.Dim("N", 1, 9),)}, threads=1)
    indices = np.array([95, 0, 33, 33], np.int32)
    np.testing.assert_array_equal(run(np.zeros((1, 128), np.float32), indices)[0], w.dequantized()[indices])
    assert run.facts()["memory"]["weights"] == w.nbytes


def test_one_layout_for_any_number_of_rows(machine):
    """Programs for few and for many rows read the same packed words."""
    w = weights_of("q4_k", n=96)
    kept = []
    for rows in (1, 4, 100):
        program = tw.compile(products(w, rows, 32), threads=1).package.program
        kept.append({c.nbytes for c in program.constants})
    assert kept[0] == kept[1] == kept[2]


def test_packed_size_and_joining():
    """Block weights are little more than the files they come from, and join along their rows."""
    bits_a_weight = {"q4_0": 4.5, "q5_1": 6.0, "q8_0": 8.5, "iq4_nl": 4.5, "mxfp4": 4.25}
    for form, bits in bits_a_weight.items():
        w = weights_of(form)
        assert w.nbytes * 8 / np.prod(w.shape) <= 1.03 * bits
    one, two = weights_of("q4_k", seed=1), weights_of("q4_k", n=8, seed=2)
    joined = BlockWeights.joined([one, two])
    assert joined.shape == (48, 128) and BlockWeights.joined([one, weights_of("q5_k")]) is None
    np.testing.assert_array_equal(joined.dequantized(), np.concatenate([one.dequantized(), two.dequantized()]))
