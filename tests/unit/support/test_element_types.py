"""The table of element types, and that everything beside it covers every type or says why not."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from torch_mlir import ir

import tilewright as tw
from tilewright.codegen.clike.c99 import C_TYPES, HEADER_TYPES, UNSIGNED
from tilewright.codegen.vector.values import BYTES, constant_text
from tilewright.driver import verify
from tilewright.frontends.onnx.reader import DTYPES as OF_ONNX
from tilewright.frontends.onnx.reader import PACKED
from tilewright.graph import matching
from tilewright.graph.simplify_math import lossless
from tilewright.ir.context import use
from tilewright.ir.types import Type, element_type, signless, type_of
from tilewright.ops.common import KINDS
from tilewright.schedule.machine import lanes
from tilewright.support import sub_byte
from tilewright.support.dtypes import FLOATS, HALVES, INTS, LOOP_TYPES, NUMPY, TABLE, TYPES, named, wide
from tilewright.targets.cpu.description import host
from tilewright.tune import runner

each = pytest.mark.parametrize("t", TABLE, ids=lambda t: t.name)


def numbers(t):
    """Every code of a small type, some numbers of a large one."""
    if t.bits <= 8 and t.kind != "bool":
        codes = np.arange(1 << t.bits, dtype=np.uint8)
        return codes.view(t.numpy)
    rng = np.random.default_rng(t.bits)
    if t.kind in ("int", "uint"):
        limits = np.iinfo(t.numpy)
        return np.array([limits.min, limits.max, 0, 1, limits.max // 3], t.numpy)
    return (rng.standard_normal(64) * 4).astype(t.numpy)


def test_records_are_distinct():
    assert len(TYPES) == len({t.numpy for t in TABLE}) == len({t.onnx for t in TABLE}) == len(TABLE)


@each
def test_numpy_knows_it(t):
    assert named(t.name) == named(t.numpy) == t.name
    kinds = {"float": "fV", "int": "iV", "uint": "uV", "bool": "b"}  # V: of ml_dtypes
    assert t.numpy.kind in kinds[t.kind] and t.nbytes == max(t.bits, 8) // 8
    assert not t.computed or not TYPES[t.computed].computed


@each
def test_mlir_has_the_type(t):
    with use():
        assert str(element_type(t.name)) == t.name
        assert Type((2, None), t.name) == type_of(ir.Type.parse(f"tensor<2x?x{t.name}>"))
        assert str(element_type(signless(t.name))) == t.signless
    assert (t.name in LOOP_TYPES) == (t.signless == t.name)


@each
def test_a_float_has_the_codes_of_its_format(t):
    if t.format is None:
        assert t.kind != "float" or t.name == sub_byte.SCALE
        return
    f, info = t.format, ml_dtypes.finfo(t.numpy)
    assert (f.mantissa, f.exponent, f.bias) == (info.nmant, info.nexp, 1 - info.minexp)
    code = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[t.nbytes * 8]

    def decoded(value):
        return np.array(value, code).view(t.numpy)

    assert decoded(f.top) == info.max
    assert f.infinity is None or decoded(f.infinity) == np.inf
    assert f.nan is None or np.isnan(decoded(f.nan))
    assert f.unsigned_zero or np.signbit(decoded(f.sign))


def test_onnx_codes():
    """Strings and complex numbers are no elements here; nothing decodes floats of 6 bits yet."""
    missing = {"UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128", "FLOAT6E2M3", "FLOAT6E3M2"}
    names = dict(TensorProto.DataType.items())
    assert {names[t.onnx]: t.name for t in TABLE if t.onnx in names} == OF_ONNX
    assert {*names} - {t.onnx for t in TABLE} <= missing
    for code, name in OF_ONNX.items():
        assert helper.tensor_dtype_to_np_dtype(code) == NUMPY[name]
    assert PACKED == {"f4E2M1FN": 2, "i4": 2, "ui4": 2, "i2": 4, "ui2": 4}


def test_operators_sort_every_type():
    assert sorted(KINDS["any"]) == sorted(TYPES)
    assert FLOATS == ("f64", "f32", "f16", "bf16") and HALVES == ("f16", "bf16")
    assert INTS == ("i64", "i32", "i16", "i8", "ui64", "ui32", "ui16", "ui8")
    assert {wide(n) for n in FLOATS} == {"f64", "f32"} and all(wide(n) == n for n in (*INTS, "i1", "index", "i4"))


@pytest.mark.parametrize("source", [*FLOATS, *INTS])
def test_casts_that_lose_nothing(source):
    """A cast counts as lossless exactly if all extreme numbers come back."""
    t = TYPES[source]
    if t.kind == "float":
        info = ml_dtypes.finfo(t.numpy)
        extreme = np.array([info.max, info.smallest_subnormal, 1 + float(info.eps), info.max - info.max / 64], t.numpy)
    else:
        info = np.iinfo(t.numpy)
        extreme = np.array([info.min, info.max, info.max - 1], t.numpy)

    def exact(x):  # Python compares its integers and floats exactly
        return int(x) if x.dtype.kind in "iu" else float(x)

    for target in (*FLOATS, *INTS):
        with np.errstate(all="ignore"):
            there = extreme.astype(NUMPY[target])
        same = [exact(x) for x in extreme] == [exact(x) for x in there]
        assert lossless(source, target) == same, target


def test_loop_nests_have_lanes_and_bytes_for_every_type():
    vector = host().vector_bytes
    assert BYTES == {
        "f64": 8,
        "f32": 4,
        "f16": 2,
        "bf16": 2,
        "i64": 8,
        "i32": 4,
        "i16": 2,
        "i8": 1,
        "i1": 1,
        "index": 8,
    }
    for name, size in BYTES.items():
        assert lanes(host(), name) == max(vector // max(size, 4), 1)
        assert constant_text(1, name, 0).endswith({"i1": "true"}.get(name, f" : {name}"))


@pytest.mark.parametrize("name", FLOATS)
def test_constants_that_are_no_numbers(name):
    code = {8: np.uint64, 4: np.uint32, 2: np.uint16}[NUMPY[name].itemsize]
    for value in (np.inf, -np.inf, np.nan):
        text = constant_text(value, name, 0).partition(" ")[0]
        np.testing.assert_array_equal(np.array(int(text, 16), code).view(NUMPY[name]).astype(np.float64), value)


def test_c_has_every_type_but_halves():
    """C99 has no floats of 16 bits; kernels that need one are refused with the dtype's name."""
    assert {*LOOP_TYPES} - {*C_TYPES} == {*HALVES}
    assert {t.name for t in TABLE if not t.computed} - {*HEADER_TYPES} == {*HALVES}
    assert {*UNSIGNED} == {n for n in C_TYPES if n not in FLOATS}
    assert C_TYPES["index"] == "int32_t" and UNSIGNED["index"] == "uint32_t"
    assert (C_TYPES["i1"], C_TYPES["i16"], HEADER_TYPES["ui16"], UNSIGNED["i16"]) == (
        "uint8_t", "int16_t", "uint16_t", "uint16_t",
    )  # fmt: skip


def test_every_float_has_its_tolerances():
    for table in (verify.KERNEL_TOLERANCE, verify.MODEL_TOLERANCE, runner.TOLERANCE, matching.TOLERANCE):
        assert {*table} == {*FLOATS}


@pytest.mark.parametrize("t", [t for t in TABLE if t.computed], ids=lambda t: t.name)
def test_a_stored_type_through_a_compiled_model(t):
    x = numbers(t)
    n, to = len(x), TYPES[t.computed]
    text = f"""func.func @main(%x: tensor<{n}x{t.name}> {{tw.name = "x"}})
        -> (tensor<{n}x{to.name}> {{tw.name = "y"}}, tensor<{n}x{t.name}> {{tw.name = "z"}}) {{
      %0 = "tw.cast"(%x) {{to = "{to.name}"}} : (tensor<{n}x{t.name}>) -> tensor<{n}x{to.name}>
      %1 = "tw.cast"(%0) {{to = "{t.name}"}} : (tensor<{n}x{to.name}>) -> tensor<{n}x{t.name}>
      return %0, %1 : tensor<{n}x{to.name}>, tensor<{n}x{t.name}> }}"""
    y, z = tw.compile(text, threads=1, jobs=1)(x)
    np.testing.assert_array_equal(y, x.astype(to.numpy))
    np.testing.assert_array_equal(z.astype(np.float32), sub_byte.encode(y, t.name).astype(np.float32))
