"""Elements of register buffers: SSA values by name and flat index, which loops and branches carry along."""

from __future__ import annotations

from collections.abc import Set

from ...schedule.nest import Alloc, For, Stmt, Store, children, writes
from ...support.errors import CompileError
from ...tensor.expr import Buffer, Expr, Load, const_value, simplify, substitute
from .strided import Strided
from .values import Value, Vector, lanes_of

#: a register element: its buffer and its flat index (that of the first lane)
Key = tuple[str, int]


class Registers:
    """Which elements there are, and in which lanes they are used; their values are in the builder's scopes."""

    def __init__(self, strided: Strided) -> None:
        self.at, self.text, self.buffers, self.strided = strided.at, strided.text, strided.at.buffers, strided
        self._alive: set[str] = set()
        self._whole: set[Key] = set()
        #: offsets of the lanes from the first one; None: contiguous
        self._lanes: dict[Key, tuple[int, ...] | None] = {}

    def key(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Key:
        """The element, the same one for all lanes of a vector, which must always be used in the same order."""
        place, vector, lanes, env = self.at.located(buffer, indices), self.text.vector, None, self.text.env
        constant = place.constant
        for name, c in place.moves:
            bound = env.get(name)
            if isinstance(bound, int):
                constant += c * bound
            elif not (vector and name == vector.var and c == 1):
                constant, lanes = self._spread(buffer, self.at.flat(buffer, indices), name)
                break
        key = buffer.name, constant
        if self._lanes.setdefault(key, lanes) != lanes:
            raise CompileError(f"register {buffer.name}[{key[1]}] is used in lanes of different orders", stage="emit")
        return key

    def _spread(self, buffer: Buffer, flat: Expr, term: str) -> tuple[int, tuple[int, ...]]:
        """The element in the first lane, and the others' offsets from it where they are not contiguous."""
        found = self.strided.lane_offsets(flat)
        first = None if found is None else const_value(simplify(substitute(found[0], self.at.unrolled()), {}))
        if found is None or first is None:
            why = f"register buffer {buffer.name} is indexed by {term}, which is not unrolled"
            raise CompileError(why, stage="emit")
        return first, found[1]

    def value(self, key: Key, shape: tuple[str, int]) -> Value:
        """The current value of an element (zero if never written)."""
        if key not in self.text.registers:
            dtype, width = shape
            self.text.registers[key] = Value(self.text.const(0, dtype, width), dtype, width)
        return self.text.registers[key]

    def load(self, buffer: Buffer, e: Load) -> Value:
        key = self.key(buffer, e.indices)
        if (found := self.text.registers.get(key)) is None:
            raise CompileError(f"register {buffer.name}[{key[1]}] is read before it is written", stage="emit")
        return found

    def write(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value, keeps: bool) -> None:
        """Set an element; lanes that are masked off stay what they are, unless the value `keeps` them."""
        key = self.key(buffer, indices)
        vector = self.text.vector
        if vector and self.at.lane_stride(buffer.name, indices) != 0:
            value = self.text.as_vector(value)
            if vector.mask and key not in self._whole and not keeps:
                value = self.text.select(vector.mask, value, self.value(key, (buffer.dtype, vector.width)).ssa)
        self.text.registers[key] = value

    def free(self, buffer: str) -> None:
        """The end of a buffer: another one of this name may be used in other lanes."""
        self._alive.discard(buffer)
        self.text.registers = {k: v for k, v in self.text.registers.items() if k[0] != buffer}
        self._lanes = {k: v for k, v in self._lanes.items() if k[0] != buffer}

    # ---- what statements write ----

    def written(self, s: Stmt) -> dict[Key, tuple[str, int]]:
        """The elements written below `s` and living outside it: key -> (dtype, vector width or 0)."""
        names = writes(s) & self._alive
        return {key: (dtype, lanes) for key, dtype, lanes, _ in (self._writes(s, names) if names else ())}

    def begin(self, s: Alloc) -> None:
        """Remember the elements of a register buffer that are always written under the same mask.

        Their inactive lanes are never defined, so there is nothing to keep in them: masked writes need no select.
        """
        self._alive.add(s.buffer.name)
        if self.text.vector is None and not self._masked(s.body, s.buffer.name):
            return
        masks: dict[Key, set[int]] = {}
        for key, _, _, active in self._writes(s.body, {s.buffer.name}):
            masks.setdefault(key, set()).add(active)
        for key, found in masks.items():
            (self._whole.add if len(found) == 1 else self._whole.discard)(key)

    def _masked(self, s: Stmt, name: str) -> bool:
        """Whether a buffer is written in a vector of which some lanes are masked off."""
        if isinstance(s, For) and s.kind == "vector":
            return s.trip != lanes_of(s)
        return any(self._masked(c, name) for c in children(s) if name in writes(c))

    def _writes(self, s: Stmt, names: Set[str]) -> list[tuple[Key, str, int, int]]:
        """(element, dtype, lanes, active lanes) of what is written below `s` in buffers of these names."""
        found = []
        if isinstance(s, For) and s.kind == "unroll":
            for i in range(s.trip or 0):
                with self.text.bind(s.var, i):
                    found += self._writes(s.body, names)
        elif isinstance(s, For) and s.kind == "vector":
            with self.text.lanes(Vector(s.var, lanes_of(s), str(s.trip), s.trip)):
                found = self._writes(s.body, names)
        elif isinstance(s, Store):
            for t in s.targets:
                if t.buffer in names:
                    b, vector = self.buffers[t.buffer], None if self.at.invariant(t) else self.text.vector
                    lanes, active = (vector.width, vector.first or 0) if vector else (0, 0)
                    found.append((self.key(b, t.indices), b.dtype, lanes, active))
        else:
            for c in children(s):
                if not names.isdisjoint(writes(c)):
                    found += self._writes(c, names)
        return found
