"""Tensor core fragments: matrices distributed over the lanes of a warp, and the instructions on them (``mma.sync``,
``ldmatrix``).

A buffer of such a matrix is cut into blocks, those that one product takes. Of each a lane holds a few registers. With
g = lane / 4, t = lane % 4, and `per` numbers in 4 bytes:

    sums    16 x 8      register j: row 8 * (j / 2) + g, column 2 * t + j % 2; the next 8 columns in the next registers
    x       16 x depth  register r: row 8 * (r % 2) + g, places depth / 2 * (r / 2) + per * t, and those behind it
    w       depth x 8   register r: places depth / 2 * r + per * t and those behind it, column g

A statement on elements of such a buffer is run by the lanes that hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...schedule.machine import Machine, WarpProduct
from ...schedule.nest import For, If, Nest, Seq, Stmt, Store, map_exprs, walk_stmts
from ...schedule.warp import (
    COPY_LOOPS,
    PRODUCT_LOOPS,
    CopyLoops,
    ProductLoops,
    noted,
    read_copy,
    read_fold,
    read_product,
)
from ...support.errors import CompileError
from ...tensor.expr import Buffer, Const, Expr, Load, Op, Var, linear, variables
from ..gpu.open_launch import BYTES
from ..gpu_llvm.builder import llvm_type
from ..gpu_llvm.memory import OWN, Lanes
from .fragment_rows import WARP, FragmentRows
from .warpgroups import Groups

if TYPE_CHECKING:
    from .emitter import NvptxEmitter

#: the variable of indices that is the number of a lane
LANE = "%lane"
_PAIR = "%pair"
_GROUP, _PLACE = Var(LANE) // 4, Var(LANE) % 4
#: rows of sums, and of first factors, of a warp; of a warpgroup each has the next ones
_WARP_ROWS = Var(LANE) // 32 * 16 + Var(LANE) % 32 // 4
#: the block of a matrix that `ldmatrix` takes
_ROWS = 8
#: how many rows of sums a warp has
_ROWS_OF_WARP = 16


@dataclass(frozen=True)
class Role:
    """What a buffer is in products: "acc", "x" or "w"; `turned`: its last dimension is the one of the rows."""

    product: WarpProduct
    which: str
    turned: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        p = self.product
        return {"acc": (p.rows, p.columns), "x": (p.rows, p.depth), "w": (p.depth, p.columns)}[self.which]

    @property
    def per(self) -> int:
        """Elements that lie side by side in a lane."""
        return 2 if self.which == "acc" else 4 // BYTES[self.product.dtype]

    @property
    def registers(self) -> int:
        """Registers of 4 bytes that a lane has of a block."""
        p = self.product
        return {"acc": p.columns // 8 * 4, "x": 4, "w": 2}[self.which]

    def first(self, run: int) -> tuple[int, int]:
        """Row and column of the first element of a run of `per`, for the first lane."""
        half = self.product.depth // 2
        if self.which == "acc":
            return _ROWS * (run % 2), _ROWS * (run // 2)
        return (_ROWS * (run % 2), half * (run // 2)) if self.which == "x" else (half * run, 0)

    @property
    def runs(self) -> int:
        return self.registers // 2 if self.which == "acc" else self.registers

    def of_lane(self) -> tuple[Expr, Expr]:
        """What a lane adds to row and column."""
        deep = _PLACE * self.per
        if self.which == "acc":
            return _WARP_ROWS, deep
        return (deep, _GROUP) if self.which == "w" else (_WARP_ROWS, deep)

    def along(self) -> int:
        """The dimension of a run: 1 for columns."""
        return 0 if self.which == "w" else 1


class Fragments:
    """`core` is the emitter whose part this is."""

    def __init__(self, core: NvptxEmitter, nest: Nest, machine: Machine) -> None:
        self.core, self.nest = core, nest
        self.text, self.at, self.memory = core.text, core.at, core.memory
        self.products = {p.name: p for p in machine.warp_products}
        self.loads = {p.name: p for p in machine.warp_loads}
        self.folds = {f.name: f for f in machine.warp_folds}
        self.names = {b.name for b in core.buffers.values() if b.scope in {p.memory for p in self.products.values()}}
        self.roles: dict[str, Role] = {}
        self.groups = Groups(self)
        self.rows = FragmentRows(core.expressions, core.launch_axes.lanes, self.refuse)
        for s in walk_stmts(nest.body) if self.names else ():
            product = self.products.get(noted(s) or "")
            if product is not None and _depth(s) == PRODUCT_LOOPS:
                self._roles(read_product(s, product, core.buffers))

    def _roles(self, loops: ProductLoops) -> None:
        axes = self.core.launch_axes
        if not axes.lane or axes.lanes != loops.product.rows // _ROWS_OF_WARP * WARP:
            raise self.refuse(
                f"{loops.product.name} is run by {loops.product.rows // _ROWS_OF_WARP * WARP} threads together",
                hint="bind loops around it to warp, or to group if four warps run it",
            )
        if loops.product.operands != loops.product.memory:
            self.groups.reads(loops)
        for which, block in (("acc", loops.acc), ("x", loops.x), ("w", loops.w)):
            if block.load.buffer not in self.names:
                continue
            role = Role(loops.product, which, block.turned)
            if self.roles.setdefault(block.load.buffer, role) != role:
                raise self.refuse(f"{block.load.buffer} is held in different ways by the products that use it")

    def refuse(self, why: str, hint: str | None = None) -> CompileError:
        return CompileError(why, stage="emit", operator=self.nest.name, hint=hint)

    # ---- what is here

    @property
    def folds_rows(self) -> bool:
        """Whether there are numbers for the rows of matrices."""
        return any(len(self.core.buffers[n].shape) == 1 for n in self.names)

    def owns(self, buffer: str) -> bool:
        return buffer in self.names

    def takes(self, s: Stmt) -> bool:
        """Whether the lanes of a warp run loops together."""
        if (name := noted(s)) is not None:
            return _depth(s) <= (PRODUCT_LOOPS if name in self.products else COPY_LOOPS)
        used = self._held(s)
        return bool(used) and (isinstance(s, Store) or (isinstance(s, For) and self._selects(s, used)))

    def within(self, s: Stmt) -> bool:
        """Whether there are such loops in a statement."""
        return bool(self.names) and any(self._held(x) for x in walk_stmts(s) if isinstance(x, Store))

    def _held(self, s: Stmt) -> list[Load]:
        """The parts of matrices that the statements in perfectly nested loops use."""
        while isinstance(s, For):
            s = s.body
        found: list[Load] = []
        for b in _statements(s)[1]:
            found += [Load(t.buffer, t.indices, "") for t in b.targets]
            found += b.loads
        return [x for x in found if x.buffer in self.names]

    def _selects(self, s: For, used: list[Load]) -> bool:
        return s.kind != "unroll" and any(s.var in variables(i) for x in used for i in x.indices[-2:])

    def begin(self, b: Buffer) -> None:
        if len(b.shape) == 1:
            self.rows.begin(b)
            return
        role = self.role(b.name)
        blocks = self._blocks(b, role)
        count = blocks[0] * blocks[1] * max(b.size // (b.shape[-1] * b.shape[-2]), 1)
        kind = llvm_type(role.product.sums) if role.which == "acc" else "i32"
        self.memory.pointers[b.name] = (self.text.stack(kind, count * role.registers, 4), OWN)
        self.memory.special[b.name] = self.element

    def role(self, name: str) -> Role:
        if name not in self.roles:
            raise self.refuse(
                f"{name} is in memory that the lanes of a warp hold in parts, and no product uses it",
                hint="tensorize the loops of a product that uses it, or put it into registers",
            )
        return self.roles[name]

    def _blocks(self, b: Buffer, role: Role) -> tuple[int, int]:
        rows, columns = role.shape[::-1] if role.turned else role.shape
        if b.shape[-2] % rows or b.shape[-1] % columns:
            raise self.refuse(f"{b.name} is no matrix of blocks of {rows} x {columns}: {list(b.shape)}")
        return b.shape[-2] // rows, b.shape[-1] // columns

    # ---- places

    def element(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """``pointer-type name`` of an element that the lane at hand holds."""
        role = self.role(b.name)
        known = [self.at.known(i) for i in indices]
        row, column = known[-2:][::-1] if role.turned else known[-2:]
        place = []
        for e, mine in zip((row, column), role.of_lane(), strict=True):
            terms, constant = linear(self.at.known(e + mine * -1))
            if any(terms.values()):
                raise self.refuse(
                    f"it is not known which lane holds {b.name}[{', '.join(map(str, indices))}]",
                    hint="unroll the loops over its blocks",
                )
            place.append(constant)
        register, part = self._register(role, place[0] % role.shape[0], place[1] % role.shape[1])
        block = self._block(b, role, known, place[0] // role.shape[0], place[1] // role.shape[1])
        pointer, kind = self.memory.pointers[b.name]
        word = block * role.registers + register
        name = self.text.op(f"getelementptr i32, {kind} {pointer}, i32 {word}")
        if part:
            name = self.text.op(f"getelementptr {llvm_type(b.dtype)}, {kind} {name}, i32 {part}")
        return f"{kind} {name}"

    def _register(self, role: Role, row: int, column: int) -> tuple[int, int]:
        """Of the first lane's element in a block: its register, and which part of that."""
        half, per = role.product.depth // 2, role.per
        if role.which == "acc":
            return 4 * (column // _ROWS) + 2 * (row // _ROWS) + column % _ROWS, 0
        if role.which == "x":
            return row // _ROWS + 2 * (column // half), column % half % per
        return row // half, row % half % per

    def _block(self, b: Buffer, role: Role, known: list[Expr], row: int, column: int) -> int:
        """The number of a block among those of a buffer."""
        blocks = self._blocks(b, role)[::-1] if role.turned else self._blocks(b, role)
        number = 0
        for e, n in zip(known[:-2], b.shape[:-2], strict=True):
            if not isinstance(e, Const):
                raise self.refuse(f"it is not known which part of {b.name} is used: {e}", hint="unroll the loop")
            number = number * n + e.value
        if not (0 <= row < blocks[0] and 0 <= column < blocks[1]):
            raise self.refuse(f"a part of {b.name} is used that it has not: {', '.join(map(str, known))}")
        return (number * blocks[0] + row) * blocks[1] + column

    # ---- statements

    def emit(self, s: Stmt) -> None:
        name = noted(s)
        if name is None:
            self.elements(s)
        elif name in self.products:
            self.product(read_product(s, self.products[name], self.core.buffers))
        elif name in self.loads:
            self.load(read_copy(s, self.loads[name], self.core.buffers))
        elif name in self.folds:
            self.rows.fold(read_fold(s, self.folds[name], self.core.buffers))
        else:
            raise self.refuse(f"the machine has no instruction {name!r} of several lanes")

    def product(self, loops: ProductLoops) -> None:
        """One instruction."""
        p, words = loops.product, {}
        if p.operands != p.memory:
            self.groups.product(loops)
            return
        half = p.dtype == "f16"
        with ExitStack() as stack:
            for f in (loops.m, loops.n, loops.k):
                stack.enter_context(self.at.bind(f.var, 0))
            for which, block in (("x", loops.x), ("w", loops.w), ("acc", loops.acc)):
                kind = llvm_type(p.sums) if which == "acc" else "<2 x half>" if half else "i32"
                words[which] = [(kind, where) for where in self.words(block.load)]
        args = [f"{k} {self.text.result(f'load {k}, {w}, align 4')}" for x in ("x", "w", "acc") for k, w in words[x]]
        sums = llvm_type(p.sums)
        kinds = {"f16": "f32.f32", "bf16": "bf16", "i8": "s8"}[p.dtype]
        name = f"llvm.nvvm.mma.m{p.rows}n{p.columns}k{p.depth}.row.col.{kinds}"
        result = self.text.call(name, f"{{{', '.join([sums] * 4)}}}", args, pure=False)
        for i, (_, where) in enumerate(words["acc"]):
            part = self.text.op(f"extractvalue {{{', '.join([sums] * 4)}}} {result}, {i}")
            self.text.line(f"store {sums} {part}, {where}, align 4")

    def words(self, x: Load) -> list[str]:
        """The registers of a block, in order."""
        b, role = self.core.buffers[x.buffer], self.role(x.buffer)
        known = [self.at.known(i) for i in x.indices]
        places = []
        for e in known[-2:][::-1] if role.turned else known[-2:]:
            if not isinstance(e, Const):
                raise self.refuse(f"it is not known which block of {x.buffer} is used: {e}", hint="unroll the loop")
            places.append(e.value)
        if places[0] % role.shape[0] or places[1] % role.shape[1]:
            raise self.refuse(f"{x.buffer} is used from {places} on, which is not where a block begins")
        block = self._block(b, role, known, places[0] // role.shape[0], places[1] // role.shape[1])
        pointer, kind = self.memory.pointers[x.buffer]
        return [
            f"{kind} {self.text.op(f'getelementptr i32, {kind} {pointer}, i32 {block * role.registers + i}')}"
            for i in range(role.registers)
        ]

    def load(self, loops: CopyLoops) -> None:
        """``ldmatrix``: a lane gives the address of one of 8 rows of up to four blocks, and gets its parts of all."""
        target, role = loops.target.load, self.role(loops.target.load.buffer)
        if role.which == "acc" or loops.row.trip is None or loops.column.trip is None:
            raise self.refuse(f"{target.buffer} holds sums, which {loops.load.name} does not load")
        first, second = (loops.column, loops.row) if role.turned else (loops.row, loops.column)
        rows, columns = range(0, first.trip or 0, role.shape[0]), range(0, second.trip or 0, role.shape[1])
        if role.which == "x":
            groups = [[{first.var: r, second.var: c}] for r in rows for c in columns]
        else:  # of w two blocks at once, where there are two
            pairs = [columns[i : i + 2] for i in range(0, len(columns), 2)]
            groups = [[{first.var: r, second.var: c} for c in pair] for r in rows for pair in pairs]
        deep, flat = (first, second) if role.which == "w" else (second, first)
        for group in groups:
            self._load_blocks(loops, role, group, deep.var, flat.var)

    def _load_blocks(self, loops: CopyLoops, role: Role, group: list[dict[str, int]], deep: str, flat: str) -> None:
        """One instruction: `deep` is the variable of the sum, `flat` the other one."""
        b, half = self.core.buffers[loops.source.buffer], role.product.depth // 2
        count, part = role.registers * len(group), Var(LANE) // _ROWS % (role.registers * len(group))
        # which 8 x 8 block a lane's address is of: in the order of registers
        inner, outer = part % 2, part // 2
        start: dict[str, Expr] = {v: Const(group[0][v], "index") for v in (deep, flat)}
        if role.which == "x":
            start = {deep: outer * half + start[deep], flat: inner * _ROWS + start[flat]}
        else:
            start = {deep: inner * half + start[deep], flat: outer * _ROWS + start[flat]}
        address = None
        for across in (False, True) if BYTES[b.dtype] == 2 else (False,):
            address = address or self._row(loops, start, (deep, flat) if across else (flat, deep))
        if address is None:
            raise self.refuse(f"rows of {b.name} do not lie as {loops.load.name} takes them")
        kind, turned = f"{{{', '.join(['i32'] * count)}}}", "trans." if address[1] == deep else ""
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}.{turned}b16.p3"
        result = self.text.call(name, kind, [address[0]])
        words = []
        for starts in group:
            with ExitStack() as stack:
                for var, n in starts.items():
                    stack.enter_context(self.at.bind(var, n))
                words += self.words(loops.target.load)
        for i, word in enumerate(words):
            self.text.line(f"store i32 {self.text.op(f'extractvalue {kind} {result}, {i}')}, {word}, align 4")

    def _row(self, loops: CopyLoops, start: dict[str, Expr], order: tuple[str, str]) -> tuple[str, str] | None:
        """The address of a lane's row, and the variable of rows, if the other one runs along rows in memory."""
        b = self.core.buffers[loops.source.buffer]
        rows, along = order
        length = loops.load.row_bytes // BYTES[b.dtype]
        with self.at.bind(rows, start[rows] + Var(LANE) % _ROWS):
            with self.at.bind(along, start[along] + Var(_PAIR)):
                if self.memory.run(b, loops.source.indices, Lanes(_PAIR, length)) != length:
                    return None
            with self.at.bind(along, start[along]):
                return self.memory.address(b, loops.source.indices), rows

    # ---- elements

    def elements(self, s: Stmt) -> None:
        """Loops around statements on elements: a lane runs those iterations whose elements it holds."""
        loops: list[For] = []
        while isinstance(s, For):
            loops.append(s)
            s = s.body
        conditions, body = _statements(s)
        used = next((x for x in self._held(s) if len(x.indices) > 1), None)
        if used is None:
            self.rows.each(loops, conditions, body)
            return
        role = self.role(used.buffer)
        indices = used.indices[-2:][::-1] if role.turned else used.indices[-2:]
        chosen = [next((f for f in loops if linear(i)[0].get(Var(f.var)) == 1), None) for i in indices]
        if None in chosen or len(loops) != 2 or chosen[0] is chosen[1]:
            raise self.refuse(f"block {body[0].block} does not run over rows and columns of {used.buffer}")
        row, column = (f for f in chosen if f is not None)
        moving, made = {f.var for f in loops}, dict[Expr, Expr]()
        conditions = [self.at.computed(c, moving, made) for c in conditions]
        body = [map_exprs(b, lambda e: self.at.computed(e, moving, made)) for b in body]  # type: ignore[misc]
        if row.trip is None or column.trip is None:
            raise self.refuse(f"block {body[0].block} runs over a part of {used.buffer} that varies")
        for f, n in ((row, role.shape[0]), (column, role.shape[1])):
            if (f.trip or 0) % n:  # of the last block a part
                conditions = [*conditions, Op("cmpi.slt", (Var(f.var), f.extent), "i1")]
        for values in self._runs(role, row, column):
            with ExitStack() as stack:
                for var, e in values.items():
                    stack.enter_context(self.at.bind(var, e))
                self._run(conditions, body, Lanes(_PAIR, role.per))

    def _runs(self, role: Role, row: For, column: For) -> Iterator[dict[str, Expr]]:
        """What loop variables are for each run of elements that a lane holds side by side."""
        mine = role.of_lane()
        for m in range(0, row.trip or 0, role.shape[0]):
            for n in range(0, column.trip or 0, role.shape[1]):
                for run in range(role.runs):
                    a, b = role.first(run)
                    place = [mine[0] + (m + a), mine[1] + (n + b)]
                    place[role.along()] = place[role.along()] + Var(_PAIR)
                    yield {row.var: place[0], column.var: place[1]}

    def _run(self, conditions: list[Expr], body: list[Store], lanes: Lanes) -> None:
        """Elements that lie side by side in a lane: together, if the same condition holds for all."""
        if not conditions:
            for b in body:
                self.core.vector(b, lanes.var, lanes.count)
            return
        holds = []
        for i in range(lanes.count):
            with self.memory.at_lane(lanes, i):
                holds.append(self._all(conditions))
        if len(set(holds)) == 1:
            with self.text.where(holds[0], "inside"):
                for b in body:
                    self.core.vector(b, lanes.var, lanes.count)
            return
        for i, cond in enumerate(holds):
            with self.text.where(cond, "inside"), self.memory.at_lane(lanes, i):
                for b in body:
                    self.core.store(b)

    def _all(self, conditions: list[Expr]) -> str:
        first, *others = (self.core.expr(c).ssa for c in conditions)
        for c in others:
            first = self.text.op(f"and i1 {first}, {c}")
        return first


def _statements(s: Stmt) -> tuple[list[Expr], list[Store]]:
    """What runs one after the other, under which conditions; nothing if it is something else."""
    conditions = []
    while isinstance(s, If) and s.otherwise is None:
        conditions.append(s.cond)
        s = s.then
    found = s.stmts if isinstance(s, Seq) else (s,)
    stores = [x for x in found if isinstance(x, Store)]
    return (conditions, stores) if len(stores) == len(found) else ([], [])


def _depth(s: Stmt) -> int:
    return 1 + _depth(s.body) if isinstance(s, For) else 0


__all__ = ["LANE", "Fragments"]
