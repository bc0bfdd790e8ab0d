"""Dialect tables of vector types: how a C-like language loads and stores contiguous elements as one vector.

out2[i * 4 + l] = in0[i * 4 + l] + in1[l];       ->   const float4 v1 = *(__global const float4 *)(in0 + i * 4);
for all l of a vector loop of four                    ...
                                                      *(__global float4 *)(out2 + i * 4) = (float4)(v2, v3, v4, v5);
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Vectors:
    """How a dialect has vectors: `bytes` and `most` elements in one at most. Texts have `type` (an element's), `n`,
    `vector`, `name` and `at` (of an array), `space` (where it lies, of `spaces` by scope), `value` and `parts`.
    `bound`: arrays have vectors of `most` elements of 32 bits as elements."""

    type: str
    read: str
    write: str
    part: str = "{name}.{part}"
    made: str = "{vector}({parts})"
    spaces: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 16
    most: int = 4
    bound: bool = False

    def name(self, kind: str, n: int) -> str:
        return self.type.format(type=kind, n=n)

    def element(self, vector: str, i: int) -> str:
        """One of a vector that has a name."""
        return self.part.format(name=vector, part="xyzw"[i], i=i)
