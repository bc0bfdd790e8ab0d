"""Warpgroup matrix products (``wgmma``, four warps together): factors stay in shared memory, accumulators are in
registers.

A factor is a matrix whose rows go along the sum: 64 numbers of 16 bits, 128 bytes, in pieces of 16 bytes that are
swizzled by the row (`schedule.primitives.swizzle`: pieces of 8, every row). Rows may also go along the lines (rows of
the first factor, columns of the second): then 64 of them are a row, and the next 64 lie behind all rows of the sum. The
instruction gets a descriptor: where the matrix begins, how far 8 rows are from the next 8, how far 64 lines from the
next 64, and that it is swizzled so. Whether the nest has its elements there is checked by number before anything is
emitted. The first factor may also be in registers, which lanes hold as `fragments` says.

The instruction reads memory through another proxy than stores do: a thread that wrote needs a ``fence.proxy.async``
before the barrier at which the others wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ...schedule.nest import For, Seq, Stmt, Wait, children
from ...schedule.warp import ProductLoops, noted
from ...support.errors import CompileError
from ...tensor.analysis import flat
from ...tensor.evaluate import evaluate
from ...tensor.expr import Const, Expr, Load, Op, Var, rebuild, transform, variables
from ..gpu_llvm.memory import ALIGN_BYTES

if TYPE_CHECKING:
    from .fragments import Fragments

#: bytes of a row, and of 8 rows, which the swizzle repeats after
_ROW_BYTES, _REPEATS_BYTES = 128, 1024
#: of a descriptor: 8 rows are so far from the next 8 (in 16 bytes), in bits 32 to 45; the swizzle of rows of 128 bytes.
#: In bits 16 to 29 stands how far 64 lines are from the next 64, or 1 where rows go along the sum
_DESCRIPTOR = (_REPEATS_BYTES >> 4 << 32) | (1 << 62)
#: lines of a row that goes along lines
_ROW_LINES = 64
#: combinations of loop variables for which places are checked
_MOST_PLACES = 1 << 12


class Groups:
    """A part of `fragments.Fragments`, which has the sums."""

    def __init__(self, owner: Fragments) -> None:
        self.owner = owner
        self.read: set[str] = set()
        self.joined = False  # whether instructions come that are waited for together
        self.left = 0  # how many runs of them go on

    @property
    def held(self) -> int:
        """Registers of a thread for what it holds of matrices."""
        core = self.owner.core
        return sum(core.buffers[n].size for n in self.owner.names) // core.launch_axes.lanes

    def reads(self, loops: ProductLoops) -> None:
        self.read |= {loops.w.load.buffer} | (set() if loops.product.first else {loops.x.load.buffer})

    def align(self, buffer: str) -> int:
        """What an array in shared memory begins at a multiple of."""
        return _REPEATS_BYTES if buffer in self.read else ALIGN_BYTES

    def before_barrier(self) -> None:
        if (self.read | set(self.owner.core.bulk.aligned)) & self.owner.core.plainly:
            self.owner.text.line('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()')

    @contextmanager
    def run_of(self, s: Stmt) -> Iterator[None]:
        """Inside: instructions of a loop that is laid out; if it has nothing else in it, they are waited for at its
        end."""
        product = self.owner.products.get(noted(s) or "")
        together = product is not None and product.operands != product.memory and self.owner.takes(s)
        if not together or self.joined:
            yield
            return
        self.begin()
        self.joined = True
        yield
        self.joined = False
        self.end()

    def begin(self) -> None:
        if not self.joined:
            self.owner.text.call("llvm.nvvm.wgmma.fence.sync.aligned", "void", [])

    def end(self) -> None:
        if not self.joined:
            self.owner.text.call("llvm.nvvm.wgmma.commit_group.sync.aligned", "void", [])
            self.wait()

    def wait(self) -> None:
        self.owner.text.call("llvm.nvvm.wgmma.wait_group.sync.aligned", "void", [f"i64 {self.left}"])

    def only(self, s: Stmt) -> bool:
        """Whether a statement is nothing else than such instructions, and waits for copies."""
        product = self.owner.products.get(noted(s) or "")
        if product is not None and self.owner.takes(s):
            return product.operands != product.memory
        return isinstance(s, Wait) or (isinstance(s, (For, Seq)) and all(map(self.only, children(s))))

    def product(self, loops: ProductLoops) -> None:
        """One instruction, and the wait for it unless others come."""
        text, p = self.owner.text, loops.product
        second, turned = self.descriptor(loops.w.load, loops.n.var, loops.k.var, p.columns, p.depth)
        factors, across = [f"i64 {second}"], 0
        if not p.first:
            first, across = self.descriptor(loops.x.load, loops.m.var, loops.k.var, p.rows, p.depth)
            factors.insert(0, f"i64 {first}")
        with ExitStack() as stack:
            for f in (loops.m, loops.n, loops.k):
                stack.enter_context(self.owner.at.bind(f.var, 0))
            places = self.owner.words(loops.acc.load)
            held = self.owner.words(loops.x.load) if p.first else []
        factors = [*(f"i32 {text.result(f'load i32, {where}, align 4')}" for where in held), *factors]
        count = len(places)
        sums = [text.result(f"load float, {where}, align 4") for where in places]
        kinds = f"{{{', '.join(['float'] * count)}}}"
        outputs = ", ".join(f"${i}" for i in range(count))
        name = f"wgmma.mma_async.sync.aligned.m{p.rows}n{p.columns}k{p.depth}.f32.{p.dtype}.{p.dtype}"
        given = [f"${count + i}" for i in range(len(factors))]
        x, last = (f"{{{', '.join(given[:-1])}}}", "") if held else (given[0], f"{across}, ")
        code = (
            f"{{ .reg .pred p; setp.ne.b32 p, 1, 0; {name} {{{outputs}}}, {x}, {given[-1]}, p, 1, 1, {last}{turned}; }}"
        )
        kinds_in = ["r" if f.startswith("i32") else "l" for f in factors]
        constraints = ",".join(["=f"] * count + kinds_in + [str(i) for i in range(count)])
        args = ", ".join([*factors, *(f"float {s}" for s in sums)])
        self.begin()
        result = text.result(f'call {kinds} asm sideeffect "{code}", "{constraints}"({args})')
        self.end()
        for i, where in enumerate(places):
            part = text.op(f"extractvalue {kinds} {result}, {i}")
            text.line(f"store float {part}, {where}, align 4")

    def refuse(self, x: Load) -> CompileError:
        return self.owner.refuse(
            f"rows of {x.buffer} do not lie as the instruction takes them",
            hint="rows of 64 numbers along the sum, swizzled: s.swizzle(buffer, 8)",
        )

    def descriptor(self, x: Load, line: str, deep: str, lines: int, depth: int) -> tuple[str, int]:
        """Of the matrix whose lines (rows of the first factor, columns of the second) a variable selects, and whose
        places along the sum another one does; and 1 if its rows go along the lines."""
        owner, text = self.owner, self.owner.text
        b = owner.core.buffers[x.buffer]
        next_lines = self._lies(x, line, deep, lines, depth)
        if next_lines is None:
            raise self.refuse(x)
        with owner.at.bind(line, 0), owner.at.bind(deep, 0):
            pointer = owner.memory.address(b, x.indices)
        number = text.op(f"ptrtoint {pointer} to i64")
        start = text.op(f"lshr i64 {text.op(f'and i64 {number}, 262143')}, 4")
        known = _DESCRIPTOR | ((next_lines >> 4) or 1) << 16
        return text.op(f"or i64 {start}, {known}"), int(next_lines > 0)

    def _lies(self, x: Load, line: str, deep: str, lines: int, depth: int) -> int | None:
        """Whether all elements are where the instruction looks for them, whatever the other variables are: 0 if rows go
        along the sum, the bytes from 64 lines to the next 64 if they go along lines, None if it is neither."""
        at = self.owner.at
        place = at.known(flat(self.owner.core.buffers[x.buffer], x.indices))
        rests: dict[str, int] = {}
        place = _by_rests(place, {line, deep}, rests)
        others = sorted(variables(place) - {line, deep})
        ranges = [range(rests[v]) if v in rests else range(at.ranges[v][0], at.ranges[v][1] + 1) for v in others]
        if np.prod([len(r) for r in ranges]) > _MOST_PLACES:
            return None
        found: set[int] = set()
        row, column = np.meshgrid(np.arange(lines), np.arange(depth), indexing="ij")
        for values in product(*ranges):
            env = {line: row, deep: column, **{v: np.asarray(n) for v, n in zip(others, values, strict=True)}}
            where = 2 * np.broadcast_to(evaluate(place, env), row.shape)
            plain = where ^ ((where >> 7 & 7) << 4)
            begin = int(where[0, 0])
            if begin % _REPEATS_BYTES < _ROW_BYTES and (plain == begin + row * _ROW_BYTES + column * 2).all():
                found.add(0)
                continue
            step = int(plain[_ROW_LINES, 0]) - begin if lines > _ROW_LINES else _REPEATS_BYTES
            wanted = begin + row // _ROW_LINES * step + row % _ROW_LINES * 2 + column * _ROW_BYTES
            found.add(step if begin % _REPEATS_BYTES == 0 and (plain == wanted).all() else -1)
        return found.pop() if len(found) == 1 and min(found) >= 0 else None


def _by_rests(place: Expr, but: set[str], rests: dict[str, int]) -> Expr:
    """A place in which remainders of what has not these variables are variables of their own, with so many values."""

    def visit(e: Expr, args: tuple[Expr, ...]) -> Expr:
        if not isinstance(e, Op) or e.op != "remsi":
            return rebuild(e, args)
        of, n = args
        if not variables(of) or variables(of) & but or not isinstance(n, Const) or n.value <= 0:
            return rebuild(e, args)
        name = f"{of}%{n.value}"
        rests[name] = n.value
        return Var(name)

    return transform(place, visit)
