"""Builder of operations of MLIR's `spirv` dialect: constants, variables, structured branches and loops.

Integers are signed (``si32``): who reads SPIR-V may take what has no sign for unsigned. What is unsigned is done on
``ui32`` between bitcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ..gpu.text import KernelText

#: dtypes -> what they are computed in: small integers in 32 bits, halves in f32
KINDS = {"f32": "f32", "f16": "f32", "bf16": "f32", "f64": "f64", "i64": "si64", "i1": "i1"}
KINDS |= dict.fromkeys(("i32", "index", "i16", "i8"), "si32")
#: LLVM's names -> operations, those on unsigned numbers, and comparisons
_SIGNED = {"add": "IAdd", "sub": "ISub", "mul": "IMul", "sdiv": "SDiv", "srem": "SRem", "xor": "BitwiseXor"}
_SIGNED |= {"and": "BitwiseAnd", "or": "BitwiseOr", "shl": "ShiftLeftLogical", "ashr": "ShiftRightArithmetic"}
_UNSIGNED = {"udiv": "UDiv", "urem": "UMod", "lshr": "ShiftRightLogical"}
_TESTS = {"eq": "IEqual", "ne": "INotEqual"}
_ORDER = {"lt": "LessThan", "le": "LessThanEqual", "gt": "GreaterThan", "ge": "GreaterThanEqual"}
#: operations whose second operand is a number of bits, which has 32 bits itself
_SHIFTS = ("ShiftLeftLogical", "ShiftRightArithmetic", "ShiftRightLogical")


class SpirvText(KernelText):
    """`variables` are a thread's own, which stand in front of all else."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: list[str] = []
        self._constants: dict[str, str] = {}

    # ---- values

    def constant(self, value: str, kind: str) -> str:
        """A constant of a type, known everywhere."""
        text = f"spirv.Constant {value}" if kind == "i1" else f"spirv.Constant {value} : {kind}"
        if text not in self._constants:
            self._constants[text] = self.fresh()
            self.entry.append(f"  {self._constants[text]} = {text}")
        return self._constants[text]

    def apply(self, name: str, kind: str, *args: str) -> str:
        """An operation on operands of one type."""
        return self.op(f"spirv.{name} {', '.join(args)} : {kind}")

    def convert(self, name: str, x: str, kind: str, to: str) -> str:
        return x if kind == to else self.op(f"spirv.{name} {x} : {kind} to {to}")

    def select(self, cond: str, a: str, b: str, kind: str) -> str:
        return a if a == b else self.op(f"spirv.Select {cond}, {a}, {b} : i1, {kind}")

    def whole(self, name: str, kind: str, a: str, b: str) -> str:
        """An operation on integers as LLVM calls it."""
        name = name.partition(" ")[0]
        if name in _SIGNED:
            return self._binary(_SIGNED[name], kind, a, b)
        unsigned = kind.replace("s", "u")
        a, b = (self.convert("Bitcast", x, kind, unsigned) for x in (a, b))
        return self.convert("Bitcast", self._binary(_UNSIGNED[name], unsigned, a, b), unsigned, kind)

    def _binary(self, name: str, kind: str, a: str, b: str) -> str:
        if name not in _SHIFTS:
            return self.apply(name, kind, a, b)
        short = f"{kind[0]}i32"
        b = self.convert("Bitcast", self.convert(f"{kind[0].upper()}Convert", b, kind, short), short, "ui32")
        return self.op(f"spirv.{name} {a}, {b} : {kind}, ui32")

    def compare(self, predicate: str, kind: str, a: str, b: str) -> str:
        """A comparison of integers as LLVM calls it."""
        if predicate in _TESTS:
            return self.apply(_TESTS[predicate], kind, a, b)
        if predicate[0] == "u":
            a, b = (self.convert("Bitcast", x, kind, kind.replace("s", "u")) for x in (a, b))
            return self.apply(f"U{_ORDER[predicate[1:]]}", kind.replace("s", "u"), a, b)
        return self.apply(f"S{_ORDER[predicate[1:]]}", kind, a, b)

    # ---- indices and truth values

    def number(self, value: int) -> str:
        return self.constant(str(value), "si32")

    def integer(self, name: str, a: str, b: str) -> str:
        return self.whole(name, "si32", a, b)

    def test(self, predicate: str, a: str, b: str) -> str:
        return self.compare(predicate, "si32", a, b)

    def choose(self, cond: str, a: str, b: str) -> str:
        return self.select(cond, a, b, "si32")

    def both(self, a: str, b: str) -> str:
        return self.apply("LogicalAnd", "i1", a, b)

    def opposite(self, a: str) -> str:
        return self.apply("LogicalNot", "i1", a)

    def truth(self, a: str) -> str:
        return self.choose(a, self.number(1), self.number(0))

    # ---- memory

    def variable(self, kind: str) -> str:
        """The pointer to a variable of the thread's own."""
        name = self.fresh()
        self.variables.append(f"  {name} = spirv.Variable : {pointer(kind, 'Function')}")
        return name

    def load(self, where: str, kind: str, storage: str = "Function") -> str:
        return self.result(f'spirv.Load "{storage}" {where} : {kind}')

    def store(self, where: str, value: str, kind: str, storage: str = "Function") -> None:
        self.line(f'spirv.Store "{storage}" {where}, {value} : {kind}')

    # ---- blocks

    def label(self, what: str) -> str:
        self._count += 1
        return f"^{what}{self._count}"

    def block(self, label: str, *args: str) -> None:
        self.lines.append(f"  {label}({', '.join(args)}):" if args else f"  {label}:")

    def branch(self, label: str, *args: str) -> None:
        self.line(f"spirv.Branch {label}({', '.join(args)})" if args else f"spirv.Branch {label}")

    @contextmanager
    def where(self, cond: str, label: str = "then") -> Iterator[None]:
        inside, after = self.label(label), self.label("after")
        self.line("spirv.mlir.selection {")
        self.line(f"spirv.BranchConditional {cond}, {inside}, {after}")
        self.block(inside)
        with self.scope():
            yield
        self.branch(after)
        self._merge(after)

    @contextmanager
    def counted(self, extent: str) -> Iterator[str]:
        number = self.fresh()
        with self._loop(lambda: self.test("slt", number, extent), number):
            yield number

    def repeated(self, cond: Callable[[], str]) -> AbstractContextManager[None]:
        """A loop while a condition holds, which a function emits."""
        return self._loop(cond)

    @contextmanager
    def _loop(self, cond: Callable[[], str], number: str = "") -> Iterator[None]:
        """A loop whose iterations have a number, if that has a name."""
        head, body, following, after = (self.label(x) for x in ("head", "body", "next", "done"))
        self.line("spirv.mlir.loop {")
        self.branch(head, *([f"{self.number(0)} : si32"] if number else []))
        self.block(head, *([f"{number}: si32"] if number else []))
        with self.scope():
            more = cond()
        self.line(f"spirv.BranchConditional {more}, {body}, {after}")
        self.block(body)
        with self.scope():
            yield
        self.branch(following)
        self.block(following)
        with self.scope():
            advanced = [f"{self.integer('add', number, self.number(1))} : si32"] if number else []
        self.branch(head, *advanced)
        self._merge(after)

    def _merge(self, after: str) -> None:
        """Where those meet who left a branch or a loop."""
        self.block(after)
        self.line("spirv.mlir.merge")
        self.line("}")


def pointer(kind: str, storage: str) -> str:
    return f"!spirv.ptr<{kind}, {storage}>"
