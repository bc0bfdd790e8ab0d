"""The interface between the parts of the emitter and its core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...schedule.machine import DotProduct
from ...schedule.nest import Alloc, For, Nest, Stmt
from ...tensor.expr import Expr, Target
from .builder import Builder
from .expressions import Handler
from .indices import Indices
from .registers import Registers
from .strided import Strided
from .values import Value


@dataclass(frozen=True)
class VectorMachine:
    """What is to be known of a machine's vectors: `lanes` of 32 bits in a register; the widths of vectors whose masks
    are registers (`mask_lanes`); that for which it has the operations of `tensor.mathlib.tabled` (`table_lanes`, 0:
    none); the intrinsics for products of pairs of bf16 by lanes of sums (`pair_products`); instructions
    for sums of products of bytes by name (`dot_products`); and the intrinsic that ends non-temporal stores (`fence`;
    empty: it has none that are faster). `chains` is how many vectors of functions take turns, `load_shuffles` what a
    load costs, in shuffles."""

    lanes: int
    mask_lanes: tuple[int, ...] = ()
    table_lanes: int = 0
    pair_products: Mapping[int, str] = field(default_factory=dict)
    dot_products: Mapping[str, DotProduct] = field(default_factory=dict)
    fence: str = ""
    chains: int = 1
    load_shuffles: float = 1.0


class Core(Protocol):
    """What a part may ask. `text` takes what is emitted, `at` says where elements lie.

    `stmt` emits a statement by the first part that takes it, `unrolled` the iterations of a loop one after another,
    `counted` a loop from one index to another; `alloc` makes a buffer for what `body` emits; `prefetch` asks for the
    memory that an iteration wants. `value` is what a target is set to, by the first part that has it; `write` sets an
    element, or those of all lanes. `refuse` says that a loop is not emitted as its note asks (`explain` shows it).
    """

    nest: Nest
    machine: VectorMachine
    text: Builder
    at: Indices
    strided: Strided
    registers: Registers

    def stmt(self, s: Stmt) -> None: ...
    def unrolled(self, s: For) -> None: ...
    def counted(self, s: For, low: str, high: str) -> None: ...
    def alloc(self, s: Alloc, body: Callable[[Stmt], None]) -> None: ...
    def prefetch(self, s: For) -> None: ...
    def expr(self, e: Expr) -> Value: ...
    def value(self, t: Target) -> Value: ...
    def write(self, t: Target, value: Value) -> None: ...
    def refuse(self, s: For, note: str, why: str) -> None: ...


class Part:
    """Emits some statements in a way of its own. It is asked for those of the kinds that it `takes` and whose form it
    `wants`, in the order of the list in `emitter`; `operations` are those of expressions that it emits, by name."""

    takes: tuple[type[Stmt], ...] = ()

    def __init__(self, core: Core) -> None:
        self.core, self.text, self.at, self.buffers = core, core.text, core.at, core.at.buffers

    @property
    def operations(self) -> Mapping[str, Handler]:
        return {}

    def begin(self) -> None:
        """Emit what comes before the kernel."""

    def end(self) -> None:
        """Emit what comes after the kernel."""

    def wants(self, s: Stmt) -> bool:
        """Whether a statement may be one that it emits, by what does not change while a kernel is emitted: asked once
        for each statement, however often an unrolled loop around it repeats it."""
        return True

    def emit(self, s: Stmt) -> bool:
        """Emit a statement; False, with nothing emitted, for one that it does not take."""
        return False

    def improves(self, t: Target) -> bool:
        """The same for a target and `value`."""
        return True

    def value(self, t: Target) -> Value | None:
        """What a target is set to, if a part has a better way than to emit the expression."""
        return None
