"""Builder of a GPU kernel's LLVM IR as text: basic blocks, allocas, and declarations of the module."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ...support.dtypes import FLOATS
from ...tensor.evaluate import NUMPY
from ..gpu import text as gpu
from ..gpu.open_launch import BYTES

_TYPES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double", "index": "i32"}


class GpuLlvmValue(gpu.SsaValue):
    """A name or a literal of LLVM IR, with its dtype."""

    @property
    def typed(self) -> str:
        return f"{llvm_type(self.dtype)} {self.ssa}"


def llvm_type(dtype: str) -> str:
    """What LLVM calls a dtype; indices have 32 bits.

    >>> llvm_type("bf16"), llvm_type("i8"), llvm_type("index")
    ('bfloat', 'i8', 'i32')
    """
    return _TYPES.get(dtype, dtype)


def storage(dtype: str) -> str:
    """The type of an element in memory."""
    return "i8" if dtype == "i1" else llvm_type(dtype)


def literal(value: float, dtype: str) -> str:
    """A constant; those of floats by their bits.

    >>> literal(1.5, "f32"), literal(True, "i1"), literal(255, "i8")
    ('0x3FF8000000000000', 'true', '-1')
    """
    if dtype == "i1":
        return "true" if value else "false"
    if dtype in ("f32", "f64"):
        with np.errstate(all="ignore"):
            return f"0x{struct.unpack('<Q', struct.pack('<d', float(NUMPY[dtype].type(value))))[0]:016X}"
    if dtype in FLOATS:
        bits = int(np.asarray(value).astype(NUMPY[dtype]).view(np.uint16))
        return f"0x{'H' if dtype == 'f16' else 'R'}{bits:04X}"
    bits = 8 * BYTES[dtype]
    number = int(value) & (1 << bits) - 1
    return str(number - (1 << bits) if number >> bits - 1 else number)


class GpuLlvmBuilder(gpu.KernelText):
    """See the module. `globals_` is the kernel's memory beside the stack, `label` the block at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.globals_: list[str] = []
        self.declared: dict[str, str] = {}
        self.label = "entry"

    # ---- indices and truth values

    def number(self, value: int) -> str:
        return str(value)

    def integer(self, name: str, a: str, b: str) -> str:
        return self.op(f"{name} i32 {a}, {b}")

    def test(self, predicate: str, a: str, b: str) -> str:
        return self.op(f"icmp {predicate} i32 {a}, {b}")

    def choose(self, cond: str, a: str, b: str) -> str:
        return self.op(f"select i1 {cond}, i32 {a}, i32 {b}")

    def both(self, a: str, b: str) -> str:
        return self.op(f"and i1 {a}, {b}")

    def opposite(self, a: str) -> str:
        return self.op(f"xor i1 {a}, true")

    def truth(self, a: str) -> str:
        return self.op(f"zext i1 {a} to i32")

    # ---- calls and memory

    def call(self, function: str, result: str, args: Sequence[str], *, pure: bool = False) -> str:
        """A call, declared too; each argument is ``type value``. "" for one without a result."""
        types = [a.rpartition(" ")[0] for a in args]
        self.declared[function] = f"declare {result} @{function}({', '.join(types)})"
        text = f"call {result} @{function}({', '.join(args)})"
        if result == "void":
            self.line(text)
            return ""
        return self.op(text) if pure else self.result(text)

    def stack(self, kind: str, count: int, align: int, space: str = "") -> str:
        """The address of an array of the thread's own, in an address space if that is another than 0."""
        name = self.fresh()
        self.entry.append(f"  {name} = alloca [{count} x {kind}], align {align}{f', {space}' if space else ''}")
        return name

    # ---- blocks

    def begin(self, label: str) -> None:
        """A new block, which those before it jump to."""
        self.lines.append(f"{label}:")
        self.label = label

    def new_label(self, what: str) -> str:
        self._count += 1
        return f"{what}{self._count}"

    @contextmanager
    def where(self, cond: str, label: str = "then") -> Iterator[None]:
        """A context: what is emitted in it runs only where a condition holds."""
        inside, after = self.new_label(label), self.new_label("after")
        self.line(f"br i1 {cond}, label %{inside}, label %{after}")
        self.begin(inside)
        with self.scope():
            yield
        self.line(f"br label %{after}")
        self.begin(after)

    @contextmanager
    def counted(self, extent: str) -> Iterator[str]:
        """A loop from 0 up to an extent; gives the number of the iteration."""
        head, body, after = (self.new_label(x) for x in ("head", "body", "done"))
        before, var, following = self.label, self.fresh(), self.fresh()
        self.line(f"br label %{head}")
        self.begin(head)
        at = len(self.lines)
        more = self.fresh()
        self.line(f"{more} = icmp slt i32 {var}, {extent}")
        self.line(f"br i1 {more}, label %{body}, label %{after}")
        self.begin(body)
        with self.scope():
            yield var
        self.line(f"{following} = add nsw i32 {var}, 1")
        self.lines.insert(at, f"  {var} = phi i32 [ 0, %{before} ], [ {following}, %{self.label} ]")
        self.line(f"br label %{head}")
        self.begin(after)
