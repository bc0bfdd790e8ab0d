"""Integer instructions that MLIR's dialects have no operation for: sums of products of bytes, upper words of products.

Kernels call them as functions (``@tw_dot_vnni512_us``); `with_definitions` puts their bodies, which LLVM inlines, in
place of the declarations. A sum of products is a loop of the schedule that is laid out and has the note ``dot``, the
name of an instruction in the file `instructions.py` of a target:

    for l in vector(16): for q in unroll(4, notes={'dot': 'vnni512_us'}): acc[l] += x[k*4 + q] * w[k, l, q]

``dot4(w, a, b, c, d)`` is such a sum for a word of four bytes, ``acc[l] += dot4(w[l], x[k], x[k+1], x[k+2], x[k+3])``:
one instruction or a few, see `byte_words`.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from ...schedule.machine import DotProduct
from ...schedule.nest import For, Store
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Load, Op
from . import byte_words
from .bf16 import DotEmitter
from .host import CpuDescription
from .instructions import INSTRUCTIONS, Instruction
from .values import Value


@lru_cache(maxsize=1)
def _elsewhere() -> dict[str, Instruction]:
    """Those in the file `instructions.py` of other targets' folders, which use this code generator."""
    found: dict[str, Instruction] = {}
    for path in Path(__file__).parents[1].glob("*/instructions.py"):
        module = importlib.import_module(f"tilewright.targets.{path.parent.name}.instructions")
        found.update((i.name, i) for i in module.INSTRUCTIONS)
    return found


def instruction(name: str) -> Instruction | None:
    """That of a function that kernels call."""
    return next((i for i in INSTRUCTIONS if i.name == name), None) or _elsewhere().get(name)


def dot_of(name: str) -> DotProduct:
    """The sum of products with the name that a note ``dot`` has; CompileError if there is none."""
    found = instruction(f"tw_dot_{name}")
    if found is None or found.dot is None:
        raise CompileError(f"there is no instruction {name!r} for products of bytes", stage="emit")
    return found.dot


class IntegerEmitter(DotEmitter):
    """Emission of ``mulhsi`` and of loops with the note ``dot``."""

    #: our functions that the kernel calls, name -> declaration
    declared: dict[str, str]

    def call(self, name: str, args: list[Value], result: Value) -> Value:
        """A call of one of the functions that `with_definitions` knows."""
        types = f"({', '.join(a.type for a in args)}) -> {result.type}"
        self.declared[name] = f"func.func private @{name}{types}"
        return Value(
            self.op(f"func.call @{name}({', '.join(a.ssa for a in args)}) : {types}"), result.dtype, result.width
        )

    def apply(self, e: Op, args: list[Value]) -> Value:
        if e.op != "mulhsi":
            return super().apply(e, args)
        args, width = self._even(args)
        return self.call(f"tw_mulhsi_{width}", args, Value("", "i32", width))

    # ---- products of the bytes of words ----

    def _emit(self, e: Expr, memo: dict[int, Value]) -> Value:
        if isinstance(e, Op) and e.op == "dot4":
            return self.word_product(e, Value(self.const(0, "i32"), "i32"))
        return super()._emit(e, memo)

    def word_product(self, e: Op, acc: Value) -> Value:
        """``acc + dot4(w, x0, x1, x2, x3)``."""
        word = self.expr(e.args[0])
        args, width = self._even([acc, word, self.four_bytes(e.args[1:])])
        mask = e.args[0].args[1] if isinstance(e.args[0], Op) and e.args[0].op == "andi" else None
        small = isinstance(mask, Const) and mask.value >= 0 and mask.value & 0x80808080 == 0
        return self.call(f"{byte_words.PREFIX}{7 if small else 8}_{width}", args, Value("", "i32", width))

    def four_bytes(self, parts: tuple[Expr, ...]) -> Value:
        """Four signed bytes as a word: read at once where they lie side by side, the same for all lanes."""
        loads = [x for x in parts if isinstance(x, Load) and self.buffers[x.buffer].scope != "register"]
        side_by_side = len(loads) == 4 and all(self.neighbours(x, y) for x, y in pairwise(loads))
        if side_by_side and (self.vector is None or self.lane_stride(loads[0].buffer, loads[0].indices) == 0):
            return self._word(loads[0], 4)
        word: Value | None = None
        for i, x in enumerate(parts):
            part = self.elementwise("arith.extui", [self.expr(x)], "i32")
            part = self.elementwise("arith.shli", [part, Value(self.const(8 * i, "i32"), "i32")], "i32")
            word = part if word is None else self.elementwise("arith.ori", [word, part], "i32")
        assert word is not None
        return word

    # ---- sums of products ----

    def dot_loop(self, s: For) -> bool:
        """Emit a laid-out loop as one instruction; False for one that is too short for it to pay."""
        name = s.note("dot")
        if name is None:
            return False
        dot = dot_of(name)
        lanes, depth = dot.lanes, dot.depth
        acc, row, column = self._factors(s)
        if (self.vector.width if self.vector else 0) != lanes or (lanes == 0 and depth == 4 and s.trip != depth):
            if lanes:
                raise self.no_dot(s, f"it is not in a vector of {lanes} lanes")
            return False
        with self.bind(s.var, 0):
            if lanes:
                if self.lane_stride(row.buffer, row.indices) != 0:
                    row, column = column, row
                first, second = self._word(row, s.trip or 0), self._group(column, lanes, depth)
                first = Value(self.op(f"vector.broadcast {first.ssa} : i32 to vector<{lanes}xi32>"), "i32", lanes)
                arguments = [self.as_vector(self.expr(acc)), first, second]
                result = Value("", "i32", lanes)
            elif depth == 4:
                arguments = [self.expr(acc), self._word(row, 4), self._word(column, 4)]
                result = Value("", "i32")
            else:
                arguments = [self.expr(acc), self._bytes(row, depth, s.trip), self._bytes(column, depth, s.trip)]
                result = Value("", "i32")
            value = self.call(f"tw_dot_{name}", arguments, result)
            assert isinstance(s.body, Store)
            self.write(s.body.targets[0], value)
        return True

    def no_dot(self, s: For, why: str) -> CompileError:
        return CompileError(f"loop {s.var} is no sum of products of bytes: {why}", stage="emit")

    def _factors(self, s: For) -> tuple[Expr, Load, Load]:
        """(accumulator, bytes along the rows, bytes along the columns) of ``acc += ext(x) * ext(y)``."""
        t = s.body.targets[0] if isinstance(s.body, Store) and len(s.body.targets) == 1 else None
        v = t.value if t is not None else None
        if t is not None and isinstance(v, Op) and v.op == "addi":
            for acc, product in (v.args, v.args[::-1]):
                own = isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices
                if own and isinstance(product, Op) and product.op == "muli":
                    x, y = (a.args[0] if isinstance(a, Op) and len(a.args) == 1 else a for a in product.args)
                    if isinstance(x, Load) and isinstance(y, Load) and x.dtype == y.dtype == "i8":
                        return acc, x, y
        raise self.no_dot(s, "it does not add a product of two bytes")

    def _word(self, x: Load, count: int) -> Value:
        """`count` neighbouring bytes as an i32, the first lowest; zeros above."""
        buffer = self.buffers[x.buffer]
        base = self.address(buffer, x.indices, lane0=self.vector is not None).ssa
        memory, kind = self.memory[buffer.name], self.memref(buffer)
        if count == 4:
            text = f"vector.load {memory}[{base}] : {kind}, vector<4xi8>"
            loaded = self.remember(buffer, text, Value("", "i8", 4))
            one = self.op(f"vector.bitcast {loaded.ssa} : vector<4xi8> to vector<1xi32>")
            return Value(self.op(f"vector.extract {one}[0] : i32 from vector<1xi32>"), "i32")
        word: Value | None = None
        for i in range(count):
            at = self.op(f"arith.addi {base}, {self.const(i, 'index')} : index") if i else base
            byte = self.remember(buffer, f"memref.load {memory}[{at}] : {kind}", Value("", "i8"))
            part = self.elementwise("arith.extui", [byte], "i32")
            if i:
                part = self.elementwise("arith.shli", [part, Value(self.const(8 * i, "i32"), "i32")], "i32")
            word = part if word is None else self.elementwise("arith.ori", [word, part], "i32")
        assert word is not None
        return word

    def _group(self, x: Load, lanes: int, depth: int) -> Value:
        """The words of all lanes; the buffer is packed, so that it may be read to the end of the tile."""
        buffer = self.buffers[x.buffer]
        if self.lane_stride(x.buffer, x.indices) != depth or x.buffer not in self.packed:
            raise CompileError(f"{x.buffer} is not packed for its instruction", stage="emit")
        base = self.address(buffer, x.indices, lane0=True).ssa
        count = lanes * depth
        text = f"vector.load {self.memory[buffer.name]}[{base}] : {self.memref(buffer)}, vector<{count}xi8>"
        loaded = self.remember(buffer, text, Value("", "i8", count))
        return Value(self.op(f"vector.bitcast {loaded.ssa} : vector<{count}xi8> to vector<{lanes}xi32>"), "i32", lanes)

    def _bytes(self, x: Load, depth: int, trip: int | None) -> Value:
        """`depth` neighbouring bytes as a vector, zeros behind the first `trip`."""
        buffer = self.buffers[x.buffer]
        base = self.address(buffer, x.indices).ssa
        memory, kind, shape = self.memory[buffer.name], self.memref(buffer), f"vector<{depth}xi8>"
        if trip == depth or x.buffer in self.packed:
            text = f"vector.load {memory}[{base}] : {kind}, {shape}"
        else:
            mask = self.op(f"vector.constant_mask [{trip}] : vector<{depth}xi1>")
            zero = self.const(0, "i8", depth)
            text = (
                f"vector.maskedload {memory}[{base}], {mask}, {zero} : {kind}, vector<{depth}xi1>, {shape} into {shape}"
            )
        return self.remember(buffer, text, Value("", "i8", depth))


# ---- definitions in LLVM IR ----------------------------------------------------------------------------------------


def with_definitions(text: str, description: CpuDescription) -> str:
    """LLVM IR with the declarations of our functions replaced by their definitions for a processor."""
    wanted = re.findall(r"^declare [^\n]*@(tw_(?:mulhsi|dot)_\w+)\([^\n]*$", text, flags=re.M)
    if not wanted:
        return text
    text = re.sub(r"^declare [^\n]*@tw_(?:mulhsi|dot)_\w+\([^\n]*\n", "", text, flags=re.M)
    return text + "\n" + "\n".join(_definition(name, description) for name in wanted)


def _definition(name: str, description: CpuDescription) -> str:
    if name.startswith(byte_words.PREFIX):
        return byte_words.definition(name, description)
    found = instruction(name)
    if found is not None and (found.dot is not None or found.there(description)):
        return found.definition.replace("@NAME", f"@{name}")
    if not name.startswith("tw_mulhsi_"):
        raise CompileError(f"there is no function {name!r}", stage="assemble")
    return _upper_word(name, int(name.rpartition("_")[2]))  # in the way of all processors


def _upper_word(name: str, lanes: int) -> str:
    i32, i64 = (f"<{lanes} x i{n}>" if lanes else f"i{n}" for n in (32, 64))
    count = "splat (i64 32)" if lanes else "32"
    return f"""define internal {i32} @{name}({i32} %a, {i32} %b) alwaysinline nounwind {{
  %x = sext {i32} %a to {i64}
  %y = sext {i32} %b to {i64}
  %product = mul nsw {i64} %x, %y
  %upper = lshr {i64} %product, {count}
  %result = trunc {i64} %upper to {i32}
  ret {i32} %result
}}
"""
