"""Reports on the memory plan: lifetimes and offsets as a table or a picture, and why a memory limit is exceeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..support.errors import UsageError
from .program import COPY, Program


@dataclass(frozen=True)
class Lifetime:
    """`nbytes` at `offset` of the arena, written by call `first`, last used by `last`; `name` is what writes it."""

    name: str
    offset: int
    nbytes: int
    first: int
    last: int


def lifetimes(program: Program) -> list[Lifetime]:
    """Everything that is kept in the arena, in the order in which it is written."""
    found: list[Lifetime] = []
    current: dict[tuple[int, int], int] = {}  # (offset, bytes) -> index in found
    for number, call in enumerate(program.calls):
        for ref, written in call.accesses():
            if ref.space == "arena" and ref.nbytes and not written:
                for (offset, nbytes), i in current.items():
                    if offset < program.start(ref) + ref.nbytes and program.start(ref) < offset + nbytes:
                        old = found[i]
                        found[i] = Lifetime(old.name, old.offset, old.nbytes, old.first, number)
        for ref, written in call.accesses():
            if ref.space == "arena" and ref.nbytes and written:
                at = program.start(ref)
                for key in [k for k in current if k[0] < at + ref.nbytes and at < k[0] + k[1]]:
                    del current[key]
                current[at, ref.nbytes] = len(found)
                name = call_name(program, number)
                name = f"scratch of {name}" if ref is call.scratch else name
                found.append(Lifetime(name, at, ref.nbytes, number, number))
    return found


def call_name(program: Program, number: int) -> str:
    """The source names of a call, else its kernel's."""
    call = program.calls[number]
    return ", ".join(call.names) or ("copy" if call.symbol == COPY else call.symbol)


def live_bytes(program: Program) -> list[int]:
    """Bytes of the arena that each call has alive, its own results included."""
    live = [0] * len(program.calls)
    taken: list[list[tuple[int, int]]] = [[] for _ in live]
    for x in lifetimes(program):
        for n in range(x.first, x.last + 1):
            taken[n].append((x.offset, x.offset + x.nbytes))
    for n, spans in enumerate(taken):
        end = 0
        for a, b in sorted(spans):  # in-place results share bytes: each byte counts once
            live[n] += max(b - max(a, end), 0)
            end = max(end, b)
    return live


def table(program: Program) -> str:
    """The plan as text: a line a call, with what it has alive and what it makes."""
    live = live_bytes(program)
    made: dict[int, list[Lifetime]] = {}
    for x in lifetimes(program):
        made.setdefault(x.first, []).append(x)
    lines = [
        f"{_at(program)}arena {program.arena_size} bytes (no plan in this order needs less than {program.arena_bound})"
        + (f", scratch {program.thread_bytes}" if program.thread_bytes else "")
    ]
    lines.append(f"{'call':>4}  {'alive':>10}  {'made at':>18}  {'until':>5}  name")
    for n in range(len(program.calls)):
        results = made.get(n, [])
        where = ", ".join(f"{x.offset}+{x.nbytes}" for x in results) or "output"
        until = ", ".join(str(x.last) for x in results)
        lines.append(f"{n:>4}  {live[n]:>10}  {where:>18}  {until:>5}  {call_name(program, n)}")
    return "\n".join(lines) + "\n"


def _at(program: Program) -> str:
    """The sizes of open dimensions that a table or a picture is of."""
    dims = program.open.dims if program.open else ()
    return f"at {', '.join(f'{d.name} {d.typical}' for d in dims)}: " if dims else ""


def picture(program: Program) -> str:
    """The plan as SVG: calls from left to right, addresses from bottom to top, a box for everything that is kept."""
    from xml.sax.saxutils import escape  # takes urllib and ssl with it

    boxes, calls = lifetimes(program), len(program.calls)
    width, height, left, bottom = max(24 * calls, 240), 360, 80, 40
    total = max(program.arena_size, 1)
    live = live_bytes(program)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + left + 20}" height="{height + bottom + 30}" '
        'font-family="sans-serif" font-size="11">',
        f'<text x="{left}" y="16">{_at(program)}arena of {program.arena_size} bytes, {calls} kernel calls; '
        "the line is what must be alive</text>",
    ]
    top = 24
    step = width / max(calls, 1)

    def y(offset: float) -> float:
        return top + height * (1 - offset / total)

    for i in range(5):
        at = total * i // 4
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(at):.1f}" y2="{y(at):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{at}</text>')
    for i, x in enumerate(boxes):
        hue = (i * 137) % 360
        high = height * x.nbytes / total
        title = escape(f"{x.name}: {x.nbytes} bytes at {x.offset}, calls {x.first} to {x.last}")
        parts.append(
            f'<rect x="{left + step * x.first:.1f}" y="{y(x.offset + x.nbytes):.1f}" '
            f'width="{step * (x.last - x.first + 1):.1f}" height="{max(high, 1):.1f}" '
            f'fill="hsl({hue} 60% 75%)" stroke="hsl({hue} 40% 40%)"><title>{title}</title></rect>'
        )
    line = " ".join(
        f"{left + step * n:.1f},{y(b):.1f} {left + step * (n + 1):.1f},{y(b):.1f}" for n, b in enumerate(live)
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke="#c00" stroke-width="1.5"/>')
    for n in range(0, calls, max(1, calls // 12)):
        parts.append(f'<text x="{left + step * n:.1f}" y="{top + height + 16}">{n}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def check_limit(program: Program, limit: int, ways: Sequence[str] = ()) -> None:
    """UsageError if the arena and the scratch memory exceed `limit` bytes: it names the kernel where most is alive, and
    what would help, `ways` first."""
    need = program.arena_size + program.thread_bytes
    if need <= limit:
        return
    live = live_bytes(program)
    worst = max(range(len(live)), key=live.__getitem__) if live else 0
    alive = sorted((x for x in lifetimes(program) if x.first <= worst <= x.last), key=lambda x: -x.nbytes)
    most = _pieces(alive)
    if live and live[worst] + program.thread_bytes > limit:
        why = f"call {worst} ({call_name(program, worst)}) alone has {live[worst]} bytes alive: {most}"
        hint = _advice(alive, ways)
    else:
        why = f"at most {max(live, default=0)} bytes are alive at one time, but no tighter plan was found"
        hint = "raise the limit, or give the output buffers of the caller to large results"
    parts = f" ({program.arena_size} of the arena, {program.thread_bytes} of scratch)" if program.thread_bytes else ""
    raise UsageError(
        f"the model needs {need} bytes of working memory{parts}, the limit is {limit}: {why}",
        stage="package",
        hint=hint,
    )


def _pieces(alive: Sequence[Lifetime], shown: int = 4) -> str:
    """What is alive at one time, the largest first; the numbers add up: what shares bytes counts once.

    >>> _pieces([Lifetime("conv", 0, 800, 0, 1), Lifetime("relu", 0, 600, 1, 2), Lifetime("add", 800, 64, 0, 3)])
    'conv with relu in its place 800; add 64'
    """
    groups: list[list[Lifetime]] = []
    end = 0
    for x in sorted(alive, key=lambda x: x.offset):
        if groups and x.offset < end:
            groups[-1].append(x)
        else:
            groups.append([x])
        end = max(end, x.offset + x.nbytes)
    found = []
    for group in groups:
        first, *others = sorted(group, key=lambda x: x.first)
        total = max(x.offset + x.nbytes for x in group) - min(x.offset for x in group)
        where = f" with {', '.join(x.name for x in others)} in its place" if others else ""
        found.append((total, first.name + where))
    found.sort(key=lambda f: -f[0])
    rest = [f"{len(found) - shown} others {sum(n for n, _ in found[shown:])}"] if len(found) > shown else []
    return "; ".join([*(f"{name} {n}" for n, name in found[:shown]), *rest])


def _advice(alive: Sequence[Lifetime], ways: Sequence[str]) -> str:
    parts = [*ways, "a smaller input or fewer channels in the layer named"]
    kept = [x for x in alive if x.last > x.first + 1]  # others are read by the next call, or scratch
    if kept:
        longest = max(kept, key=lambda x: x.last - x.first)
        parts.insert(len(ways), f"no late reader of {longest.name} (a skip connection keeps it in memory)")
    return "what would help: " + ", or ".join(parts)
