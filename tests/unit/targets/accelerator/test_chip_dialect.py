"""The MLIR dialects of chips: programs there and back, verifiers from the description."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from support.chip_programs import add_relu, bordered, float_matmul, on_chip, quantized_matmul
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from tilewright.support.errors import UsageError
from tilewright.targets.accelerator.binary import ChipProgram, Formats, Issue, fields_of
from tilewright.targets.accelerator.dialect import ChipDialect, dialect_of, from_mlir, programs, to_mlir, verify
from tilewright.targets.accelerator.race_check import check_order
from tilewright.targets.chips import outer4, systolic32

SYSTOLIC, OUTER = Formats(systolic32.CHIP()), Formats(outer4.CHIP())
CASES = {
    "quantized_matmul": (SYSTOLIC, quantized_matmul(50, 70, 80), {"i0": 16, "j0": 32, "k0": 32}, ("j0", "i0", "k0")),
    "bordered": (SYSTOLIC, bordered(8, 8, 32), {"i0": 3}, ("i0",)),
    "float_matmul": (OUTER, float_matmul(9, 20, 30), {"i0": 4, "j0": 8, "k0": 8}, ("i0", "j0", "k0")),
    "add_relu": (OUTER, add_relu(8, 9), {"i0": 3}, ("i0",)),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
    formats, kernel, tiles, order = CASES[request.param]
    return formats, on_chip(kernel, formats, tiles, order).program


def test_there_and_back(case):
    formats, program = case
    module = to_mlir(program, formats)
    verify(module)
    assert from_mlir(module, formats) == program


def test_text_parses_in_a_fresh_context(case):
    formats, program = case
    text = str(to_mlir(program, formats))
    fresh = ChipDialect(formats)
    assert fresh.context != dialect_of(formats).context
    module = fresh.parse(text)
    assert str(module) == text
    assert from_mlir(module, formats) == program


def test_several_kernels_are_functions_of_one_module():
    found = [on_chip(k, f, t, o).program for f, k, t, o in (CASES["quantized_matmul"], CASES["bordered"])]
    module = dialect_of(SYSTOLIC).module(*found)
    assert programs(module, SYSTOLIC) == found
    with pytest.raises(UsageError, match="one function, here are 2"):
        from_mlir(module, SYSTOLIC)


def test_chips_know_no_other():
    for formats in (SYSTOLIC, OUTER):
        name = formats.chip.name
        operations = {k.removeprefix(f"{name}.") for k in dialect_of(formats).kinds}
        copies = {f"{w}_{e}" for w in ("copy", "fill") for e in ("load", "store")}
        assert operations == copies | set(formats.listing.instructions)


@dataclass(frozen=True)
class Small(systolic32.Systolic32):
    """The same chip with less."""

    weight_kb: int = 2


def test_other_parameters_are_another_dialect():
    text = str(to_mlir(ChipProgram("k", {}, ()), SYSTOLIC))
    small = Formats(Small())
    with pytest.raises(UsageError, match=r"the module is for systolic32 with .*'weight_kb': 128.*this one has"):
        from_mlir(ChipDialect(small).parse(text), small)
    with pytest.raises(UsageError, match=r"it has no outer4.parameters"):
        from_mlir(ChipDialect(SYSTOLIC).parse(text), OUTER)


@dataclass(frozen=True)
class Arith(systolic32.Systolic32):
    name: ClassVar[str] = "arith"


@dataclass(frozen=True)
class Twice(systolic32.Systolic32):
    name: ClassVar[str] = "twice"

    def instructions(self):
        *others, requantize = super().instructions()
        return *others, replace(requantize, name="copy_load")


def test_names_that_are_taken():
    with pytest.raises(UsageError, match="MLIR has a dialect arith of its own"):
        ChipDialect(Formats(Arith()))
    with pytest.raises(UsageError, match="two operations copy_load"):
        ChipDialect(Formats(Twice()))


# ---- verifiers -------------------------------------------------------------------------------------------------------


def module(line: str, before: str = "") -> str:
    return f"""
func.func @k(%a: memref<100xi8>, %b: memref<?xi8>, %c: memref<100xf32>) {{
  {before}
  {line}
  return
}}
"""


LOAD = '%0 = "systolic32.copy_load"(%a) {route = "host -> weights", run = 32 : i64, count = array<i64: 1, 1, 1>}'
LOADED = f"{LOAD} : (memref<100xi8>) -> !systolic32.token"


def mma(said: str, waits: str = "") -> str:
    types = ", ".join("!systolic32.token" for w in waits.split(",") if w)
    return f'%9 = "systolic32.mma"({waits}) {{{said}}} : ({types}) -> !systolic32.token'


def load(said: str, argument: str = "%a : memref<100xi8>") -> str:
    name, _, kind = argument.partition(" : ")
    return f'%9 = "systolic32.copy_load"({name}) {{{said}}} : ({kind}) -> !systolic32.token'


SHAPE = "m = array<i64: 1, 1, 4>, n = 32 : i64, k = 32 : i64"
BOX = 'route = "host -> weights", run = 32 : i64'
WRONG = {
    "attribute": (mma(f"{SHAPE}, speed = 3 : i64"), "systolic32.mma has no attribute speed; it has m, n, k, acc, x,"),
    "number": (mma(f"{SHAPE}, x = 1.0 : f32"), "x is 1.0.* not a number"),
    "parts": (mma("m = array<i64: 4, 4>"), "m has 3 parts, not 2"),
    "stride parts": (mma(f"{SHAPE}, x_stride = array<i64: 1>"), "x_stride has 3 parts, not 1"),
    "count": (mma("m = array<i64: 2, 16, 17>"), "m is 544, it takes at most 512"),
    "no count": (mma("m = array<i64: 0, 1, 1>"), "m is 0, 1, 1, it must be at least 1"),
    "place": (mma(f"{SHAPE}, w = 4090 : i64"), "touches words 4090 to 4121 of weights, which has 4096"),
    "stride": (mma(f"{SHAPE}, x_stride = array<i64: 0, 0, -1>"), "touches words -3 to 0 of activations"),
    "start": (mma(f"{SHAPE}, start = 2 : i64"), "start is 2, it must be 0 to 1"),
    "field": (
        '%9 = "systolic32.requantize"() {low = 200 : i64} : () -> !systolic32.token',
        "low is 200, it must be -128 to 127",
    ),
    "route": (load('route = "host -> outputs", run = 32 : i64'), "no route 'host -> outputs': host -> weights, host"),
    "no route": (load("run = 32 : i64"), "needs a route: host -> weights"),
    "run": (load('route = "host -> weights"'), "run is 0, it must be at least 1"),
    "host": (load(f"{BOX}, host = 69 : i64"), "touches bytes 69 to 100 of argument 0, which has 100"),
    "host stride": (
        load(f"{BOX}, count = array<i64: 1, 1, 4>, host_stride = array<i64: 0, 0, 32>"),
        "bytes 0 to 127 of argument 0",
    ),
    "chip": (
        load(f"{BOX}, at = 4095 : i64, stride = array<i64: 0, 0, 1>, count = array<i64: 1, 1, 2>"),
        "4095 to 4096",
    ),
    "open": (load(BOX, "%b : memref<?xi8>"), "must be memref<BYTESxi8>"),
    "type": (load(BOX, "%c : memref<100xf32>"), "must be memref<BYTESxi8>"),
    "own engine": (mma(SHAPE, "%8"), "waits for systolic32.mma of its own engine array"),
    "no token": (mma(SHAPE, "%7"), "a token that no instruction gives"),
    "fill": (load(f"{BOX}, fill = 1 : i64"), "has no attribute fill"),
    "argument": (load(BOX, "%6 : memref<100xi8>"), "takes an argument of the function"),
    "no argument": (load(BOX, " : "), "takes an argument of the function"),
    "argument twice": (load(BOX, "%a, %a : memref<100xi8>, memref<100xi8>"), "waits for a token that no instruction"),
}
BEFORE = {
    "own engine": mma(SHAPE).replace("%9", "%8"),
    "no token": "%7 = builtin.unrealized_conversion_cast to !systolic32.token",
    "argument": "%6 = memref.alloc() : memref<100xi8>",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_chip_cannot_do(name):
    line, message = WRONG[name]
    with pytest.raises(UsageError, match=message) as e:
        ChipDialect(SYSTOLIC).parse(module(line, BEFORE.get(name, "")))
    operation = line.partition('"')[2].partition('"')[0]
    assert e.value.operator.startswith("line 4, column ") and operation in e.value.operator
    assert e.value.stage == "parse"


def test_the_same_without_the_mistakes():
    for line in (mma(SHAPE), load(BOX), mma(f"{SHAPE}, start = 1 : i64", "%0")):
        verify(ChipDialect(SYSTOLIC).parse(module(line, LOADED)))


def test_changed_operations_are_verified_again():
    formats, kernel, tiles, order = CASES["bordered"]
    found = to_mlir(on_chip(kernel, formats, tiles, order).program, formats)
    block = found.body.operations[0].regions[0].blocks[0]
    op = next(o for o in block.operations if o.operation.name == "systolic32.mma")
    with found.context:
        op.operation.attributes["acc"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 511)
    for judge in (verify, lambda m: from_mlir(m, formats)):
        with pytest.raises(UsageError, match="of accumulators, which has 512") as e:
            judge(found)
        assert e.value.stage == "verify" and "acc = 511" in e.value.operator


def test_what_is_no_program():
    foreign = module("%x = arith.constant 3 : i32").replace("memref<?xi8>", "memref<4xi8>").replace("xf32", "xi8")
    key = "systolic32.parameters = {array = 32 : i64, weight_kb = 128 : i64, activation_kb = 64 : i64, "
    key += "accumulator_kb = 64 : i64, bus = 32 : i64, bus_latency = 32 : i64}"
    text = f"module attributes {{{key}}} {{{foreign}}}"
    with pytest.raises(UsageError, match=r"arith.constant is not of systolic32"):
        from_mlir(ChipDialect(SYSTOLIC).parse(text), SYSTOLIC)
    with pytest.raises(UsageError, match="one function, here are 0"):
        from_mlir(ChipDialect(SYSTOLIC).parse(f"module attributes {{{key}}} {{}}"), SYSTOLIC)


def test_arguments_that_there_are_not():
    form = SYSTOLIC.forms["load"][0]
    issue = Issue(form, fields_of(form, {"arg": 3, "run": 32}))
    with pytest.raises(UsageError, match="argument 3 of 1"):
        to_mlir(ChipProgram("k", {"load": (issue,)}, (32,)), SYSTOLIC)


def test_what_mlir_itself_finds():
    for line in ('%9 = "systolic32.nothing"() : () -> !systolic32.token', '%9 = "systolic32.mma"() : () -> i32'):
        with pytest.raises(UsageError) as e:
            ChipDialect(SYSTOLIC).parse(module(line))
        assert "line 4, column" in e.value.operator


def test_passes_leave_a_program_as_it_is(case):
    """Operations do something beside giving a token: nothing may go, or become one."""
    formats, program = case
    found = to_mlir(program, formats)
    with found.context:
        PassManager.parse("builtin.module(cse,canonicalize)").run(found.operation)
    assert from_mlir(found, formats) == program


# ---- order -----------------------------------------------------------------------------------------------------------


def test_waits_are_enough(case):
    check_order(*case)


def test_a_wait_that_is_missing_is_found(case):
    """Nearly all waits are needed; some are waited for by somebody before."""
    formats, program = case
    needed = total = 0
    for engine, stream in program.streams.items():
        for i, issue in enumerate(stream):
            for other in issue.waits:
                waits = {e: n for e, n in issue.waits.items() if e != other}
                changed = (*stream[:i], replace(issue, waits=waits), *stream[i + 1 :])
                total += 1
                try:
                    check_order(formats, replace(program, streams={**program.streams, engine: changed}))
                except UsageError as e:
                    needed += 1
                    assert "two engines may meet at words" in e.message
    assert needed > 0.9 * total
