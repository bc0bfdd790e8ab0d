"""Products of matrices in tile registers (Intel's AMX, see `amx`).

A loop with the note ``tiles`` (the name of one of `amx.TILES`) and those in it are products of tiles; the outer ones
are the reduction, the inner ones rows, columns and one step of the reduction:

    for k in serial(24, notes={'tiles': 'amx_bf16'}):
        for m in unroll(32): for n in unroll(32): for q in unroll(32):
            acc[m, n] += extf(x[m, k*32 + q]) * extf(w[k*16 + q // 2, n, q % 2])

    ->  tilezero C00 C01 C10 C11;  loop: tileload A0 B0; C00 += A0*B0; tileload B1; C01 += A0*B1 ...;  tilestore C00 ...

Registers are not LLVM's to allocate: numbers are given here, sums first, then the tiles of x, then those of w. Their
shapes are a table in memory that `ldtilecfg` reads, once for each call of the kernel, or when a block of sums has
another shape than the one before (loading a table clears all tiles).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from itertools import product as pairs_of

from ...codegen.vector.part import Core, Part
from ...codegen.vector.values import BYTES, Value, accumulated
from ...schedule.machine import TileProduct
from ...schedule.nest import For, Nest, Seq, Stmt, Store
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Load, Op, const_value, linear, simplify, substitute, variables
from .amx import INTRINSICS, TILES, need

# ---- what a loop is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """One loop of products of tiles: its instruction, the loops of the tile (outermost first), the sums, the factors,
    and how far (in elements) a row of each is from the next.

    `rows` are the tiles of rows: (values of the loops of rows, number of rows); `columns` those of columns: (first
    column, number of columns); `depth` is the step of the reduction.
    """

    product: TileProduct
    first: For
    acc: Load
    x: Load
    w: Load
    steps: dict[str, int]
    variables: tuple[str, ...]
    rows: tuple[tuple[dict[str, int], int], ...]
    column: str | None
    columns: tuple[tuple[int, int], ...]
    deep: str
    depth: int

    def number(self, row: int, column: int) -> int:
        """The register of a tile of sums; x's and w's come after them."""
        return row * len(self.columns) + column

    def x_number(self, row: int) -> int:
        return len(self.rows) * len(self.columns) + row

    def w_number(self, column: int) -> int:
        return len(self.rows) * len(self.columns) + len(self.rows) + column

    def configuration(self) -> tuple[int, ...]:
        """The table of shapes: 64 bytes, bytes of a row from 16 on, rows from 48 on."""
        table = [0] * 64
        table[0] = 1  # the only palette there is: 8 registers of 16 rows of 64 bytes

        def shape(number: int, rows: int, row_bytes: int) -> None:
            table[16 + 2 * number], table[48 + number] = row_bytes, rows

        for i, (_, rows) in enumerate(self.rows):
            shape(self.x_number(i), rows, self.depth * self.product.size)
            for j, (_, columns) in enumerate(self.columns):
                shape(self.number(i, j), rows, 4 * columns)
        for j, (_, columns) in enumerate(self.columns):
            shape(self.w_number(j), self.depth // self.product.group, 4 * columns)
        return tuple(table)


class TileReader:
    """Recognizes the loops; CompileError if one with the note is something else."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.buffers = nest, nest.buffers()

    def tiles(self) -> dict[int, Tile]:
        """All of a nest, by the identity of the loop with the note."""
        return {id(s): self.read(s) for s in self.nest.body.loops if s.note("tiles") is not None}

    def refuse(self, s: For, why: str) -> CompileError:
        return CompileError(f"loop {s.var} is no product of tiles: {why}", stage="emit", operator=self.nest.name)

    def read(self, s: For) -> Tile:
        product = TILES.get(s.note("tiles"))
        if product is None:
            raise self.refuse(s, f"there is no instruction {s.note('tiles')!r}")
        loops: list[For] = []
        body: Stmt = s
        while isinstance(body, For):
            loops.append(body)
            body = body.body
        if not isinstance(body, Store) or len(body.targets) != 1:
            raise self.refuse(s, "it does more than one thing")
        acc, x, w = self.factors(s, body, product)
        inner = [f for f in loops[1:-1] if self.step(acc, f.var) != 0]
        *inside, deep = [*inner, loops[-1]]
        if len(loops) < 2 or self.step(acc, deep.var) != 0 or any(f.trip is None for f in (*inside, deep)):
            raise self.refuse(s, "its innermost loops are not rows, columns and a step of the reduction")
        if loops[-len(inside) - 1 :] != [*inside, deep]:
            raise self.refuse(s, "loops of the reduction are inside the tile")
        columns = [f for f in inside if self.step(w, f.var) != 0]
        rows = [f for f in inside if f not in columns]
        steps = {
            "x": self.step(x, rows[-1].var) if rows else 0,
            "acc": self.step(acc, rows[-1].var) if rows else 0,
            "w": self.packed(s, w, columns, deep, product),
        }
        even = all(self.step(load, f.var) is not None for f in rows for load in (acc, x))
        right = [(self.step(x, f.var), self.step(acc, f.var)) for f in columns] == [(0, 1)] * len(columns)
        if len(columns) > 1 or not even or not right or self.step(x, deep.var) != 1:
            raise self.refuse(s, "its operands do not move as the instruction's")
        if (deep.trip or 0) > product.depth or (deep.trip or 0) % product.group:
            raise self.refuse(s, f"its step of the reduction is {deep.trip}")
        width = (columns[0].trip or 1) if columns else 1
        spans = tuple((c, min(product.columns, width - c)) for c in range(0, width, product.columns))
        row_tiles = tuple(_row_tiles(rows, product.rows))
        if len(row_tiles) * len(spans) + len(row_tiles) + len(spans) > product.registers:
            raise self.refuse(s, f"it needs more than {product.registers} registers")
        names = tuple(f.var for f in (*inside, deep))
        column = columns[0].var if columns else None
        first = inside[0] if inside else deep
        final = {k: v or 0 for k, v in steps.items()}
        return Tile(product, first, acc, x, w, final, names, row_tiles, column, spans, deep.var, deep.trip or 0)

    def factors(self, s: For, store: Store, product: TileProduct) -> tuple[Load, Load, Load]:
        """(sum, x, w) of ``acc += x * w``: w is laid out for the instruction."""
        (t,) = store.targets
        v = t.value
        add, multiply = ("addf", "mulf") if product.dtype == "bf16" else ("addi", "muli")
        if isinstance(v, Op) and v.op == add:
            for acc, other in accumulated(t):
                if isinstance(other, Op) and other.op == multiply and len(other.args) == 2:
                    for x, w in (other.args, other.args[::-1]):
                        if self.extended(x, product, 0) and self.extended(w, product, 1) and self.laid_out(w):
                            assert isinstance(x, Op) and isinstance(w, Op)
                            return acc, x.args[0], w.args[0]  # type: ignore[return-value]
        raise self.refuse(s, f"it does not add products of {product.dtype} with the signs of {product.name}")

    def extended(self, e: Expr, product: TileProduct, which: int) -> bool:
        """Whether a factor is a number from memory of the type and signedness that the instruction takes."""
        wanted = {"f": "extf", "s": "extsi", "u": "extui"}[product.signs[which]]
        if not (isinstance(e, Op) and e.op == wanted and isinstance(e.args[0], Load)):
            return False
        buffer = self.buffers[e.args[0].buffer]
        return buffer.dtype == product.dtype and buffer.scope != "register"

    def laid_out(self, e: Expr) -> bool:
        load = e.args[0] if isinstance(e, Op) else e
        return isinstance(load, Load) and (load.buffer in self.nest.packs or self.buffers[load.buffer].scope == "local")

    def flat(self, x: Load) -> Expr:
        total: Expr = Const(0, "index")
        for i, stride in zip(x.indices, self.buffers[x.buffer].strides, strict=True):
            total = total + i * stride
        return total

    def step(self, x: Load, var: str) -> int | None:
        """How far an element moves when a loop advances; None if that varies."""
        total = 0
        for t, c in linear(self.flat(x))[0].items():
            if getattr(t, "name", None) == var:
                total += c
            elif var in variables(t):
                return None
        return total

    def packed(self, s: For, w: Load, columns: Sequence[For], deep: For, product: TileProduct) -> int:
        """How far the groups of the reduction are from each other in w: [reduction / group][columns][group]."""
        flat = self.flat(w)

        def moved(var: str, value: int) -> int | None:
            here, start = (simplify(substitute(flat, {var: Const(v, "index")}), {}) for v in (value, 0))
            terms, constant = linear(here + start * Const(-1, "index"))
            return None if any(terms.values()) else const_value(Const(constant, "index"))

        group = product.group
        row = moved(deep.var, group) if (deep.trip or 0) > group else group
        wanted = [(k // group) * (row or 0) + k % group for k in range(deep.trip or 0)]
        if [moved(deep.var, k) for k in range(deep.trip or 0)] != wanted:
            raise self.refuse(s, f"{w.buffer} is not laid out in groups of {group}")
        for f in columns:
            if [moved(f.var, n) for n in range(f.trip or 0)] != [group * n for n in range(f.trip or 0)]:
                raise self.refuse(s, f"the columns of {w.buffer} are not side by side")
        return row or 0


def _row_tiles(rows: Sequence[For], most: int) -> Iterator[tuple[dict[str, int], int]]:
    """The innermost loop of rows in pieces that fit a register, for every value of those around it."""
    if not rows:
        yield {}, 1
        return
    *around, last = rows
    for values in pairs_of(*(range(f.trip or 0) for f in around)):
        outer = {f.var: v for f, v in zip(around, values, strict=True)}
        for start in range(0, last.trip or 0, most):
            yield {**outer, last.var: start}, min(most, (last.trip or 0) - start)


# ---- emission ------------------------------------------------------------------------------------------------------


class TileProducts(Part):
    """Takes such loops."""

    takes = (Seq, For)

    def __init__(self, core: Core, features: Sequence[str]) -> None:
        super().__init__(core)
        self.features = features
        #: by the loop with the note; the one being emitted; those whose sums begin with zeros
        self.tiles = TileReader(core.nest).tiles()
        self.tile: Tile | None = None
        self.zeroed: set[int] = set()
        #: all tables of shapes; where the number of the loaded one is kept, if there are several
        self.shapes = sorted({t.configuration() for t in self.tiles.values()})
        self.loaded_shapes = ""

    def begin(self) -> None:
        """Load the table of shapes if there is just one; else note that none is loaded."""
        if missing := {need(t.product) for t in self.tiles.values()} - {*self.features}:
            name, lacks = self.core.nest.name, ", ".join(sorted(missing))
            why = f"kernel {name} multiplies tiles, and the processor has no {lacks}"
            raise CompileError(why, stage="emit", hint="schedule it for this processor")
        if len(self.shapes) == 1:
            self.load_shapes(0)
        elif self.shapes:
            self.loaded_shapes = self.text.fresh()
            self.text.line(f"{self.loaded_shapes} = memref.alloca() : memref<1xi64>")  # LLVM keeps it in a register
            self.note_shapes(-1)

    def end(self) -> None:
        """Give the registers back: a thread that holds none is switched faster."""
        if self.tiles:
            self.tile_op("tilerelease")

    def wants(self, s: Stmt) -> bool:
        return bool(self.tiles)

    def emit(self, s: Stmt) -> bool:
        if isinstance(s, Seq):
            return self.sequence(s)
        if self.tile is not None and s is self.tile.first:
            self.tile_step(self.tile)
            return True
        tile = self.tiles.get(id(s))
        if tile is None or not isinstance(s, For):
            return False
        if s.kind != "serial" or self.text.vector is not None:
            raise CompileError(f"loop {s.var} of products of tiles is not serial", stage="emit")
        if len(self.shapes) > 1:
            self.change_shapes(self.shapes.index(tile.configuration()))
        for i, j in self.sums(tile):
            if id(s) in self.zeroed:
                self.tile_op("tilezero", tile.number(i, j))
            else:
                self.tile_op("tileloadd64", tile.number(i, j), *self.place(tile, tile.acc, "acc", i, j))
        self.tile = tile
        self.core.counted(s, self.text.const(0, "index"), self.at.index(s.extent).ssa)
        self.tile = None
        for i, j in self.sums(tile):
            self.tile_op("tilestored64", tile.number(i, j), *self.place(tile, tile.acc, "acc", i, j))
        self.text.forget({tile.acc.buffer})
        return True

    def sequence(self, s: Seq) -> bool:
        """Emit a sequence without the statements that set to zero what the next one sums up in tiles."""
        starts = set()
        for x, after in pairwise(s.stmts) if self.tiles else ():
            tile = self.tiles.get(id(after))
            if tile is not None and _sets_to_zero(x, tile):
                starts.add(id(x))
                self.zeroed.add(id(after))
        for x in s.stmts if starts else ():
            if id(x) not in starts:
                self.core.stmt(x)
        return bool(starts)

    def sums(self, tile: Tile) -> Iterator[tuple[int, int]]:
        return pairs_of(range(len(tile.rows)), range(len(tile.columns)))

    def tile_step(self, tile: Tile) -> None:
        """All products of one step; each operand is loaded just before it is needed first."""
        for i, j in self.sums(tile):
            if j == 0:
                self.tile_op("tileloadd64", tile.x_number(i), *self.place(tile, tile.x, "x", i, 0))
            if i == 0:
                self.tile_op("tileloadd64", tile.w_number(j), *self.place(tile, tile.w, "w", 0, j))
            self.tile_op(INTRINSICS[tile.product.name], tile.number(i, j), tile.x_number(i), tile.w_number(j))

    def place(self, tile: Tile, x: Load, which: str, row: int, column: int) -> tuple[str, str]:
        """Address and bytes between rows of a tile in memory."""
        values: dict[str, int] = dict.fromkeys(tile.variables, 0) | tile.rows[row][0]
        if tile.column is not None:
            values[tile.column] = tile.columns[column][0]
        buffer = self.buffers[x.buffer]
        size = BYTES[buffer.dtype]
        flat = substitute(self.at.flat(buffer, x.indices), {v: Const(n, "index") for v, n in values.items()})
        flat = simplify(flat, self.at.ranges)
        start = self.text.start(buffer)
        offset = [self.at.index(flat), Value(self.text.const(size, "index"), "index")]
        where = self.text.op(f"arith.addi {start}, {self.text.elementwise('arith.muli', offset, 'index').ssa} : index")
        return self.pointer(where), self.text.const(max(tile.steps[which] * size, 1), "i64")

    def pointer(self, where: str) -> str:
        number = self.text.op(f"arith.index_cast {where} : index to i64")
        return self.text.op(f"llvm.inttoptr {number} : i64 to !llvm.ptr")

    def change_shapes(self, number: int) -> None:
        """Load a table of shapes unless it is the one that is loaded."""
        loaded, zero = self.text.fresh(), self.text.const(0, "index")
        self.text.line(f"{loaded} = memref.load {self.loaded_shapes}[{zero}] : memref<1xi64>")
        other = self.text.op(f"arith.cmpi ne, {loaded}, {self.text.const(number, 'i64')} : i64")
        self.text.line(f"scf.if {other} {{")
        with self.text.scope():
            self.load_shapes(number)
            self.note_shapes(number)
        self.text.line("}")

    def note_shapes(self, number: int) -> None:
        value, zero = self.text.const(number, "i64"), self.text.const(0, "index")
        self.text.line(f"memref.store {value}, {self.loaded_shapes}[{zero}] : memref<1xi64>")

    def load_shapes(self, number: int) -> None:
        """Load a table of shapes, which is a constant of the module."""
        name, table = f"tiles_{number}", list(self.shapes[number])
        self.text.declared[name] = (
            f'memref.global "private" constant @{name} : memref<64xi8> = dense<{table}> {{alignment = 64}}'
        )
        shapes = self.text.op(f"memref.get_global @{name} : memref<64xi8>")
        start = self.text.op(f"memref.extract_aligned_pointer_as_index {shapes} : memref<64xi8> -> index")
        self.tile_op("ldtilecfg", self.pointer(start))

    def tile_op(self, name: str, *arguments: int | str) -> None:
        """One instruction: register numbers are constants, addresses come before distances."""
        names, types = [], []
        for a in arguments:
            names.append(self.text.const(a, "i8") if isinstance(a, int) else a)
            types.append("i8" if isinstance(a, int) else "i64" if "!llvm.ptr" in types else "!llvm.ptr")
        self.text.line(f'llvm.call_intrinsic "llvm.x86.{name}"({", ".join(names)}) : ({", ".join(types)}) -> ()')


def _sets_to_zero(s: Stmt, tile: Tile) -> bool:
    """Whether a statement sets exactly the sums of a tile to zero: it is the start that `finish` made of the same
    loops."""
    trips = []
    while isinstance(s, For):
        trips.append(s.trip)
        s = s.body
    if not isinstance(s, Store) or len(s.targets) != 1:
        return False
    (t,) = s.targets
    rows = sum(n for _, n in tile.rows)
    count = 1
    for n in trips:
        count *= n or 0
    zero = isinstance(t.value, Const) and t.value.value == 0
    named = {v for i in t.indices for v in variables(i)} >= set(tile.variables) - {tile.deep}
    return zero and named and t.buffer == tile.acc.buffer and count == rows * sum(n for _, n in tile.columns)
