"""Running sums, top-k, scatter and places of what is not zero on devices, and in the CUDA emulator, against ONNX's
reference or NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from support import opaque_kernels as ops
from support.cuda_driver import EmulatedDriver, runner
from support.cuda_emulator import needs_compiler
from support.gpus import device_of
from support.ptxas import assembled

import tilewright as tw
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.finish import finish
from tilewright.schedule.rules.gpu import top_k
from tilewright.targets.cuda import stages
from tilewright.targets.cuda.description import SM_80
from tilewright.targets.cuda.driver import Driver

KINDS = ("cumsum", "top_k", "scatter_elements", "scatter_nd", "non_zero")
DTYPES = {"float": "f4", "float16": "f2", "int32": "i4"}


def model(inputs: dict, results: str, body: str, **constants):
    """`inputs`: (dtype, shape) by name."""
    told = ", ".join(f"{d}[{', '.join(map(str, s))}] {n}" for n, (d, s) in inputs.items())
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> m ({told}) => ({results}) {{ {body} }}')
    made.graph.initializer.extend(numpy_helper.from_array(np.array(c), n) for n, c in constants.items())
    return made


def drawn(seed: int):
    """A model, its inputs and its results."""
    draw, numbers, kind = random.Random(seed), np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    shape = [draw.choice((1, 3, 8, 17, 40)) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.4:
        shape = [draw.choice((1, 2)), draw.choice((300, 1000, 2049))]
    axis, dtype = draw.randrange(len(shape)), draw.choice(list(DTYPES))
    x = numbers.integers(-9, 10, shape).astype(DTYPES[dtype])
    given = {"x": (dtype, shape)}
    if kind == "cumsum":
        reverse, exclusive = draw.randint(0, 1), draw.randint(0, 1)
        body = f"a = Abs(x) b = CumSum<reverse={reverse}, exclusive={exclusive}>(a, axis) y = Neg(b)"
        made = model(given, f"{dtype} y", body, axis=axis)
        wide = ops.scanned(np.abs(x).astype("f8"), axis, bool(reverse), bool(exclusive))
        return made, [x], [-wide.astype(x.dtype)]
    if kind == "top_k":
        k, largest = draw.randint(1, min(shape[axis], 60)), draw.randint(0, 1)
        made = model(given, f"{dtype} y, int64 p", f"y, p = TopK<axis={axis}, largest={largest}>(x, k)", k=[k])
        return made, [x], list(ops.first_of(x, k, axis, bool(largest)))
    if kind == "non_zero":
        x = x * (numbers.random(shape) < 0.5)
        return (
            model(given, "int64[rank, count] y", "y = NonZero(x)"),
            [x.astype(DTYPES[dtype])],
            [np.array(np.nonzero(x))],
        )
    reduction = draw.choice(("none", "none", "add"))
    if kind == "scatter_elements":
        at = [draw.randint(1, 9) if d == axis else n for d, n in enumerate(shape)]
        indices, more = numbers.integers(-shape[axis], shape[axis], at), at
        body = f'a = Neg(x) y = ScatterElements<axis={axis}, reduction="{reduction}">(a, i, u)'
    else:
        depth, count = draw.randint(1, len(shape)), draw.randint(1, 40)
        at, more = [count, depth], [count, *shape[depth:]]
        indices = np.stack([numbers.integers(-n, n, count) for n in shape[:depth]], -1)
        body = f'a = Neg(x) y = ScatterND<reduction="{reduction}">(a, i, u)'
    updates = numbers.integers(-3, 4, more).astype(x.dtype)
    made = model(given | {"i": ("int64", at), "u": (dtype, more)}, f"{dtype} y", body)
    return made, [x, indices, updates], [ops.scattered(kind, -x, indices, updates, reduction, axis)]


def check(found, wanted) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape and np.array_equal(got, want)


@pytest.mark.parametrize("seed", range(15))
def test_vulkan(seed):
    device_of("vulkan")
    made, given, wanted = drawn(seed)
    check(tw.compile(made, target="vulkan" if seed < 10 else "vulkan:text=spirv")(*given), wanted)


@pytest.mark.parametrize("seed", range(100, 110))
def test_opencl(seed):
    device_of("opencl")
    made, given, wanted = drawn(seed)
    check(tw.compile(made, target="opencl")(*given), wanted)


def emulated(made, given, wanted, monkeypatch):
    """Results of a model in the emulator, and the kernels that ran."""
    emitted, original = {}, stages.emit

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    monkeypatch.setattr(stages, "emit", recorded)
    package = tw.compile(made, target="cuda", cache=False).package
    found = [np.empty(w.shape, w.dtype) for w in wanted]
    driver = EmulatedDriver(emitted)
    addresses = [[a.ctypes.data for a in arrays] for arrays in (given, found)]
    runner(package, lambda: Driver(driver)).context().run(*addresses)
    return found, driver.launches


@needs_compiler
@pytest.mark.parametrize("seed", [s for s in range(200, 212) if KINDS[s % len(KINDS)] != "non_zero"])
def test_cuda(seed, monkeypatch):
    made, given, wanted = drawn(seed)
    check(emulated(made, given, wanted, monkeypatch)[0], wanted)


@needs_compiler
def test_a_long_line_is_summed_up_in_slices(monkeypatch):
    x = np.random.default_rng(0).integers(-4, 5, 9001).astype("f4")
    made = model({"x": ("float", x.shape)}, "float y", "y = CumSum<exclusive=1, reverse=1>(x, axis)", axis=0)
    (want,) = ReferenceEvaluator(made).run(None, {"x": x})
    found, launched = emulated(made, [x], [want], monkeypatch)
    check(found, [want])
    assert sum("cumsum" in name for name in launched) == 2 and sum("reduce_sum" in name for name in launched) == 1


@needs_compiler
def test_where_the_result_takes_the_place_of_the_data_nothing_is_copied(monkeypatch):
    """The copy stands under a comparison of the two addresses, and what was updated is right."""
    x, u = np.arange(4096, dtype="f4").reshape(64, 64), np.ones((2, 64), "f4")
    made = model(
        {"x": ("float", x.shape), "i": ("int64", (2, 1)), "u": ("float", u.shape)}, "float y",
        "a = Neg(x) b = ScatterND(a, i, u) y = Softmax(b)",
    )  # fmt: skip
    indices = np.array([[3], [-1]])
    scattered = ops.scattered("scatter_nd", -x, indices, u, "none")
    want = np.exp(scattered - scattered.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    (found,), _ = emulated(made, [x, indices, u], [want], monkeypatch)
    np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize(
    "plan", [("select", 1, 1024, 21), ("select", 1, 512, 0), ("rank", 1, 128, 4), ("sort", 1, 512, 0)]
)
def test_what_the_assembler_makes_of_them(plan, tmp_path):
    size = 2048 if plan[0] == "sort" else 21 * 1024
    nest = finish(top_k.apply(ops.top_k((1, size), 50, "f32", 1, True), SM_80, {"plan": plan}).nest())
    taken = assembled(ptx(emit(nest, SM_80), SM_80.llvm), "sm_80", tmp_path)
    assert taken.spilled == 0 and taken.registers <= 64 * 1024 // plan[2]
