"""Nests on a GPU's threads as LLVM IR: run by the emulator of threads, against the interpreter of nests."""

from __future__ import annotations

import numpy as np
import pytest
from support.cuda_emulator import needs_compiler, run
from support.ptxas import assembled

from tilewright.codegen.nvptx.assemble import optimized, ptx, shared_at_launch
from tilewright.codegen.nvptx.copies import waits
from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import Nest, Wait, walk_stmts
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.description import MACHINES, SM_80
from tilewright.tensor.evaluate import NUMPY

pytestmark = needs_compiler


def parsed(text: str) -> Nest:
    return finish(parse_nest(text.strip(), SM_80))


def arrays_for(nest: Nest, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for p in nest.params:
        if p.name not in nest.outputs:
            integer = p.dtype.startswith("i")
            x = rng.integers(-100, 100, p.shape) if integer else rng.standard_normal(p.shape)
            found[p.name] = (x > 0 if p.dtype == "i1" else x).astype(NUMPY[p.dtype])
    return found


def agrees(text: str, tolerance: float = 1e-7, seed: int = 0) -> str:
    """The LLVM IR of a nest whose emulated results are those of the interpreter, in either order of the threads."""
    nest = parsed(text)
    arrays = arrays_for(nest, seed)
    expected = interpret_nest(nest, arrays, SM_80)
    emitted = emit(nest, SM_80)
    for backwards in (False, True):
        found = run(nest, emitted, arrays, backwards=backwards)
        for name, want in expected.items():
            a, b = (x.astype(np.float64) for x in (found[name], want))
            assert np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True), name
    return emitted.text


#: operations of one float, of a positive one, and of two
FLOATS = [
    "exp",
    "exp2",
    "expm1",
    "tanh",
    "erf",
    "sin",
    "cos",
    "atan",
    "sinh",
    "asinh",
    "cbrt",
    "sigmoid",
    "floor",
    "ceil",
]
FLOATS += ["trunc", "round", "roundeven", "absf", "negf"]
POSITIVE = ["sqrt", "rsqrt", "log", "log2", "log1p"]
PAIRS = ["addf", "subf", "mulf", "divf", "remf", "maximumf", "minimumf", "maxnumf", "minnumf", "copysign", "atan2"]
#: of integers; those behind the second bar want a divisor that is not zero, behind the third a small shift
INTEGERS = "addi subi muli andi ori xori maxsi minsi maxui minui | absi ctlz cttz ctpop | divsi divui remsi remui "
INTEGERS += "floordivsi ceildivsi ceildivui | shli shrsi shrui"


def each(dtype: str, values: list[str], result: str = "") -> str:
    """A nest with one result for each of some expressions of ``a[j]`` and ``b[j]``."""
    lines = [f"        s{i}: y[{i}, j] = {v}" for i, v in enumerate(values)]
    head = f"def k(a: {dtype}[32], b: {dtype}[32], y: out({result or dtype}[{len(values)}, 32])):"
    return "\n".join([head, "    for j in block.x(32):", *lines])


@pytest.mark.parametrize("dtype, tolerance", [("f32", 2e-6), ("f16", 2e-3), ("bf16", 1.6e-2), ("f64", 1e-12)])
def test_operations_on_floats(dtype, tolerance):
    values = [f"{f}(a[j])" for f in FLOATS] + [f"{f}(absf(a[j]))" for f in POSITIVE]
    values += [f"{f}(a[j], b[j])" for f in PAIRS] + ["fma(a[j], b[j], a[j])"]
    agrees(each(dtype, values), tolerance)
    tests = [f"{f}(a[j])" for f in ("isnan", "isinf", "isfinite")]
    tests += [f"cmpf.{p}(a[j], b[j])" for p in ("oeq", "ogt", "ole", "une", "ult", "ord")]
    agrees(each(dtype, tests, "i1"))


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_operations_on_integers(dtype):
    two, one, divide, shift = (part.split() for part in INTEGERS.split("|"))
    values = [f"{f}(a[j], b[j])" for f in two] + [f"{f}(a[j])" for f in one]
    values += [f"{f}(a[j], ori(b[j], {dtype}(1)))" for f in divide]
    values += [f"{f}(a[j], andi(b[j], {dtype}(7)))" for f in shift]
    agrees(each(dtype, values))
    agrees(each(dtype, [f"cmpi.{p}(a[j], b[j])" for p in ("eq", "ne", "slt", "sge", "ult", "uge")], "i1"))


CASTS = [
    ("f32", "extf[f32](truncf[f16](a[j]))"), ("f32", "extf[f32](truncf[bf16](a[j]))"), ("i8", "trunci[i8](a[j])"),
    ("i32", "fptosi[i32](mulf(a[j], f32(1e10)))"), ("i8", "fptoui[i8](mulf(a[j], f32(100.0)))"),
    ("f16", "uitofp[f16](a[j])"), ("f64", "sitofp[f64](a[j])"), ("i64", "extui[i64](a[j])"),
    ("i32", "bitcast[i32](a[j])"),
]  # fmt: skip


@pytest.mark.parametrize("result, value", CASTS)
def test_casts(result, value):
    source = "i32" if any(c in value for c in ("trunci", "itofp", "extui")) else "f32"
    agrees(each(source, [value], result))


@pytest.mark.parametrize("dtype, lanes", [("f32", 4), ("f16", 8), ("bf16", 8), ("i8", 16)])
def test_vector_loops_read_and_write_16_bytes_at_once(dtype, lanes):
    add = "addi" if dtype == "i8" else "addf"
    kind = {"f32": "float", "f16": "half", "bf16": "bfloat", "i8": "i8"}[dtype]
    text = agrees(f"""
def k(x: {dtype}[1024], z: {dtype}[1024], y: out({dtype}[1024])):
    for i in grid.x(2):
        for j in block.x(32):
            for o in serial({512 // 32 // lanes}):
                for v in vector({lanes}, lanes={lanes}):
                    s0: y[i * 512 + o * {32 * lanes} + j * {lanes} + v] = {add}(x[i * 512 + o * {32 * lanes} + j * {lanes} + v], z[i * 512 + o * {32 * lanes} + j * {lanes} + v])
""")  # noqa: E501
    assert text.count(f"load <{lanes} x {kind}>, ptr addrspace(1)") == 2
    assert text.count(f"store <{lanes} x {kind}>") == 1
    assert f"load {kind}," not in text


def test_vector_loops_that_are_not_aligned_take_less_at_once():
    text = agrees("""
def k(x: f32[33], y: out(f32[32])):
    for i in block.x(8):
        for v in vector(4, lanes=4):
            s0: y[i * 4 + v] = x[i * 4 + v + 1]
""")
    assert "store <4 x float>" in text and "load <" not in text


def test_a_sum_across_lanes_keeps_its_order():
    agrees("""
def k(x: f32[8, 4], y: out(f32[8])):
    for i in block.x(8):
        s0: y[i] = f32(0.0)
        for v in vector(4, lanes=4):
            s1: y[i] = addf(y[i], x[i, v])
""")


def test_partial_tiles_conditions_and_units_without_work():
    agrees("""
def k(x: f32[50], y: out(f32[50]), z: out(f32[3])):
    for i in grid.x(2):
        for j in block.x(32):
            if i * 32 + j < 50:
                s0: y[i * 32 + j] = select(cmpf.ogt(x[i * 32 + j], f32(0.0)), x[i * 32 + j], f32(0.0))
    for j in block.x(2):
        s1: z[j + 1] = f32(2.0)
    s2: z[0] = f32(3.0)
""")


def test_a_nest_for_the_threads_of_a_processor_has_one_thread_an_iteration():
    nest = parsed("""
def k(x: f32[50, 8], y: out(f32[50]), z: out(f32[2])):
    for i in thread(50):
        t = local(f32[8])
        for j in serial(8):
            s0: t[j] = exp(x[i, j])
        s1: y[i] = f32(0.0)
        for j in serial(8):
            s2: y[i] = addf(y[i], t[7 - j])
    for j in serial(2):
        s3: z[j] = x[j, 0]
""")
    arrays, emitted = arrays_for(nest), emit(nest, SM_80)
    assert (emitted.launch.grid, emitted.launch.block) == ((2, 1, 1), (32, 1, 1))
    found, want = run(nest, emitted, arrays), interpret_nest(nest, arrays)
    assert all(np.allclose(found[n], want[n], 1e-6) for n in want)


def test_integers_are_divided_and_shifted_as_the_interpreter_has_it():
    agrees("""
def k(x: i32[64], y: out(i32[64]), w: out(i64[64]), q: out(f32[64])):
    for j in block.x(64):
        s0: y[j] = addi(floordivsi(x[j], i32(7)), ceildivsi(x[j], i32(-3)))
        s1: w[j] = muli(extsi[i64](x[j]), extui[i64](absi(x[j])))
        s2: q[j] = sitofp[f32](addi(maxsi(x[j], i32(3)), ctpop(xori(x[j], i32(85)))))
""")


def test_booleans_take_a_byte_and_a_guard_reads_only_where_it_may():
    agrees("""
def k(x: f32[30], b: i1[32], y: out(f32[32]), c: out(i1[32])):
    for j in block.x(32):
        s0: y[j] = guard(cmpi.slt(j, 30), x[j], f32(-1.0))
        s1: c[j] = xori(b[j], cmpi.slt(j, 7))
""")


def test_a_number_that_memory_gives_selects_an_element():
    agrees("""
def k(x: f32[64], i: i32[64], y: out(f32[64])):
    for j in block.x(64):
        s0: y[j] = x[index_cast[index](andi(i[j], i32(63)))]
""")


def test_what_a_thread_has_for_itself_and_what_all_share():
    text = agrees("""
def k(x: f32[64], y: out(f32[64])):
    for i in grid.x(2):
        t = shared(f32[32])
        for j in block.x(32):
            s0: t[j] = mulf(x[i * 32 + j], f32(2.0))
        barrier(block)
        mine = local(f32[4, 32])
        for j in block.x(32):
            for o in serial(4):
                s1: mine[o, j] = t[(j + o) % 32]
        for j in block.x(32):
            s2: y[i * 32 + j] = f32(0.0)
            for o in serial(4):
                s3: y[i * 32 + j] = addf(y[i * 32 + j], mine[o, j])
""")
    assert "alloca [4 x float]" in text  # of 4 x 32 numbers a thread has four


def test_a_reduction_in_shared_memory_with_a_barrier_in_each_step():
    agrees("""
def k(x: f32[2, 64], y: out(f32[2])):
    for i in grid.x(2):
        t = shared(f32[2, 64])
        for j in block.x(64):
            s0: t[0, j] = x[i, j]
        barrier(block)
        for step in serial(6):
            for j in block.x(64):
                s1: t[(step + 1) % 2, j] = addf(t[step % 2, j], t[step % 2, xori(j, shrsi(32, step))])
            barrier(block)
        for j in block.x(64):
            if j < 1:
                s2: y[i] = t[0, 0]
""")


def test_warps_and_lanes_with_a_barrier_of_a_warp():
    agrees("""
def k(x: f32[4, 32], y: out(f32[4, 32])):
    t = shared(f32[4, 32])
    for w in warp(4):
        for l in lane(32):
            s0: t[w, l] = x[w, l]
        barrier(warp)
        for l in lane(32):
            s1: y[w, l] = t[w, 31 - l]
""")


@pytest.mark.parametrize("signs", ["ss", "us", "su", "uu"])
def test_products_of_bytes(signs):
    x, w = (f"ext{s}i[i32]" for s in signs)
    text = agrees(f"""
def k(x: i8[8, 16], w: i8[16], y: out(i32[8])):
    for j in block.x(8):
        s0: y[j] = i32(5)
        for o in serial(4):
            for q in unroll(4, notes={{'dot': 'dp4a_{signs}'}}):
                s1: y[j] = addi(y[j], muli({x}(x[j, o * 4 + q]), {w}(w[o * 4 + q])))
""")
    assert f"idp4a.{signs[0]}.{signs[1]}" in text


def test_more_shared_memory_than_a_kernel_may_declare_is_given_at_launch(tmp_path):
    nest = parsed("""
def k(x: f32[8192], y: out(f32[8192])):
    s = shared(f32[8192])
    t = shared(f32[8192])
    for j in block.x(128):
        for o in serial(64):
            a0: s[o * 128 + j] = x[o * 128 + j]
            a1: t[o * 128 + j] = negf(x[o * 128 + j])
    barrier(block)
    for j in block.x(128):
        for o in serial(64):
            a2: y[o * 128 + j] = addf(s[8191 - o * 128 - j], t[o * 128 + j])
""")
    arrays, emitted = arrays_for(nest), emit(nest, SM_80)
    assert shared_at_launch(emitted) == 65536
    assert np.array_equal(run(nest, emitted, arrays)["y"], arrays["x"][::-1] - arrays["x"])
    text = ptx(emitted, SM_80.llvm)
    assert ".extern .shared .align 1024" in text
    assert assembled(text, "sm_80", tmp_path).spilled == 0


@pytest.mark.parametrize("sm", MACHINES)
def test_optimized_code_means_the_same_and_is_accepted(sm, tmp_path):
    nest = parsed("""
def k(x: bf16[4, 128], y: out(f32[4, 128])):
    for i in grid.x(4):
        t = shared(f32[128])
        for j in block.x(16):
            for v in vector(8, lanes=8):
                s0: t[j * 8 + v] = exp(extf[f32](x[i, j * 8 + v]))
        barrier(block)
        for j in block.x(16):
            for v in vector(8, lanes=8):
                s1: y[i, j * 8 + v] = t[127 - j * 8 - v]
""")
    arrays, emitted = arrays_for(nest), emit(nest, MACHINES[sm])
    module, _ = optimized(emitted, MACHINES[sm].llvm)
    found = run(nest, emitted, arrays, text=str(module))["y"]
    assert np.allclose(found, interpret_nest(nest, arrays, SM_80)["y"], 1e-6)
    taken = assembled(ptx(emitted, MACHINES[sm].llvm), sm, tmp_path)
    assert (taken.spilled, taken.stack, taken.shared) == (0, 0, 512)


def test_waits_count_the_groups_of_all_tokens():
    """A thread's groups end in the order in which they began: a wait for one token leaves what began after it."""
    nest = parsed("""
def k(x: f32[6, 32], y: out(f32[6, 32])):
    s = shared(f32[3, 32])
    t = shared(f32[3, 32])
    for p in serial(2):
        with async_copy(a):
            for j in block.x(32):
                c0: s[p, j] = x[p, j]
        with async_copy(b):
            for j in block.x(32):
                c1: t[p, j] = x[p, j]
    for i in serial(6):
        with async_copy(a):
            if i + 2 < 6:
                for j in block.x(32):
                    c2: s[(i + 2) % 3, j] = x[i + 2, j]
        wait(a, pending=2)
        with async_copy(b):
            if i + 2 < 6:
                for j in block.x(32):
                    c3: t[(i + 2) % 3, j] = x[i + 2, j]
        wait(b, pending=2)
        barrier(block)
        for j in block.x(32):
            c4: y[i, j] = addf(s[i % 3, 31 - j], t[i % 3, j])
        barrier(block)
""")
    found = waits(nest.body)
    assert [found[id(s)] for s in walk_stmts(nest.body) if isinstance(s, Wait)] == [4, 4]
    x = arrays_for(nest)["x"]
    assert np.array_equal(run(nest, emit(nest, SM_80), {"x": x})["y"], x[:, ::-1] + x)


# ---- what is refused ----


def refused(text: str, kind: type[Exception] = CompileError) -> str:
    with pytest.raises(kind) as e:
        emit(parsed(text), SM_80)
    return str(e.value)


def test_what_cannot_be_emitted_as_asked_is_an_error_with_a_hint():
    message = refused("""
def k(x: f32[8], y: out(f32[8])):
    for i in block.x(8):
        t = register(f32[4])
        for o in serial(4):
            s0: t[o] = x[i]
        s1: y[i] = t[3]
""")
    assert "which of them is used is not known: o" in message and "unroll the loops" in message
    message = refused("""
def k(x: f32[2048], y: out(f32[2048])):
    for i in block.x(2048):
        s0: y[i] = x[i]
""")
    assert "block has 1024 threads, the loops on it have 2048 iterations" in message
    message = refused("""
def k(x: bf16[8], y: out(bf16[8])):
    t = shared(bf16[8])
    with async_copy(c):
        for i in block.x(8):
            s0: t[i] = x[i]
    wait(c)
    barrier(block)
    for i in block.x(8):
        s1: y[i] = t[7 - i]
""")
    assert "the copy to t cannot be asynchronous: it copies 2 neighbouring bytes" in message
    message = refused("""
def k(x: f32[16, 8], y: out(f32[16, 8])):
    for w in warp(1):
        t = fragment(f32[16, 8])
        for i in serial(16):
            for j in serial(8):
                s0: t[i, j] = x[i, j]
        for i in serial(16):
            for j in serial(8):
                s1: y[i, j] = t[i, j]
""")
    assert "no product uses it" in message and "tensorize" in message
