"""Helpers for hand-written loop nests: typed reads and writes, arithmetic, positions, division among threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ....support.dtypes import FLOATS, HALVES
from ....support.sizes import at_most, smaller, typical
from ....tensor.expr import Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel, Opaque
from ...machine import Machine
from ...nest import For, If, Stmt, Store, loop, store


def index(i: int) -> Const:
    return Const(i, "index")


def dtype_of(x: Expr) -> str:
    return x.dtype  # every kind of expression has one


# ---- elements ------------------------------------------------------------------------------------------------------


class Access:
    """Reads elements of a kernel's buffers in their wide dtype, and writes them back in their own."""

    def __init__(self, kernel: Kernel) -> None:
        assert kernel.opaque is not None
        self.kernel = kernel
        self.opaque: Opaque = kernel.opaque

    def operand(self, i: int) -> str:
        """The buffer of an operand that is there."""
        name = self.opaque.operands[i]
        assert name is not None
        return name

    def shape(self, buffer: str) -> tuple[int, ...]:
        return self.kernel.buffer(buffer).shape

    def dtype(self, buffer: str) -> str:
        return self.kernel.buffer(buffer).dtype

    def unsigned(self, i: int) -> bool:
        """Whether an operand's numbers have no sign; booleans count as such."""
        dtype = self.opaque.dtypes[i] or ""
        return dtype.startswith("ui") or dtype == "i1"

    def read(self, buffer: str, indices: tuple[Expr, ...]) -> Expr:
        dtype = self.dtype(buffer)
        x = Load(buffer, indices, dtype)
        return Op("extf", (x,), "f32") if dtype in HALVES else x

    def narrow(self, buffer: str, value: Expr) -> Expr:
        """`value` as an element of the buffer."""
        dtype = self.dtype(buffer)
        return Op("truncf", (value,), dtype) if dtype in HALVES else value

    def write(self, buffer: str, indices: tuple[Expr, ...], value: Expr, block: str) -> Store:
        return store(buffer, indices, self.narrow(buffer, value), block)


def wrapped(i: Expr, size: int) -> Expr:
    """An integer as a position: negative ones count from the end, those outside are moved to the nearest end."""
    i = i if dtype_of(i) == "index" else Op("index_cast", (i,), "index")
    if at_most(size, 1):
        return index(0)
    i = Op("select", (Op("cmpi.slt", (i, index(0)), "i1"), i + size, i), "index")
    return minimum(Op("maxsi", (i, index(0)), "index"), size - 1)


# ---- arithmetic ----------------------------------------------------------------------------------------------------


def is_float(x: Expr) -> bool:
    return dtype_of(x) in FLOATS


def add(a: Expr, b: Expr) -> Expr:
    """a + b; for booleans "or"."""
    return Op("addf" if is_float(a) else "ori" if dtype_of(a) == "i1" else "addi", (a, b), dtype_of(a))


def mul(a: Expr, b: Expr) -> Expr:
    """a * b; for booleans "and"."""
    return Op("mulf" if is_float(a) else "andi" if dtype_of(a) == "i1" else "muli", (a, b), dtype_of(a))


def extreme(a: Expr, b: Expr, *, largest: bool, unsigned: bool = False) -> Expr:
    """The larger or smaller of two numbers; NaN if one is."""
    name = "max" if largest else "min"
    return Op(f"{name}imumf" if is_float(a) else f"{name}{'u' if unsigned else 's'}i", (a, b), dtype_of(a))


def before(a: Expr, b: Expr, *, largest: bool, unsigned: bool = False) -> Expr:
    """Whether a stands strictly before b in an order that begins with the largest (or smallest).

    NaN counts as the largest number.
    """
    if not is_float(a):
        return Op(f"cmpi.{'u' if unsigned else 's'}{'gt' if largest else 'lt'}", (a, b), "i1")
    ahead = Op("cmpf.ogt" if largest else "cmpf.olt", (a, b), "i1")
    first, second = (a, b) if largest else (b, a)
    return either(ahead, both(Op("cmpf.uno", (first, first), "i1"), Op("cmpf.ord", (second, second), "i1")))


def both(a: Expr, b: Expr) -> Expr:
    return Op("andi", (a, b), "i1")


def either(a: Expr, b: Expr) -> Expr:
    return Op("ori", (a, b), "i1")


def less(a: Expr, b: Expr | int) -> Expr:
    return Op("cmpi.slt", (a, index(b) if isinstance(b, int) else b), "i1")


def at_least(a: Expr, b: Expr | int) -> Expr:
    return Op("cmpi.sge", (a, index(b) if isinstance(b, int) else b), "i1")


def select(c: Expr, a: Expr, b: Expr) -> Expr:
    return Op("select", (c, a, b), dtype_of(a))


# ---- positions -----------------------------------------------------------------------------------------------------


def unflatten(position: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Indices of the element at a row-major position."""
    out: list[Expr] = []
    step = prod(shape)
    for d, n in enumerate(shape):
        step //= max(n, 1)
        if n == 1:
            out.append(index(0))
            continue
        i = position // step if step > 1 else position
        out.append(i if prod(shape[:d]) == 1 else i % n)
    return tuple(out)


def flatten(indices: tuple[Expr, ...], shape: tuple[int, ...]) -> Expr:
    """The row-major position of an element."""
    position: Expr = index(0)
    for i, n in zip(indices, shape, strict=True):
        position = position * n + i
    return position


def loops(names: str, shape: tuple[int, ...], body: Stmt) -> Stmt:
    """Serial loops over a shape; the variable of dimension d is ``{names}{d}``, see `variables`."""
    for d in reversed(range(len(shape))):
        body = loop(f"{names}{d}", shape[d], body)
    return body


def variables(names: str, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """The loop variables of `loops`."""
    return tuple(Var(f"{names}{d}") for d in range(len(shape)))


# ---- division ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """`size` things divided into `tasks` runs of `chunk`; the run of a task is ``first <= i < first + extent``."""

    size: int
    chunk: int
    name: str = "task"

    @property
    def tasks(self) -> int:
        return -(-self.size // self.chunk)

    @property
    def first(self) -> Expr:
        return index(0) if at_most(self.tasks, 1) else Var(self.name) * self.chunk

    @property
    def extent(self) -> Expr:
        if self.size % self.chunk == 0:
            return index(self.chunk)
        return minimum(self.chunk, self.size - self.first)

    def owns(self, i: Expr, body: Stmt) -> Stmt:
        """`body` under the condition that thing i belongs to the task."""
        if self.tasks == 1:
            return body
        return If(both(at_least(i, self.first), less(i, self.first + self.chunk)), body)

    def parallel(self, body: Stmt) -> Stmt:
        return For(self.name, index(self.tasks), body, "thread")


def divide(size: int, work: int, machine: Machine, *, rounds: int = 4, multiple: int = 1) -> Split:
    """`size` > 0 things of together `work` elements, in up to `rounds` tasks a thread of a multiple of `multiple`
    things."""
    if typical(work) < machine.thread_work:
        return Split(size, size)
    tasks = min(rounds * machine.cores, max(typical(work) // (machine.thread_work // 4), 1))
    chunk = -(-size // tasks)
    return Split(size, smaller(-(-chunk // multiple) * multiple, size))


def vector_loop(name: str, extent: Expr | int, most: int, width: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """``for i in extent: body(i)`` in vectors of `width` lanes, the last with fewer; extent is at most `most`."""
    width = min(width, 1 << max(most - 1, 0).bit_length())
    lane = Var(f"{name}_l")
    if width < 2:
        return loop(name, extent, body(Var(name)))
    if extent == width or extent == index(width):
        return For(lane.name, index(width), body(lane), "vector", width)
    outer = Var(f"{name}_o")
    extent = index(extent) if isinstance(extent, int) else extent
    whole = isinstance(extent, Const) and extent.value % width == 0
    inner: Expr = index(width) if whole else minimum(width, extent - outer * width)
    lanes = For(lane.name, inner, body(outer * width + lane), "vector", width)
    return loop(outer.name, (extent + (width - 1)) // width, lanes)
