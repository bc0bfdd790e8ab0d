"""Base of builders that write a kernel in SSA form: lines, value names, and common subexpressions by dominance.

An operation without effects is made once in code that it dominates. Loops and branches are structured, so the scopes of
that are a stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class SsaValue:
    """A name or a literal, with its dtype."""

    ssa: str
    dtype: str


class KernelText(ABC):
    """`entry` are the lines at the head of the kernel. What is abstract is on truth values and on indices of 32 bits,
    and gives names of values."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entry: list[str] = []
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

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is made inside is not known outside."""
        self._made.append({})
        yield
        self._made.pop()

    # ---- indices and truth values

    @abstractmethod
    def number(self, value: int) -> str:
        """A constant."""

    @abstractmethod
    def integer(self, name: str, a: str, b: str) -> str:
        """An operation as LLVM calls it, as "add", or "add nsw" for one that does not overflow."""

    @abstractmethod
    def test(self, predicate: str, a: str, b: str) -> str:
        """A comparison as LLVM calls it ("eq", "slt", "ult")."""

    @abstractmethod
    def choose(self, cond: str, a: str, b: str) -> str:
        """One index or the other."""

    @abstractmethod
    def both(self, a: str, b: str) -> str:
        """Whether two truth values hold."""

    @abstractmethod
    def opposite(self, a: str) -> str:
        """Whether one does not hold."""

    @abstractmethod
    def truth(self, a: str) -> str:
        """A truth value as 0 or 1."""

    # ---- blocks

    @abstractmethod
    def where(self, cond: str, label: str = "then") -> AbstractContextManager[None]:
        """Inside: only where a condition holds."""

    @abstractmethod
    def counted(self, extent: str) -> AbstractContextManager[str]:
        """A loop from 0 up to an extent; gives the number of the iteration."""
