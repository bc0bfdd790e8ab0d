"""The LLVM IR of a kernel as it grows: lines, names of values, blocks, stack memory, and what the module declares.

An operation without effects is made once in code that it dominates. Loops and branches are structured, so the scopes of
that are a stack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...support.dtypes import FLOATS, LOOP_TYPES
from ...tensor.evaluate import NUMPY

_TYPES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double", "index": "i32"}
#: bytes of an element in memory; booleans take a byte
BYTES = {n: 4 if n == "index" else t.nbytes for n, t in LOOP_TYPES.items()}


@dataclass(frozen=True)
class Value:
    """A name or a literal of LLVM IR, with its dtype."""

    ssa: str
    dtype: str

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


def literal(value: Any, dtype: str) -> str:
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


class Builder:
    """See the file. `entry` are the lines at the head of the kernel, `globals_` its memory beside the stack."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.globals_: list[str] = []
        self.declared: dict[str, str] = {}
        self.label = "entry"
        self._made: list[dict[str, str]] = [{}]
        self._count = 0

    # ---- lines and names

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def op(self, text: str) -> str:
        """The name of an operation's result; one without effects, made once."""
        for scope in reversed(self._made):
            if text in scope:
                return scope[text]
        name = self._made[-1][text] = self.result(text)
        return name

    def result(self, text: str) -> str:
        """The same for one that has effects, or reads memory."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

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

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is made inside is not known outside."""
        self._made.append({})
        yield
        self._made.pop()

    def begin(self, label: str) -> None:
        """A new block, which those before it jump to."""
        self.lines.append(f"{label}:")
        self.label = label

    def new_label(self, what: str) -> str:
        self._count += 1
        return f"{what}{self._count}"

    @contextmanager
    def where(self, cond: str, label: str = "then") -> Iterator[None]:
        """Inside: only where a condition holds."""
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
