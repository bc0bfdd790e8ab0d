"""Size limits of one kernel, so that a longer model has more kernels and no larger ones.

What a kernel costs to schedule and emit grows with what an element of its result takes: the operations that stand
behind it when all that is elementwise is computed where it is read, once for each place it is read at. The limits lie
far above what models of today ask (about 40 operations); beyond them a result goes through memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from .analysis import Analysis, Node
from .expr import Expr, Load, Op, bottom_up, children, walk

#: operations and copies in all stages of a kernel
MOST_OPERATIONS = 512
#: operations behind one element of its result
MOST_BEHIND = 2048
#: operations one behind the other: what walks an expression may do so by recursion
MOST_DEPTH = 96
#: tensors that it reads
MOST_OPERANDS = 64


class KernelSize:
    """Measures sets of nodes; each node is looked at once."""

    def __init__(self, analysis: Analysis) -> None:
        self.a = analysis
        self._own: dict[int, tuple[int, int]] = {}
        self._loads: dict[int, dict[str, int]] = {}

    def fits(self, nodes: Iterable[int]) -> bool:
        """Whether nodes may be one kernel."""
        total, outside = 0, set()
        behind: dict[int, int] = {}
        deep: dict[int, int] = {}
        for n in sorted(nodes):  # makers first
            own, depth = self.own(n)
            total, all_, below = total + own, own, 0
            for buffer, times in self.loads(n).items():
                maker = self.a.maker.get(buffer)
                if maker in behind:
                    all_, below = all_ + times * behind[maker], max(below, deep[maker])
                elif maker != n:
                    outside.add(buffer)
            if total > MOST_OPERATIONS or all_ > MOST_BEHIND or depth + below > MOST_DEPTH:
                return False
            stands = self.a.nodes[n].kind not in ("injective", "copy")  # its result is in memory
            behind[n], deep[n] = (1, 0) if stands else (all_, depth + below)
        return len(outside) <= MOST_OPERANDS

    def own(self, n: int) -> tuple[int, int]:
        """Operations of a node, and how many of them at most stand one behind the other."""
        if n not in self._own:
            self._own[n] = _measured(self.a.nodes[n])
        return self._own[n]

    def loads(self, n: int) -> dict[str, int]:
        """The buffers that a node reads, each with how often it computes an element of it: once for each place, and
        where the place is found by divisions, as often as it has them."""
        if n not in self._loads:
            found: dict[str, int] = {}
            values = [t.value for s in self.a.nodes[n].stages for t in s.targets]
            for x in {x for v in values for x in walk(v) if isinstance(x, Load)} | {*self.a.opaque_reads.get(n, ())}:
                below = {y for i in x.indices for y in walk(i)}
                divisions = sum(isinstance(y, Op) and y.op in ("floordivsi", "remsi") for y in below)
                found[x.buffer] = found.get(x.buffer, 0) + 1 + divisions
            self._loads[n] = found
        return self._loads[n]


def _measured(node: Node) -> tuple[int, int]:
    depth: dict[Expr, int] = {}
    count = len(node.stages)
    for value in [t.value for s in node.stages for t in s.targets]:
        for x in bottom_up(value, depth.__contains__):
            counts = isinstance(x, Op) and x.dtype != "index"
            depth[x] = counts + max((depth[c] for c in children(x)), default=0)
            count += counts
    return count, max(depth.values(), default=0)
