"""Cuts a program into segments, each of one device: its uploads, calls, and downloads.

The host's segments become native functions. A device runs a segment as one recording; copies that stand between its
calls move to its beginning or its end where the memory that they touch allows it, else a new segment begins. Each call
of a coprocessor, which works in the host's memory, is a segment of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from ...program.program import COPY, BufferRef, Call, Program, TensorInfo
from ..base import Target

#: the number of the host's memory
HOST = 0
#: that of a coprocessor's calls
BESIDE = -1
#: a space of the host's memory by which values go from one device to another one
BOUNCE = "bounce"


@dataclass(frozen=True)
class Transfer:
    """A copy between the host and a device: the number of the call, and the two buffers."""

    number: int
    host: BufferRef
    device: BufferRef


@dataclass
class Segment:
    """Calls in order, with their numbers, and the copies before and after them."""

    device: int
    calls: list[tuple[int, Call]] = field(default_factory=list)
    uploads: list[Transfer] = field(default_factory=list)
    downloads: list[Transfer] = field(default_factory=list)

    @property
    def symbols(self) -> list[str]:
        """The kernels that are called, each once; none where values are only copied."""
        return list(dict.fromkeys(c.symbol for _, c in self.calls if c.symbol != COPY))

    def accesses(self) -> Iterator[tuple[BufferRef, bool]]:
        """What the calls read and write."""
        for _, call in self.calls:
            yield from call.accesses()

    def may_call(self, call: Call) -> bool:
        """Whether one more call may stand before what is fetched."""
        written = [ref for ref, writes in call.accesses() if writes]
        return not any(ref.overlaps(t.device) for ref in written for t in self.downloads)

    def may_upload(self, t: Transfer) -> bool:
        """Whether one more copy to the device may stand before all calls."""
        busy = [*(ref for ref, _ in self.accesses()), *(d.device for d in self.downloads)]
        return not any(t.device.overlaps(ref) for ref in busy) and not any(
            t.host.overlaps(d.host) for d in self.downloads
        )


def segments(program: Program, taken: Set[str] = frozenset()) -> list[Segment]:
    """The calls of a program in order, in as few segments as their order allows; a coprocessor runs the symbols
    `taken`."""
    found: list[Segment] = []
    for number, call in enumerate(program.calls):
        if call.symbol in taken:
            found.append(Segment(BESIDE, [(number, call)]))
            continue
        source = program.device_of(call.args[0]) if call.symbol == COPY else call.device
        if source == call.device:
            _call(found, number, call)
        elif not call.args[0].nbytes:
            continue
        elif source == HOST:
            _upload(found, call.device, Transfer(number, call.args[0], call.args[1]))
        elif call.device == HOST:
            _download(found, source, Transfer(number, call.args[1], call.args[0]))
        else:
            between = BufferRef(BOUNCE, number, 0, call.args[0].nbytes)
            _download(found, source, Transfer(number, between, call.args[0]))
            _upload(found, call.device, Transfer(number, between, call.args[1]))
    return found


def _call(found: list[Segment], number: int, call: Call) -> None:
    if not found or found[-1].device != call.device or not found[-1].may_call(call):
        found.append(Segment(call.device))
    found[-1].calls.append((number, call))


def _upload(found: list[Segment], device: int, t: Transfer) -> None:
    if not found or found[-1].device != device or not found[-1].may_upload(t):
        found.append(Segment(device))
    found[-1].uploads.append(t)


def _download(found: list[Segment], device: int, t: Transfer) -> None:
    """At the end of the device's last segment, also where the host has run something else since."""
    at = next((n for n in range(len(found) - 1, -1, -1) if found[n].device != HOST), -1)
    between = [ref for segment in found[at + 1 :] for ref, _ in segment.accesses()]
    if at < 0 or found[at].device != device or any(t.host.overlaps(ref) for ref in between):
        found.append(Segment(device))
        at = -1
    found[at].downloads.append(t)


def bounces(program: Program) -> dict[int, int]:
    """Bytes of the memory between two devices, by the number of the call."""
    parts = [t for s in segments(program) for t in s.downloads]
    return {t.host.index: t.host.nbytes for t in parts if t.host.space == BOUNCE}


# ---- the host's segments -------------------------------------------------------------------------------------------


def host_arena(program: Program) -> int:
    """Bytes of the arena in the host's memory."""
    return program.devices[HOST].arena_size if program.devices else program.arena_size


def host_program(program: Program, calls: Sequence[tuple[int, Call]]) -> Program:
    """A program of some of the host's calls. Behind the outputs come the arena and two buffers for each state: its
    value, and its next value."""
    first = len(program.outputs)
    extra = [TensorInfo("arena", (host_arena(program),), "ui8")]
    for s in program.states:
        extra += [TensorInfo(f"{kind} {s.name}", (s.tensor.nbytes,), "ui8") for kind in ("state", "next")]

    def ref(r: BufferRef) -> BufferRef:
        places = {"arena": first, "state": first + 1 + 2 * r.index, "next": first + 2 + 2 * r.index}
        return replace(r, space="output", index=places[r.space]) if r.space in places else r

    moved = tuple(
        replace(c, args=tuple(map(ref, c.args)), scratch=None if c.scratch is None else ref(c.scratch))
        for _, c in calls
    )
    return replace(
        program,
        outputs=(*program.outputs, *extra),
        calls=moved,
        states=(),
        devices=(),
        arena_size=0,
        arena_bound=0,
    )


def link(
    program: Program, objects: dict[str, bytes], host: Target | None, machine: Any, taken: Set[str] = frozenset()
) -> dict[str, bytes]:
    """The kernels of all but the host, and the host's native function of each of its segments; `machine` is its
    description."""
    linked: dict[str, bytes] = {}
    for n, segment in enumerate(segments(program, taken)):
        own = {symbol: objects[symbol] for symbol in segment.symbols}
        if segment.device != HOST:
            linked |= own
        elif own and host is not None:
            made = host.link(host_program(program, segment.calls), own, machine)
            linked |= {f"part{n}/{name}": data for name, data in made.items()}
    return linked


__all__ = ["BESIDE", "BOUNCE", "HOST", "Segment", "Transfer", "bounces", "host_arena", "host_program", "link"]
__all__ += ["segments"]
