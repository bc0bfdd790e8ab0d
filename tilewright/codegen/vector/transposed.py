"""In-register transposition of tiles that are read along one loop and written along the other.

    for a in unroll(16):
        for b in vector(16):
            y[a, b] = x[b, a]

Read one by one, the lanes of x would be gathered, sixteen elements from sixteen lines for every a. Instead the sixteen
rows of x are loaded as they lie, and log2(16) rounds of two-vector shuffles make them columns: in the round of step s,
vectors i and i + s exchange the elements whose position has that bit set. A tile with fewer rows or columns is read and
written with masks; rows of half a vector or less share one. Where it is not known how many rows a tile has, the last
one stands for those that are missing.

Where that is fewer shuffles, columns are picked out of whole vectors instead (see `strided`): three columns of sixteen
rows are three vectors as they lie, and two shuffles each. So are lanes of any other form whose places are known:

    for a in unroll(3):
        for b in vector(16):
            y[a * 16 + b] = x[(a * 16 + b) % 3, (a * 16 + b) // 3]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ...schedule.nest import For, Stmt, Store
from ...support.sizes import highest, is_open, lowest
from ...tensor.expr import Load, Op, Var, variables, walk
from .part import Core, Part
from .strided import Places, windows
from .values import Value, Vector, element, lanes_of, power_of_two

#: iterations of a loop whose loads are picked together, and vectors that they are picked from, at most: code grows with
#: them
MOST_PICKED, MOST_WINDOWS = 16, 12
#: rows and columns from which a tile is worth transposing in rounds
LEAST_TRANSPOSED = 4


@lru_cache(maxsize=256)
def _picking(offsets: tuple[tuple[int, ...], ...], width: int) -> tuple[int, int]:
    """How many vectors are loaded, and how many shuffled, to pick lanes at these offsets."""
    found = windows((o for vector in offsets for o in vector), width)
    needed = [sum(any(o in w for o in vector) for w in found) for vector in offsets]
    return len(found), sum(max(n - 1, 1) for n in needed)


class TransposedTiles(Part):
    """Takes unrolled loops over vectors with loads that can be read as whole tiles. `plain` reads an element or a
    vector by itself."""

    takes = (For,)

    def __init__(self, core: Core, plain: Callable[[Load], Value]) -> None:
        super().__init__(core)
        self.plain = plain
        #: for the loads of the tile at hand one vector for each iteration of the loop `_across`
        self._columns: dict[Load, list[Value]] = {}
        self._loads: dict[int, list[Load]] = {}  # of loops that it wants
        self._across = ""

    def wants(self, s: Stmt) -> bool:
        found = self._tile_loads(s) if isinstance(s, For) and s.kind == "unroll" else []
        self._loads[id(s)] = found
        return bool(found)

    def emit(self, s: Stmt) -> bool:
        assert isinstance(s, For)
        saved = self._columns, self._across
        self._columns, self._across = {x: made for x in self._loads[id(s)] if (made := self._tile(x, s))}, s.var
        self.core.unrolled(s)
        self._columns, self._across = saved
        return True

    def column(self, e: Load) -> Value | None:
        """The lanes of a load that is in the tile at hand."""
        tile = self._columns.get(e) if self.text.vector is not None else None
        if tile is None:
            return None
        at = self.text.env[self._across]
        assert isinstance(at, int)
        return tile[at]

    def _tile_loads(self, s: For) -> list[Load]:
        """The loads from memory of ``for a in unroll(n): for b in vector(m): store`` whose lanes are no neighbours, and
        not all the same."""
        lane = s.body
        if not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)):
            return []
        if s.trip is None or lane.trip is None or is_open(s.trip):
            return []
        if is_open(lane.trip) and (lowest(lane.trip) < 1 or lanes_of(lane) < highest(lane.trip)):
            return []
        if highest(lane.trip) < 2 or not 2 <= s.trip <= max(lanes_of(lane), MOST_PICKED):
            return []
        targets = lane.body.targets
        values = [x for t in targets for x in walk(t.value)]
        if any(isinstance(x, Op) and x.op == "guard" for x in values):
            return []
        written = {t.buffer for t in targets}
        loads = dict.fromkeys(x for x in values if isinstance(x, Load) and x.buffer not in written)
        return [x for x in loads if self.buffers[x.buffer].scope != "register" and self._apart(x, lane.var)]

    def _apart(self, x: Load, lane: str) -> bool:
        """Whether the lanes of a load are more than one element, and no neighbours."""
        terms = self.at.located(self.buffers[x.buffer], x.indices).terms
        jumps = any(not isinstance(t, Var) and lane in variables(t) for t in terms)
        return jumps or terms.get(Var(lane), 0) not in (0, 1)

    def _tile(self, x: Load, s: For) -> list[Value]:
        """A vector for each iteration of a laid-out loop over vectors, by the way that is cheaper; none where there is
        no better way than one by one."""
        lane = s.body
        assert isinstance(lane, For) and s.trip is not None and lane.trip is not None
        width, size = lanes_of(lane), power_of_two(s.trip)
        if is_open(lane.trip):
            crosses = LEAST_TRANSPOSED <= s.trip <= width and self._crosses(x, s.var, lane.var)
            return self._transposed(x, s) if crosses else []
        picked = self._picks(x, s, lane, width)
        if not (LEAST_TRANSPOSED <= s.trip <= width and self._crosses(x, s.var, lane.var)):
            return self._picked(x, picked[1], width) if picked else []
        rounds = size.bit_length() - 1
        transposed = self.core.machine.load_shuffles * lane.trip + size * rounds + max(lane.trip - size, 0)
        return self._picked(x, picked[1], width) if picked and picked[0] < transposed else self._transposed(x, s)

    def _picks(self, x: Load, s: For, lane: For, width: int) -> tuple[float, Places] | None:
        """What it costs to pick a load's lanes out of whole vectors, in shuffles, and their places; None where lanes
        are neighbours, and where they lie in too many vectors."""
        assert s.trip is not None and lane.trip is not None
        flat = self.at.flat(self.buffers[x.buffer], x.indices)
        if s.trip > MOST_PICKED or width < LEAST_TRANSPOSED or lane.var not in variables(flat):
            return None
        places = self.core.strided.places(flat, ((s.var, s.trip), (lane.var, lane.trip)))
        if places is None or all(o == tuple(range(o[0], o[0] + len(o))) for o in places.offsets):
            return None
        loaded, shuffled = _picking(places.offsets, width)
        return (self.core.machine.load_shuffles * loaded + shuffled, places) if loaded <= MOST_WINDOWS else None

    def _picked(self, x: Load, places: Places, width: int) -> list[Value]:
        buffer = self.buffers[x.buffer]
        found = self.core.strided.picked(buffer, places, Value("", element(buffer.dtype), width))
        return [self.text.from_storage(v, buffer.dtype) for v in found]

    def _crosses(self, x: Load, across: str, lane: str) -> bool:
        """Whether a load has steps of 1 along `across` and of more along `lane`."""
        buffer = self.buffers[x.buffer]
        if buffer.dtype == "i1":
            return False
        terms = self.at.located(buffer, x.indices).terms
        steps = {str(t): c for t, c in terms.items()}
        others = [t for t in terms if str(t) not in (across, lane)]
        jumps = any(lane in variables(t) for t in others)  # rows in no regular distance, as of fused loops
        return (
            steps.get(across) == 1
            and (jumps or steps.get(lane, 0) not in (0, 1))
            and not any(across in variables(t) for t in others)
        )

    def _transposed(self, x: Load, s: For) -> list[Value]:
        """The tile of a load: vector a has the elements (a, b) for all lanes b.

        Of a partial tile only what is there is read; the other rows and lanes hold anything."""
        lane = s.body
        assert isinstance(lane, For) and s.trip is not None and lane.trip is not None
        width, size = lanes_of(lane), power_of_two(s.trip)
        steps = {str(t): c for t, c in self.at.located(self.buffers[x.buffer], x.indices).terms.items()}
        count = width if is_open(lane.trip) else lane.trip
        if s.trip == size < width == lane.trip and steps.get(lane.var) == size:
            return self._together(x, s, lane, width)
        mask = None if s.trip == width else self.text.first_lanes(s.trip, width)
        rows: list[Value] = []
        places: list[int | str] = [*range(count)]
        if is_open(lane.trip):
            last = self.at.index(lane.extent + -1).ssa
            places[1:] = [
                self.text.op(f"arith.minsi {self.text.const(b, 'index')}, {last} : index") for b in range(1, count)
            ]
        for b in places:
            with self.text.lanes(Vector(s.var, width, mask)), self.text.bind(lane.var, b):
                rows.append(self.plain(x))
        rows += rows[:1] * (width - count)
        while len(rows) > size:  # rows of half a vector or less: several become one
            free = width * size // len(rows)
            both = [j if j < free else width + j - free if j < 2 * free else 0 for j in range(width)]
            rows = [self.text.shuffle(rows[i], rows[i + size], both) for i in range(len(rows)) if not i & size]
        return self._exchanged(rows, width)

    def _together(self, x: Load, s: For, lane: For, width: int) -> list[Value]:
        """The columns of rows that are vectors together."""
        assert s.trip is not None
        whole: list[Value] = []
        each = width // s.trip
        for b in range(0, width, each):
            with self.text.lanes(Vector(s.var, width, None)), self.text.bind(lane.var, b):
                whole.append(self.plain(x))
        place = [(b % each) * s.trip + b // each for b in range(width)]
        return [self.text.shuffle(v, v, place) for v in self._exchanged(whole, width)]

    def _exchanged(self, rows: list[Value], width: int) -> list[Value]:
        """n vectors of `width` lanes, transposed in squares of n by n."""
        rows, step = list(rows), 1
        while step < len(rows):
            low = [j if not j & step else width + j - step for j in range(width)]
            high = [j + step if not j & step else width + j for j in range(width)]
            for i in range(len(rows)):
                if not i & step:
                    pair = rows[i], rows[i + step]
                    rows[i], rows[i + step] = (self.text.shuffle(*pair, mask) for mask in (low, high))
            step *= 2
        return rows
