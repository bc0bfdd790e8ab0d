"""Memory access: scalar and vector loads and stores of buffers. One of the four parts of the emitter.

A buffer is read at the same place by all lanes, along neighbours, or picked out of whole vectors (`shared_tail`,
`strided`, `transposed`), else gathered; it is written along neighbours, past the caches (`non_temporal`), between the
lanes of others (`interleaved_stores`) or in a few runs, else scattered. Lanes that are masked off touch nothing, unless
they are padding.
"""

from __future__ import annotations

from functools import reduce

from ...schedule.nest import stores
from ...support.sizes import at_most, larger, less
from ...tensor.expr import Buffer, Const, Expr, Load, Op, Target, bounds, loads, substitute, variables
from .in_place_copies import InPlaceCopies
from .interleaved_stores import InterleavedStores
from .non_temporal import NonTemporal
from .part import Core, Part
from .shared_tail import SharedTail
from .transposed import TransposedTiles
from .values import Value, accumulated, element


class Access(Part):
    """Loads and stores, one by one; `members` take the loops whose accesses are better emitted together."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.shared = SharedTail(core.strided, core.machine.mask_lanes)
        self.transposed, self.non_temporal = TransposedTiles(core, self.plain), NonTemporal(core)
        self.members = (InPlaceCopies(core), self.transposed, InterleavedStores(core), self.non_temporal)

    def load(self, e: Load) -> Value:
        """An element, or a vector if its index depends on the lane."""
        b, text = self.buffers[e.buffer], self.text
        if b.scope == "register":
            return self.core.registers.load(b, e)
        if (column := self.transposed.column(e)) is not None:
            return column
        if len(loads(e)) > 1:  # its place may be written
            return self.plain(e)
        return text.remember(
            b, (e, text.vector, *map(text.env.get, variables(e))), lambda: text.before_loops(e, lambda: self.plain(e))
        )

    def plain(self, e: Load) -> Value:
        """The same from memory, if the load is in no transposed tile."""
        b, vector, text = self.buffers[e.buffer], self.text.vector, self.text
        stride = self.at.lane_stride(e.buffer, e.indices) if vector else 0
        shape = Value("", element(b.dtype), vector.width if vector and stride != 0 else 0)
        if vector is None or stride == 0:
            found = text.read(b, self.at.address(b, e.indices).ssa, shape)
        elif stride == 1:
            base = self.at.address(b, e.indices, lane0=True).ssa
            masked = vector.mask and not self._ends_in_padding(b, e.indices)
            found = text.read(b, base, shape, vector.mask if masked else None)
        else:
            near = self.shared.load(b, e.indices, shape) or self.core.strided.load(b, e.indices, shape)
            found = near or self._gather(b, e.indices, shape)
        return text.from_storage(found, b.dtype)

    def _gather(self, b: Buffer, indices: tuple[Expr, ...], shape: Value) -> Value:
        text, vector = self.text, self.text.vector
        assert vector is not None
        where = text.as_vector(self.at.address(b, indices))
        mask = vector.mask or text.all_true(vector.width)
        zero, c0 = text.const(0, shape.dtype, vector.width), text.const(0, "index")
        types = f"{text.memref(b)}, {where.type}, vector<{vector.width}xi1>, {shape.type} into {shape.type}"
        place = f"{text.memory[b.name]}[{c0}] [{where.ssa}]"
        return text.loaded(b, f"vector.gather {place}, {mask}, {zero} : {types}", shape)

    def store(self, b: Buffer, indices: tuple[Expr, ...], value: Value) -> None:
        """Write an element, or those of all active lanes."""
        vector, text = self.text.vector, self.text
        value = text.to_storage(value)
        stride = self.at.lane_stride(b.name, indices) if vector else 0
        if vector is None or stride == 0:
            text.write(b, self.at.address(b, indices).ssa, value)
            return
        value = text.as_vector(value)
        if stride == 1:
            base = self.at.address(b, indices, lane0=True).ssa
            if vector.mask and vector.first == 1:
                text.write_first(b, base, value, 1)
            elif vector.mask and not self._ends_in_padding(b, indices):
                text.write(b, base, value, vector.mask)
            else:
                text.write(b, base, value, None, self.non_temporal.attributes(b, value))
        elif not self.shared.store(b, indices, value):
            where = text.as_vector(self.at.address(b, indices))
            mask = vector.mask or text.all_true(vector.width)
            place = f"{text.memory[b.name]}[{text.const(0, 'index')}]"
            types = f"{text.memref(b)}, {where.type}, vector<{vector.width}xi1>, {value.type}"
            text.forget({b.name})
            text.line(f"vector.scatter {place} [{where.ssa}], {mask}, {value.ssa} : {types}")

    def adds_zeros(self, t: Target) -> bool:
        """Whether lanes that are masked off stay what they are: they add the product of two zeros, not read."""
        for _, product in accumulated(t) if isinstance(t.value, Op) and t.value.op == "addf" else ():
            if isinstance(product, Op) and product.op == "mulf":
                return all(isinstance(x, Load) and self._reads_zeros(x) for x in product.args)
        return False

    def _reads_zeros(self, x: Load) -> bool:
        """Whether a load gives zero in lanes that are masked off."""
        b = self.buffers[x.buffer]
        along = b.scope != "register" and self.at.lane_stride(x.buffer, x.indices) == 1
        return along and not self._ends_in_padding(b, x.indices)

    def _ends_in_padding(self, b: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether the lanes masked off of a contiguous vector of a temporary are elements of the same row that no
        statement writes: they hold nothing that is read. So they need no mask, whose cost is
        that what was just written cannot be read before it has reached the cache."""
        vector = self.text.vector
        if b.scope != "local" or vector is None or vector.first is None or not indices:
            return False
        if any(self.at.depends_on_lane(i) for i in indices[:-1]):
            return False
        first = substitute(indices[-1], {**self.at.unrolled(), vector.var: Const(0, "index")})
        start = bounds(first, self.at.ranges)
        if start is None or start[0] != start[1]:
            return False
        targets = [t for s in stores(self.core.nest.body) for t in s.targets if t.buffer == b.name]
        limits = [bounds(t.indices[-1], self.at.ranges) for t in targets]  # the last that is written, if that is known
        written = reduce(larger, (b.shape[-1] if x is None else x[1] for x in limits)) if limits else b.shape[-1]
        return less(written, start[0] + vector.first) and at_most(start[0] + vector.width, b.shape[-1])
