"""Element types as C writes them: derived from the table (`support.dtypes`), for what C99 has a type of.

Kernels have signless integers and ``index``, headers have the types of inputs and outputs. C99 has no halves and no
sub-byte types: a kernel that needs one is refused where its C is written.
"""

from __future__ import annotations

from ...support.dtypes import LOOP_TYPES, TYPES, ElementType

_FLOATS = {"f32": "float", "f64": "double"}


def _c_name(t: ElementType) -> str | None:
    if t.computed or t.kind == "float":
        return _FLOATS.get(t.name)
    if t.kind == "bool":
        return "uint8_t"
    if t.kind == "index":
        return "int32_t"  # what a microcontroller computes with
    return f"{'u' if t.kind == 'uint' else ''}int{t.bits}_t"


#: types of what kernels compute
C_TYPES = {t.name: c for t in LOOP_TYPES.values() if (c := _c_name(t)) is not None}
#: types of their integers when bits are to wrap
UNSIGNED = {n: c if c.startswith("u") else f"u{c}" for n, c in C_TYPES.items() if n not in _FLOATS}
#: bytes of an element
SIZES = {n: 4 if n == "index" else LOOP_TYPES[n].nbytes for n in C_TYPES}
#: types of inputs and outputs
HEADER_TYPES = {t.name: c for t in TYPES.values() if (c := _c_name(t)) is not None}
