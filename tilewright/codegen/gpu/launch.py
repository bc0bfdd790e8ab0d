"""Launch configuration of a nest: the sizes of its grid and blocks, and which loop iteration each thread has.

Nests that are scheduled for a processor bind loops to ``thread``: here each iteration is one of a GPU's.
"""

from __future__ import annotations

from ...schedule.concurrency import NestAxes
from ...schedule.machine import Machine
from ...schedule.nest import THREAD, For, Nest, walk_stmts
from ...schedule.producers import PRODUCER
from ...support.errors import CompileError
from .open_launch import Launch
from .open_sizes import axis_extents

#: threads of a block where the machine's record has no warp size
UNITS = 64
#: axes whose index is a hardware register (blockIdx, threadIdx)
_COUNTED = tuple(f"{axis}.{d}" for axis in ("grid", "block") for d in "xyz")
#: the axis of thread block clusters: the hardware counts them along the grid's x
CLUSTER, _CLUSTERED = "cluster", "grid.x"
#: threads of a block in teams that run instructions together, warps of lanes or warpgroups of members: the axis within
#: a team -> that of teams. The size of a team is the limit of the axis within it
_TEAMS = {"lane": "warp", "member": "group"}


class LaunchAxes:
    """The hardware axes that loops of a nest are bound to: `kinds`, outer ones first, with the extent of each; blocks,
    and threads of all, may be sizes of open dimensions."""

    def __init__(self, nest: Nest, machine: Machine) -> None:
        self.nest_axes = NestAxes.of(nest.body, machine)
        self.kinds = list(self.nest_axes.kinds)
        self.count = {**dict.fromkeys(self.kinds, 1), **axis_extents(nest, lambda s: s.trip or 0)}
        known = (*_COUNTED, CLUSTER, *(x for member, team in _TEAMS.items() for x in (team, member)), THREAD)
        if unknown := [k for k in self.kinds if k not in known]:
            raise CompileError(
                f"a loop on axis {unknown[0]} is none of a GPU's", stage="emit", operator=nest.name,
                hint=f"bind loops to {', '.join(known)}",
            )  # fmt: skip
        used = set(self.kinds)
        if all(k.startswith("grid.") or k == CLUSTER for k in self.kinds):
            # one team alone, if it holds matrices in parts
            scopes = {b.scope for b in nest.buffers().values()}
            used |= {m.shared_by[0] for m in machine.memories if m.name in scopes and len(m.shared_by) == 1}
        limits = {a.name: a.limit or 1 for a in machine.axes}
        self.warp = limits.get("lane", UNITS)  # threads that run one instruction together
        self.lane = next((u for u, team in _TEAMS.items() if {u, team} & used), "")
        self.team, self.lanes = _TEAMS.get(self.lane, ""), limits.get(self.lane, self.warp)
        if self.lane:  # a team has all its lanes, bound or not
            self.add(self.lane, machine)
            self.count[self.lane] = self.lanes
        if any(isinstance(s, For) and s.note(PRODUCER) for s in walk_stmts(nest.body)):
            self.add_producer(nest, machine)

    def add(self, kind: str, machine: Machine) -> None:
        """An axis that the nest uses without loops on it."""
        self.kinds += [] if kind in self.kinds else [kind]
        self.nest_axes.axes.setdefault(kind, next(a for a in machine.axes if a.name == kind))

    def add_producer(self, nest: Nest, machine: Machine) -> None:
        """One more team, which begins copies."""
        if not self.lane:
            raise CompileError(
                "the threads that begin copies are a team of their own, and no loop is bound to teams",
                stage="emit", operator=nest.name, hint=f"bind loops to {' or '.join(_TEAMS.values())}",
            )  # fmt: skip
        self.add(self.team, machine)
        self.count[self.team] = self.count.get(self.team, 1) + 1
        if self.count[self.team] > (self.nest_axes.axes[self.team].limit or 0):
            raise CompileError(
                f"there is no {self.team} left that could begin copies: the loops on it have "
                f"{self.count[self.team] - 1} iterations",
                stage="emit", operator=nest.name,
            )  # fmt: skip

    @property
    def launch(self) -> Launch:
        if THREAD in self.count:  # one thread an iteration, as many blocks as that needs
            return Launch((-(-self.count[THREAD] // self.warp), 1, 1), (self.warp, 1, 1))
        (x, y, z), block = self._sides("grid"), self._sides("block")
        if self.lane:
            block = (self.count.get(self.team, 1) * self.lanes, 1, 1)
        return Launch((x * self.clustered, y, z), block)

    def _sides(self, axis: str) -> tuple[int, int, int]:
        x, y, z = (self.count.get(f"{axis}.{d}", 1) for d in "xyz")
        return x, y, z

    @property
    def clustered(self) -> int:
        """Blocks of a cluster."""
        return self.count.get(CLUSTER, 1)

    def counted_on(self, kind: str) -> str:
        """The axis whose index is a hardware register; those of warps and lanes are computed from that of threads."""
        return kind if kind in _COUNTED else _CLUSTERED if kind == CLUSTER else "block.x"

    def is_cluster(self, kind: str) -> bool:
        """Whether the axis is that of blocks within a cluster."""
        return kind == CLUSTER

    def has_clusters(self, kind: str) -> bool:
        """Whether the axis is that of clusters, where the hardware counts blocks."""
        return kind == _CLUSTERED and self.clustered > 1

    def is_thread(self, kind: str) -> bool:
        """Whether the axis is that of all threads of the grid."""
        return kind == THREAD

    def is_team(self, kind: str) -> bool:
        """Whether the axis is that of teams: warps, or warpgroups."""
        return bool(self.lane) and kind == self.team

    def is_lane(self, kind: str) -> bool:
        """Whether the axis is that of lanes within a team."""
        return bool(self.lane) and kind == self.lane
