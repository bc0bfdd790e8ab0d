"""Precisions below f32: the rule for pairs of bf16 against the meaning of its nests, whole models, `auto`, what is
reported, and what is refused.

Nests are interpreted for a described processor, so that most of this runs anywhere.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from support.machines import RULES_AVX512

import tilewright as tw
from tilewright.driver.auto_precision import Measured, choose, error_of
from tilewright.driver.build_program import pack_array
from tilewright.graph.passes import parse_pipeline, run_pipeline
from tilewright.ir.constants import ConstantTable
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.schedule.facts import kernel_facts
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import stores
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import UsageError
from tilewright.support.options import Options
from tilewright.targets.cpu.description import describe_x86, host
from tilewright.targets.cpu.emit import emit
from tilewright.tensor.fuse import fuse
from tilewright.tensor.interpret import interpret_function
from tilewright.tensor.read import read_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
#: a processor with products of pairs, and the same one without them
PAIRS = describe_x86("x86_64-unknown-linux-gnu", (*RULES_AVX512, "avx512bf16"), l1_bytes=48 << 10, l2_bytes=1 << 20)
PLAIN = replace(PAIRS, features=RULES_AVX512)
#: dot2 adds two exact products before the sum: a few roundings a step, as any order of an f32 sum
TOLERANCE = 2e-6


def graph_of(body, inputs, result, constants=()):
    """A level-2 graph: `inputs` are (name, type), `constants` (name, array)."""
    table = ConstantTable()
    lines = []
    for name, array in constants:
        table.add(array, name)
        kind = {"float32": "f32", "bfloat16": "bf16"}[array.dtype.name]
        t = "x".join(map(str, (*array.shape, kind)))
        lines.append(f'%{name} = "tw.constant"() {{symbol = "{name}"}} : () -> tensor<{t}>')
    given = ", ".join(f'%{n}: tensor<{t}> {{tw.name = "{n}"}}' for n, t in inputs)
    text = "\n".join(lines)
    signature = f'func.func @main({given}) -> (tensor<{result}> {{tw.name = "y"}})'
    return Graph(parse(f"{signature} {{\n{text}\n{body}\nreturn %y : tensor<{result}>\n}}"), table)


def matmul(m, k, n, batch=(), epilogue=False, constant=True):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((*batch, k, n) if not constant else (k, n)).astype(BF16)
    b = "".join(f"{d}x" for d in batch)
    x, y, weights = f"{b}{m}x{k}xbf16", f"{b}{m}x{n}xf32", f"{'' if constant else b}{k}x{n}xbf16"
    name = "%0" if epilogue else "%y"
    body = f'{name} = "tw.matmul"(%x, %w) {{dtype = "f32"}} : (tensor<{x}>, tensor<{weights}>) -> tensor<{y}>\n'
    if epilogue:
        y = y.replace("f32", "bf16")
        body += f'%1 = "tw.relu"(%0) : (tensor<{b}{m}x{n}xf32>) -> tensor<{b}{m}x{n}xf32>\n'
        body += f'%y = "tw.cast"(%1) {{to = "bf16"}} : (tensor<{b}{m}x{n}xf32>) -> tensor<{y}>\n'
    if constant:
        return graph_of(body, [("x", x)], y, [("w", w)])
    return graph_of(body, [("x", x), ("w", weights)], y)


def conv(size, channels, out, kernel, stride=1, pad=0):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((out, channels, kernel, kernel)).astype(BF16)
    after = (size + 2 * pad - kernel) // stride + 1
    x, y = f"1x{size}x{size}x{channels}xbf16", f"1x{after}x{after}x{out}xf32"
    pads = ", ".join([str(pad)] * 4)
    attributes = (
        f'dtype = "f32", layout = "nhwc", strides = array<i64: {stride}, {stride}>, pads = array<i64: {pads}>, '
        "dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>"
    )
    weights = f"{out}x{channels}x{kernel}x{kernel}xbf16"
    body = f'%y = "tw.conv"(%x, %w) {{{attributes}}} : (tensor<{x}>, tensor<{weights}>) -> tensor<{y}>'
    return graph_of(body, [("x", x)], y, [("w", w)])


def contraction_of(graph):
    """The function of the kernel that sums products, and the kernel; then the graph, which holds the function."""
    fused = tw.compile(graph, stop_after="fuse")
    found = [(f, read_kernel(f)) for f in fused.functions()]
    return next((f, k) for f, k in found if any(s.targets[0].init is not None for s in k.stages)), fused


def interpreted(kernel, scheduled):
    """Results of the scheduled nest and the inputs it had."""
    rng = np.random.default_rng(1)
    dtypes = {"bf16": BF16, "f32": np.dtype(np.float32)}
    given = {p.name: rng.standard_normal(p.shape).astype(dtypes[p.dtype]) for p in kernel.inputs}
    nest = finish(scheduled.schedule.nest())
    packed = {n: pack_array(a, nest.packs[n]) if n in nest.packs else a for n, a in given.items()}
    return interpret_nest(nest, packed), given, nest


# ---- the rule ------------------------------------------------------------------------------------------------------


def conv_of_channels_first(channels, dtype="bf16"):
    """A 1x1 convolution of an image whose channels lie first, as behind a concatenation."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, channels, 1, 1)).astype(BF16)
    x, moved, y = f"1x{channels}x16x16x{dtype}", f"1x16x16x{channels}x{dtype}", "1x16x16x64xf32"
    attributes = (
        'dtype = "f32", layout = "nhwc", strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, '
        "dilations = array<i64: 1, 1>, operandSegmentSizes = array<i32: 1, 1, 0>"
    )
    body = (
        f'%0 = "tw.transpose"(%x) {{permutation = array<i64: 0, 2, 3, 1>}} : (tensor<{x}>) -> tensor<{moved}>\n'
        f'%y = "tw.conv"(%0, %w) {{{attributes}}} : (tensor<{moved}>, tensor<64x{channels}x1x1xbf16>) -> tensor<{y}>'
    )
    return graph_of(body, [("x", x)], y, [("w", w)])


def test_what_pairs_read_is_not_read_through_a_transposition():
    rules = {}
    for paired in (PAIRS.paired_dtypes, frozenset()):
        fused, _ = fuse(tw.compile(conv_of_channels_first(128), stop_after="lower"), paired=paired)
        kernels = [read_kernel(f) for f in fused.functions()]
        product = next(k for k in kernels if any(s.reduction for s in k.stages))
        made = schedule(product, PAIRS)
        rules[len(kernels)] = made.rule, kernel_facts(product, made)["slow"]
    assert rules[2] == ("bf16-contraction", [])
    rule, (slow,) = rules[1]  # where nobody says that there are pairs, and a machine has them all the same
    assert rule == "contraction" and slow.startswith(
        "it multiplies bf16 in f32, without the instruction for pairs: no "
    )


@pytest.mark.parametrize(
    "graph",
    [
        lambda: matmul(13, 16, 37),
        lambda: matmul(1, 6, 5),
        lambda: matmul(5, 2, 16),
        lambda: matmul(30, 64, 48, epilogue=True),
        lambda: matmul(7, 8, 3),
        lambda: matmul(9, 10, 20, batch=(2,), constant=False),
        lambda: conv(5, 4, 20, 3, pad=1),
        lambda: conv(7, 6, 17, 1),
        lambda: conv(9, 4, 8, 3, stride=2),
    ],
)
def test_pairs_compute_what_the_kernel_says(graph):
    (function, kernel), fused = contraction_of(graph())
    assert len(list(fused.functions())) >= 1
    scheduled = schedule(kernel, PAIRS)
    assert scheduled.rule == "bf16-contraction", scheduled.refused
    results, given, nest = interpreted(kernel, scheduled)
    expected = interpret_function(function, [given[p.name] for p in kernel.inputs], float64=True)
    for name, want in zip(kernel.outputs, expected, strict=True):
        limit = 2e-2 if results[name].dtype == BF16 else TOLERANCE
        assert np.abs(results[name].astype(np.float64) - want).max() <= limit * np.abs(want).max()
    assert any("dot2" in str(t.value) for s in stores(nest.body) for t in s.targets)
    assert parse_nest(format_nest(nest)) == nest
    text = emit(nest, PAIRS).text
    assert "dpbf16ps" in text and "dpbf16ps" not in emit(nest, PLAIN).text


@pytest.mark.parametrize("graph", [lambda: matmul(13, 16, 37), lambda: conv(5, 4, 20, 3, pad=1)])
def test_every_decision_is_right(graph):
    (function, kernel), fused = contraction_of(graph())
    assert len(list(fused.functions())) >= 1
    first = schedule(kernel, PAIRS)
    for name, decision in first.schedule.decisions.items():
        for value in decision.candidates[:: max(1, len(decision.candidates) // 6)]:
            results, given, _ = interpreted(kernel, schedule(kernel, PAIRS, {name: value}))
            (want,) = interpret_function(function, [given[p.name] for p in kernel.inputs], float64=True)
            assert np.abs(results[kernel.outputs[0]] - want).max() <= TOLERANCE * np.abs(want).max(), (name, value)


def attention(queries, keys, depth, heads=2, shared=2, mask=None, causal=False, offset=0):
    q, k = f"1x{heads}x{queries}x{depth}xbf16", f"1x{shared}x{keys}x{depth}xbf16"
    given = [("q", q), ("k", k), ("v", k), *([("m", f"{mask}xf32")] if mask else [])]
    sizes = f"1, 1, 1, {int(bool(mask))}"
    attributes = f"scale = 0.3, causal = {str(causal).lower()}, offset = {offset}"
    names, types = ", ".join(f"%{n}" for n, _ in given), ", ".join(f"tensor<{t}>" for _, t in given)
    return graph_of(
        f'%y = "tw.attention"({names}) {{{attributes}, operandSegmentSizes = array<i32: {sizes}>}} : '
        f"({types}) -> tensor<{q}>",
        given,
        q,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"queries": 17, "keys": 9, "depth": 4},
        {"queries": 9, "keys": 7, "depth": 6, "heads": 1, "shared": 1, "mask": "9x7"},
        {"queries": 12, "keys": 17, "depth": 2, "heads": 1, "shared": 1, "causal": True, "offset": 5},
        {"queries": 9, "keys": 4, "depth": 2, "causal": True, "offset": -3, "shared": 1},
    ],
)
def test_attention_in_pairs(options):
    fused = tw.compile(attention(**options), stop_after="fuse")
    (function,) = fused.functions()
    kernel = read_kernel(function)
    results, given, nest = interpreted(kernel, schedule(kernel, PAIRS))
    (want,) = interpret_function(function, [given[p.name] for p in kernel.inputs], float64=True)
    assert np.abs(results[kernel.outputs[0]].astype(np.float64) - want).max() <= 1e-2 * np.abs(want).max()
    assert sum("dot2" in str(t.value) for s in stores(nest.body) for t in s.targets) >= 2
    model = tw.compile(attention(**options), threads=2)
    got = model(*[given[p.name] for p in kernel.inputs])[0].astype(np.float64)
    assert np.abs(got - want).max() <= 1e-2 * np.abs(want).max()


def odd_sums():
    """Names, f32 graphs with an odd sum, and how NumPy computes them in a wider type."""
    rng = np.random.default_rng(7)
    for _ in range(6):  # two activations, one of them read across
        b, m, k, n = rng.integers(1, 4), *(int(v) for v in rng.integers(2, 40, 3))
        k = 2 * k + 1
        x, w, y = f"{b}x{m + 3}x{k}xf32", f"{b}x{n + 3}x{k}xf32", f"{b}x{m + 3}x{n + 3}xf32"
        turned = f"tensor<{b}x{k}x{n + 3}xf32>"
        yield (
            f'%t = "tw.transpose"(%w) {{permutation = array<i64: 0, 2, 1>}} : (tensor<{w}>) -> {turned}\n'
            f'%y = "tw.matmul"(%x, %t) : (tensor<{x}>, {turned}) -> tensor<{y}>',
            [("x", x), ("w", w)],
            y,
            (lambda x, w: x @ w.swapaxes(1, 2)),
        )
    w = rng.standard_normal((7, 33)).astype(np.float32)
    yield (
        '%y = "tw.matmul"(%x, %w) : (tensor<1x7xf32>, tensor<7x33xf32>) -> tensor<1x33xf32>',
        [("x", "1x7xf32")],
        "1x33xf32",
        (lambda x: x @ w.astype(BF16).astype(np.float64)),
        [("w", w)],
    )
    q = "1x2x9x7xf32"
    yield (
        '%y = "tw.attention"(%q, %k, %v) {scale = 0.3, operandSegmentSizes = array<i32: 1, 1, 1, 0>} : '
        f"(tensor<{q}>, tensor<{q}>, tensor<{q}>) -> tensor<{q}>",
        [("q", q), ("k", q), ("v", q)],
        q,
        attended,
    )


def attended(q, k, v):
    e = np.exp(0.3 * q @ k.swapaxes(2, 3))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize(("body", "given", "result", "meaning", "constants"), [(*c, ())[:5] for c in odd_sums()])
def test_odd_sums_are_taken_in_pairs(body, given, result, meaning, constants):
    """They were multiplied in f32: the last number of a row had no neighbour."""
    graph = graph_of(body, given, result, constants)
    fused = tw.compile(graph, stop_after="fuse", precision="bf16")
    sums = [k for k in map(read_kernel, fused.functions()) if k.opaque or any(s.reduction for s in k.stages)]
    assert len(sums) == 1
    nest = schedule(sums[0], PAIRS).nest
    assert any("dot2" in str(t.value) for s in stores(nest.body) for t in s.targets)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal([int(n) for n in t.split("x")[:-1]]).astype(np.float32) for _, t in given]
    got = tw.compile(graph_of(body, given, result, constants), precision="bf16", threads=1)(*arrays)[0]
    want = meaning(*[a.astype(BF16).astype(np.float64) for a in arrays])
    assert np.abs(got - want).max() <= (1e-2 if sums[0].opaque else TOLERANCE) * np.abs(want).max()


def test_what_is_too_small_for_a_copy_is_not_padded():
    body = '%y = "tw.matmul"(%x, %w) : (tensor<2x9xf32>, tensor<9x8xf32>) -> tensor<2x8xf32>'
    graph = graph_of(body, [("x", "2x9xf32"), ("w", "9x8xf32")], "2x8xf32")
    assert '"tw.pad"' not in str(tw.compile(graph, stop_after="layout", precision="bf16").module)


def test_a_trace_replays():
    (_, kernel), _ = contraction_of(matmul(13, 16, 37))
    made = schedule(kernel, PAIRS).schedule
    assert str(Schedule.replay(kernel, str(made.trace)).nest()) == str(made.nest())


@pytest.mark.parametrize(
    ("graph", "machine", "reason"),
    [
        (lambda: matmul(13, 16, 37), PLAIN, "the machine has no instruction for pairs of bf16"),
        (lambda: matmul(13, 15, 37), PAIRS, "no loop of the reduction has pairs"),
    ],
)
def test_other_kernels_are_refused(graph, machine, reason):
    (_, kernel), _ = contraction_of(graph())
    scheduled = schedule(kernel, machine)
    assert scheduled.rule == "contraction"
    assert reason in dict(scheduled.refused)["bf16-contraction"]


def test_dot_refuses_what_is_no_pair():
    (_, kernel), _ = contraction_of(matmul(8, 16, 16))
    s = Schedule(kernel)
    block = kernel.stages[0].name
    m, _, k = s.loops(block)
    with pytest.raises(ScheduleError, match="not a loop of two iterations"):
        s.dot(block, k)
    with pytest.raises(ScheduleError, match="not a sum over"):
        s.dot(block, m)
    s.split(k, 2)
    s.dot(block, f"{k}_i")
    assert "dot2" in str(s.nest())


# ---- models --------------------------------------------------------------------------------------------------------


def small_model():
    """Two convolutions with a residual, a reduction and a matmul, in f32."""
    rng = np.random.default_rng(0)
    arrays = [
        ("w0", rng.standard_normal((16, 3, 3, 3)).astype(np.float32) / 5),
        ("w1", rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12),
        ("w2", rng.standard_normal((16, 10)).astype(np.float32) / 4),
    ]
    attributes = (
        "strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, "
        "operandSegmentSizes = array<i32: 1, 1, 0>"
    )
    a = "1x16x8x8xf32"
    body = f"""
      %0 = "tw.conv"(%x, %w0) {{{attributes}}} : (tensor<1x3x8x8xf32>, tensor<16x3x3x3xf32>) -> tensor<{a}>
      %1 = "tw.relu"(%0) : (tensor<{a}>) -> tensor<{a}>
      %2 = "tw.conv"(%1, %w1) {{{attributes}}} : (tensor<{a}>, tensor<16x16x3x3xf32>) -> tensor<{a}>
      %3 = "tw.add"(%2, %1) : (tensor<{a}>, tensor<{a}>) -> tensor<{a}>
      %4 = "tw.reduce_mean"(%3) {{axes = array<i64: 2, 3>, keepdims = false}} : (tensor<{a}>) -> tensor<1x16xf32>
      %y = "tw.matmul"(%4, %w2) : (tensor<1x16xf32>, tensor<16x10xf32>) -> tensor<1x10xf32>"""
    return graph_of(body, [("x", "1x3x8x8xf32")], "1x10xf32", arrays)


X = np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(("precision", "limit"), [("bf16", 2e-2), ("f16", 2e-3)])
@pytest.mark.parametrize("threads", [1, 2])
def test_models(precision, limit, threads):
    exact = tw.compile(small_model(), threads=threads)(X)[0]
    model = tw.compile(small_model(), threads=threads, precision=precision, verify=True)
    got = model(X)[0]
    assert got.dtype == np.float32 and model.inputs[0].dtype == "f32"
    assert 0 < np.abs(got - exact).max() <= limit * np.abs(exact).max()
    text = model.explain()
    assert f"precision: {precision}" in text
    assert "error of each kernel call against f32" in text
    expected = "with products of pairs" if precision == "bf16" and "avx512bf16" in host().features else "f32"
    assert expected in next(line for line in text.splitlines() if line.strip().startswith(f"{precision}: "))


def test_weights_take_half_the_memory():
    sizes = {p: sum(c.nbytes for c in tw.compile(small_model(), precision=p).package.constants) for p in ("f32", "f16")}
    assert sizes["f16"] < 0.6 * sizes["f32"]


def test_a_weight_that_overflows_stays():
    big = np.full((4, 4), 1e6, np.float32)
    body = '%y = "tw.matmul"(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>'
    graph = graph_of(body, [("x", "4x4xf32")], "4x4xf32", [("w", big)])
    assert run_pipeline(graph, parse_pipeline("precision{dtype=f16}")) == [("precision", {})]


# ---- auto ----------------------------------------------------------------------------------------------------------


def test_auto_keeps_within_the_tolerance():
    strict = tw.compile(small_model(), precision="auto", tolerance=1e-9, threads=1)
    assert "precision:" not in strict.explain() and "auto chose f32: tolerance 1e-09" in strict.explain()
    loose = tw.compile(small_model(), precision="auto", tolerance=0.5, threads=1, inputs={"x": X})
    exact = tw.compile(small_model(), threads=1)(X)[0]
    assert np.abs(loose(X)[0] - exact).max() <= 0.5 * np.abs(exact).max()
    assert "auto chose" in loose.explain()


def test_choice():
    measured = [Measured("f32", 2.0, 0.0), Measured("bf16", 1.0, 1e-2), Measured("f16", 1.5, 1e-4)]
    assert [choose(measured, t).precision for t in (1e-1, 1e-3, 1e-5)] == ["bf16", "f16", "f32"]
    assert str(measured[1]) == "bf16 1e+03 ms, error 1.0e-02"


def test_error_of_integers_is_the_share_that_differs():
    assert error_of([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 5])]) == 0.25
    assert error_of([np.array([1.0, 3.0])], [np.array([1.0, 4.0])]) == 0.25


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"precision": "fp8"}, "option 'precision' is 'fp8', which is not available"),
        ({"precision": "auto"}, "precision 'auto' needs a tolerance"),
        ({"precision": "bf16", "tolerance": 1e-2}, "precision 'bf16' takes no tolerance"),
        ({"tolerance": 1e-2}, "precision 'f32' takes no tolerance"),
        ({"precision": "auto", "tolerance": 0}, "option 'tolerance' must be a positive number or None, not 0"),
        ({"precision": "auto", "tolerance": float("nan")}, "option 'tolerance' must be a positive number"),
        ({"precision": "auto", "tolerance": "1e-2"}, "option 'tolerance' must be a positive number"),
    ],
)
def test_bad_options(chosen, message):
    with pytest.raises(UsageError) as e:
        Options.of(**chosen)
    assert message in str(e.value)


def test_auto_needs_a_whole_model():
    with pytest.raises(UsageError, match="stop_after has no meaning"):
        tw.compile(small_model(), precision="auto", tolerance=1e-2, stop_after="fuse")
