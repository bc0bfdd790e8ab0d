"""Buffers larger than a device's binding limit: they are bound as several parameters, which a helper function indexes
as one.

let x = in0[i];    ->    let x = in0_at(i);

fn in0_at(i: i32) -> f32 {
    if (i < 32) { return in0_0[i]; }
    return in0_1[i - 32];
}
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SplitBindings:
    """How a dialect binds what is read: `bytes` of a parameter at once (a multiple of what bindings begin at)."""

    bytes: int

    def count(self, nbytes: int) -> int:
        """Pieces of a parameter of so many bytes.

        >>> SplitBindings(256).count(256), SplitBindings(256).count(257), SplitBindings(256).count(0)
        (1, 2, 1)
        """
        return max(-(-nbytes // self.bytes), 1)

    def reader(self, name: str, kind: str, element_bytes: int, count: int) -> str:
        """The function that reads an element, of type `kind`, of any of the pieces.

        >>> print(SplitBindings(256).reader("in0", "f32", 4, 2))
        fn in0_at(i: i32) -> f32 {
            if (i < 64) { return in0_0[i]; }
            return in0_1[i - 64];
        }
        """
        each = self.bytes // element_bytes
        places = [f"{name}_{n}[i{f' - {n * each}' if n else ''}]" for n in range(count)]
        tests = [f"    if (i < {(n + 1) * each}) {{ return {place}; }}" for n, place in enumerate(places[:-1])]
        return "\n".join([f"fn {name}_at(i: i32) -> {kind} {{", *tests, f"    return {places[-1]};", "}"])


def element(name: str, at: str, whole: bool) -> str:
    """The text of an element of a parameter, bound as a whole or in pieces."""
    return f"{name}[{at}]" if whole else f"{name}_at(i32({at}))"
