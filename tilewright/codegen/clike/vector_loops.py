"""Vector types in C-like languages: a vector loop around one statement reads and writes contiguous elements at once
(`vectors.Vectors`).

Where a dialect has no pointers an array has vectors as elements, if all that is written of it is whole vectors; and
elements that share words are written as whole words, not by atomic operations, where all writes are such.
"""

from __future__ import annotations

from abc import abstractmethod

from ...schedule.nest import For, Nest, Store, writes
from ...support.sizes import highest
from ...tensor.expr import Buffer, Const, Expr, Load, Target, Var, map_loads
from ..gpu.byte_products import byte_product, byte_products
from ..gpu.indices import GpuIndices
from ..gpu.vectors import always, divided, in_turn, lanes_of, whole_only
from .expressions import ExprWriter
from .vectors import Vectors


class VectorLoops(ExprWriter):
    """A part of the printer: vector loops around one statement."""

    def begin_vectors(self, nest: Nest, ranges: dict[str, tuple[int, int]]) -> None:
        """Find out which arrays are such of vectors, or of whole words."""
        self.at = GpuIndices(None, ranges)  # type: ignore[arg-type]  # nothing here emits text
        self.at.values = self.values
        if self.dialect.vectors is None or not self.dialect.vectors.bound:
            return
        if self.dialect.dots:
            found = {x.buffer for _, p in byte_products(nest) for x in p.factors}
            self.words = frozenset(n for n in found if self.buffers[n].scope in self.dialect.shared)
        self.wholes = whole_only(nest, self.at, self.longest, self.least)
        if self.words - self.wholes:
            self.words = self.words & self.wholes
            self.wholes = whole_only(nest, self.at, self.longest, self.least)

    @abstractmethod
    def store(self, s: Store) -> None: ...

    @abstractmethod
    def assign(self, t: Target, text: str, value: Expr) -> None: ...

    @abstractmethod
    def own_bytes(self, b: Buffer) -> int: ...

    @abstractmethod
    def nbytes(self, b: Buffer) -> int: ...

    @property
    def vectors(self) -> Vectors:
        assert self.dialect.vectors is not None
        return self.dialect.vectors

    # ---- what can be taken at once

    def longest(self, b: Buffer) -> int:
        """Elements of an array that one access may take."""
        v = self.dialect.vectors
        if v is None or b.scope == "register" or (b.scope != "param" and b.scope not in self.dialect.shared):
            return 1
        if self.shares_words(b):
            return v.most if self.dialect.packed[b.dtype].bits < 32 else 1
        if v.bound:
            return v.most if self.stored_bytes(b) == 4 and highest(b.size) % v.most == 0 else 1
        return min(v.bytes // self.stored_bytes(b), v.most)

    def least(self, b: Buffer) -> int:
        """How many elements are a whole word, or a whole vector of an array of such."""
        if self.shares_words(b):
            return 32 // self.dialect.packed[b.dtype].bits
        return self.longest(b)

    def stored_bytes(self, b: Buffer) -> int:
        """Of an element of an array."""
        return self.own_bytes(b) // max(highest(b.size), 1) if b.scope != "param" else self.nbytes(b) // b.size

    def width(self, name: str, indices: tuple[Expr, ...], s: For, written: bool) -> int:
        """How many elements an access takes."""
        b, bound = self.buffers[name], self.vectors.bound
        if bound and name not in self.wholes and (written or not self.shares_words(b)):
            return 1
        found = self.at.run(b, indices, s.var, lanes_of(s), self.longest(b))
        return found if not bound or found >= self.least(b) else 1

    # ---- the loop

    def vector(self, s: For) -> bool:
        """All iterations of a vector loop; False, and nothing is written, if none of its accesses takes several."""
        if self.dialect.vectors is None or lanes_of(s) < 2 or not isinstance(s.body, Store):
            return False
        turns = in_turn(s.body, s.var, self.at, self.buffers)
        alone = writes(s.body) if turns else frozenset()
        loads = dict.fromkeys(x for t in s.body.targets for x in always(t.value) if x.buffer not in alone)
        reads = {x: n for x in loads if (n := self.width(x.buffer, x.indices, s, False)) > 1}
        wide = [1 if turns else self.width(t.buffer, t.indices, s, True) for t in s.body.targets]
        if not reads and max(wide) == 1:
            return False
        if self.copied_words(s, reads, wide):
            return True
        self.memo.append({})
        found = {x: self.read_lanes(x, s, n) for x, n in reads.items()}
        made: list[list[tuple[Target, str, Expr]]] = []
        for i in range(lanes_of(s)):
            with self.at.at_lane(s.var, i):
                own = [self.lane_target(t, found, i) for t in s.body.targets]
                if turns:
                    self.store(Store(tuple(own), s.body.block))
                else:
                    made.append([self.lane_value(t) for t in own])
        for j, n in enumerate(wide if not turns else ()):
            self.write_lanes([m[j] for m in made], s, n)
        self.memo.pop()
        for x in found.values():
            for leaf in x:
                del self.loops[leaf.name]
        return True

    def copied_words(self, s: For, reads: dict[Load, int], wide: list[int]) -> bool:
        """A copy of elements that share words on both sides, word by word; False if it is none."""
        assert isinstance(s.body, Store)
        t = s.body.targets[0]
        if len(wide) > 1 or wide[0] == 1 or not isinstance(t.value, Load) or reads.get(t.value, 1) != wide[0]:
            return False
        b, of = self.buffers[t.buffer], self.buffers[t.value.buffer]
        if not (self.shares_words(b) and self.shares_words(of)) or b.dtype != of.dtype:
            return False
        packed, several = self.dialect.packed[b.dtype], self.least(b)
        for i in range(0, lanes_of(s), several):
            with self.at.at_lane(s.var, i):
                to, at = (self.scaled(self.flat(x, y), several) for x, y in ((b, t.indices), (of, t.value.indices)))
            word = packed.word(self.names[of.name], at, self.atomic(of.name), of.name not in self.pieces)
            self.line(f"{self.names[b.name]}[{to}] = {word};")
        return True

    def lane_target(self, t: Target, found: dict[Load, list[Var]], i: int) -> Target:
        """A target with what was read for lane i in place of its loads."""
        return Target(t.buffer, t.indices, map_loads(t.value, lambda x: found[x][i] if x in found else x))

    def lane_value(self, t: Target) -> tuple[Target, str, Expr]:
        """A lane's value, which has a name where it becomes a part of a vector."""
        value = self.bound(t.value)
        self.uses = {}
        self.count_uses(value)
        text = self.expr(value)
        if not isinstance(value, (Const, Var)) and not text.isidentifier():
            name = self.fresh()
            self.define(self.local_type(value.dtype), name, text)
            text = name
        here = tuple(self.bound(i) for i in t.indices)
        return Target(t.buffer, here, t.value), text, value

    # ---- products of bytes

    def dot(self, s: For) -> bool:
        """A loop that is one product of bytes; False if the dialect has none, or they do not lie in words."""
        p = byte_product(s)
        if p is None or p.name not in self.dialect.dots or s.trip is None:
            return False
        words = [w for x in p.factors if (w := self.word(x, s)) is not None]
        if len(words) < len(p.factors):
            return False
        with self.at.at_lane(s.var, 0):
            target = Target(p.target.buffer, tuple(self.bound(i) for i in p.target.indices), p.target.value)
            self.uses = {}
            acc = self.unsigned("i32", self.bare(self.bound(p.acc))[0])
        known = self.dialect.dots[p.name]
        text = known.format(a=words[0], b=words[1]) if "{" in known else f"{self.helper(known)}({', '.join(words)})"
        made = self.cast("i32", f"({acc} + {self.unsigned('i32', text)})")
        self.assign(target, made, p.acc)
        return True

    def word(self, x: Load, s: For) -> str | None:
        """The name of four bytes, which are read once for products that follow each other."""
        b = self.buffers[x.buffer]
        if b.scope == "register" or self.at.run(b, x.indices, s.var, s.trip or 0, 4) != 4:
            return None
        if self.vectors.bound and not self.shares_words(b):
            return None
        with self.at.at_lane(s.var, 0):
            at = self.flat(b, x.indices)
            if self.vectors.bound:
                kind, packed = "u32", self.dialect.packed[b.dtype]
                text = packed.word(
                    self.names[b.name], self.scaled(at, 4), self.atomic(b.name), b.name not in self.pieces
                )
            else:
                kind = self.vectors.name(self.type(b.dtype), 4)
                text = self.vector_place(self.vectors.read, b, x.indices, 4, kind)
        if text not in self.recent:
            self.recent[text] = self.fresh()
            self.define(kind, self.recent[text], text)
        return self.recent[text]

    # ---- memory

    def read_lanes(self, x: Load, s: For, width: int) -> list[Var]:
        """The elements of all lanes as variables that have texts."""
        b, made = self.buffers[x.buffer], []
        for i in range(0, lanes_of(s), width):
            with self.at.at_lane(s.var, i):
                texts = self.read_words(b, x, width) if self.shares_words(b) else self.read_vector(b, x, width)
            for text in texts:
                leaf = Var(f"%{self.fresh()}", x.dtype)
                self.loops[leaf.name] = f"({text} != 0)" if x.dtype == "i1" else text
                made.append(leaf)
        return made

    def read_vector(self, b: Buffer, x: Load, width: int) -> list[str]:
        v, name = self.vectors, self.fresh()
        vector = v.name(self.type(b.dtype), width)
        self.define(vector, name, self.vector_place(v.read, b, x.indices, width, vector))
        return [v.element(name, i) for i in range(width)]

    def read_words(self, b: Buffer, x: Load, width: int) -> list[str]:
        """Elements that share words, of which each is read once."""
        packed, texts = self.dialect.packed[b.dtype], []
        several = 32 // packed.bits
        for i in range(0, width, several):
            name, at = self.fresh(), self.scaled(self.flat(b, x.indices) + i, several)
            self.define(
                "u32", name, packed.word(self.names[b.name], at, self.atomic(b.name), b.name not in self.pieces)
            )
            texts += [packed.value.format(word=name, shift=f"{j * packed.bits}u") for j in range(several)]
        return texts

    def vector_place(
        self, text: str, b: Buffer, indices: tuple[Expr, ...], width: int, vector: str, value: str = ""
    ) -> str:
        """The text of an access of a vector."""
        v, flat = self.vectors, self.flat(b, indices)
        at = self.scaled(flat, width) if v.bound else self.index(flat)[0]
        if b.name in self.pieces:
            return f"{self.names[b.name]}_at(i32({at}))"
        space = v.spaces.get(b.scope, "")
        return text.format(name=self.names[b.name], at=at, vector=vector, space=space, value=value)

    def scaled(self, flat: Expr, n: int) -> str:
        """An index that is a multiple of n, divided by it."""
        part = divided(flat, n)
        return self.index(part)[0] if part is not None else f"({self.index(flat)[0]}) >> {n.bit_length() - 1}u"

    def write_lanes(self, lanes: list[tuple[Target, str, Expr]], s: For, width: int) -> None:
        b = self.buffers[lanes[0][0].buffer]
        if width == 1:
            for t, text, value in lanes:
                self.assign(t, text, value)
            return
        for i in range(0, len(lanes), width):
            texts = [self.cast("i1", f"({x})") if b.dtype == "i1" else x for _, x, _ in lanes[i : i + width]]
            first = lanes[i][0].indices
            if self.shares_words(b):
                self.write_words(b, first, texts)
                continue
            v, vector = self.vectors, self.vectors.name(self.type(b.dtype), width)
            made = v.made.format(vector=vector, parts=", ".join(texts))
            self.line(self.vector_place(v.write, b, first, width, vector, made))

    def write_words(self, b: Buffer, first: tuple[Expr, ...], texts: list[str]) -> None:
        packed = self.dialect.packed[b.dtype]
        several = 32 // packed.bits
        for i in range(0, len(texts), several):
            bits = [f"({packed.stored.format(value=x)})" for x in texts[i : i + several]]
            word = " | ".join(f"({x} << {j * packed.bits}u)" if j else x for j, x in enumerate(bits))
            self.line(f"{self.names[b.name]}[{self.scaled(self.flat(b, first) + i, several)}] = {word};")


__all__ = ["VectorLoops"]
