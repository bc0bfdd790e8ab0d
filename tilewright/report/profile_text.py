"""A profile as rows of text: what the terminal shows, and ``str(profile)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..support.notebook import fragment
from ..support.numbers import count, size
from .explain import why_slow

if TYPE_CHECKING:
    from ..runtime.profile import Profile, ProfileEntry

HEADINGS = (
    *("kernel", "calls", "time", "spread", "share", "GFLOP/s", "GB/s", "FLOP/B", "roofline", "limit", "balance"),
    *("rule", "from"),
)
#: one more, behind the kernel, of programs on several devices
DEVICE = "device"
#: a kernel that is called more often than this shows its first source node and their number
_NAMES = 44


def seconds(value: float) -> str:
    """
    >>> seconds(1.5), seconds(0.0123), seconds(4.2e-5), seconds(3e-8)
    ('1.500 s', '12.30 ms', '42.0 us', '0.03 us')
    """
    if value >= 1:
        return f"{value:.3f} s"
    if value >= 1e-3:
        return f"{1e3 * value:.2f} ms"
    return f"{1e6 * value:.1f} us" if value >= 1e-6 else f"{1e6 * value:.2f} us"


def number(value: float | None, unit: str = "") -> str:
    """Three digits; nothing for None.

    >>> number(123.456), number(12.34), number(0.001), number(None)
    ('123', '12.3', '0.001', '')
    """
    return "" if value is None else f"{value:.3g}{unit}" if value < 999.5 else f"{value:.0f}{unit}"


def percent(value: float | None) -> str:
    """
    >>> percent(0.5), percent(None)
    ('50.0%', '')
    """
    return "" if value is None else f"{100 * value:.1f}%"


def names(entry: ProfileEntry, length: int = _NAMES) -> str:
    """The source nodes of an entry, cut to a length.

    >>> from tilewright.runtime.profile import ProfileEntry
    >>> names(ProfileEntry("k", ("/a/MatMul", "/b/MatMul"), "", "", 0, 0, 0, 0), 12)
    '/a/MatMul +1'
    """
    if not entry.names:
        return ""
    first = entry.names[0]
    shown = first if len(first) <= length else "..." + first[3 - length :]
    return shown + (f" +{len(entry.names) - 1}" if len(entry.names) > 1 else "")


def headings(profile: Profile) -> tuple[str, ...]:
    """The columns of a profile's table."""
    return (HEADINGS[0], DEVICE, *HEADINGS[1:]) if _several(profile) else HEADINGS


def _several(profile: Profile) -> bool:
    return any(e.device for e in profile.calls)


def row(entry: ProfileEntry) -> tuple[str, ...]:
    """The cells of one entry, for HEADINGS."""
    spread = (entry.high - entry.low) / 2 / entry.seconds if entry.seconds else 0.0
    return (
        entry.symbol,
        str(entry.calls),
        seconds(entry.seconds),
        percent(spread),
        percent(entry.share),
        number(entry.gflops),
        number(entry.gbytes),
        number(entry.intensity),
        percent(entry.efficiency),
        entry.limit,
        percent(entry.balance),
        entry.rule,
        names(entry),
    )


def rows(profile: Profile, top: int | None = None, calls: bool = False) -> list[tuple[str, ...]]:
    """The most expensive kernels (or single calls), the others in one row, and the total."""
    entries = sorted(profile.calls, key=lambda e: -e.seconds) if calls else list(profile.kernels)
    shown, rest = (entries, []) if top is None or top >= len(entries) else (entries[:top], entries[top:])
    table, devices = [row(e) for e in shown], [e.device for e in shown]
    if rest:
        from ..runtime.profile import together

        others = list(row(together(rest)))
        others[0], others[9], others[11], others[12] = f"{len(rest)} others", "", "", ""
        table.append(tuple(others))
        devices.append("")
    table, devices = [*table, row(profile.total)], [*devices, ""]
    if not _several(profile):
        return table
    return [(r[0], d, *r[1:]) for r, d in zip(table, devices, strict=True)]


def disturbance(profile: Profile) -> str:
    """A warning if the numbers of a profile do not add up, which other programs on the machine cause; else nothing.

    Each number is a median of its own over the runs: they add up if all runs took about the same.
    """
    p = profile
    if not p.seconds:
        return ""
    said = []
    whole = p.total.share + p.between / p.seconds
    if abs(whole - 1) > 0.1:
        said.append(f"kernels and what is between them are {percent(whole)} of a run")
    if p.high - p.low > 0.25 * p.seconds:
        said.append(f"the middle half of the runs took {seconds(p.low)} to {seconds(p.high)}")
    if not said:
        return ""
    return f"disturbed: {', and '.join(said)}. Other programs ran meanwhile: profile again on a quiet machine"


def summary(profile: Profile) -> list[str]:
    """Sentences under the table."""
    p = profile
    plural = "s" if p.threads > 1 else ""
    spread = (p.high - p.low) / 2
    lines = [warning] if (warning := disturbance(p)) else []
    lines += [
        f"{p.model}: {seconds(p.seconds)} a run (+- {seconds(spread)}, {p.repeats} runs, {p.threads} thread{plural}), "
        f"{percent(1 - p.between / p.seconds if p.seconds else 0.0)} of it in kernels, "
        f"{seconds(p.between)} between them"
    ]
    for number_, thread in enumerate(p.per_thread if p.threads > 1 else ()):
        idle = max(p.seconds - thread.busy - thread.waiting, 0.0)
        lines.append(
            f"thread {number_}: {percent(thread.busy / p.seconds)} in kernels, "
            f"{percent(thread.waiting / p.seconds)} at barriers, {percent(idle / p.seconds)} idle"
        )
    lines += device_lines(p)
    if p.ceilings is not None:
        lines += ceiling_lines(p)
    slow = [(s, f) for s, f in p.facts.items() if f.get("fell") or f.get("slow")]
    lines += [f"{s} may be slow {why_slow(f)}" for s, f in slow]
    return lines


def device_lines(profile: Profile) -> list[str]:
    """A line for each of several devices, and for the copies each way."""
    found: dict[str, list[ProfileEntry]] = {}
    for e in profile.calls:
        if e.device:
            found.setdefault(e.device, []).append(e)
    lines = []
    for device, entries in sorted(found.items(), key=lambda x: " -> " in x[0]):
        taken = seconds(sum(e.seconds for e in entries))
        share = percent(sum(e.share for e in entries))
        moved = sum(e.written for e in entries)
        if " -> " in device:
            lines.append(f"{device}: {taken} ({share}) in {count(len(entries), 'copy', 'copies')} of {size(moved)}")
        else:
            lines.append(f"{device}: {taken} ({share}) in {count(len(entries), 'kernel call')}")
    return lines


def ceiling_lines(profile: Profile) -> list[str]:
    """The ceilings, and a warning where a kernel is above them."""
    c = profile.ceilings
    assert c is not None
    compute = ", ".join(f"{name} {number(value / 1e9)} G/s" for name, value in c.compute.items())
    memory = ", ".join(f"{v.name} {number(v.read / 1e9)} read {number(v.copy / 1e9)} copy" for v in c.levels)
    lines = [f"ceilings of this machine: {compute}; GB/s: {memory}"]
    if not c.quiet:
        lines.append("the ceilings were measured while other programs ran, and are measured again the next time")
    if over := above_text(profile.kernels):
        lines.append(over)
    return lines


def above(entry: ProfileEntry) -> bool:
    """Whether a kernel is faster than the roofline says it can be."""
    return (entry.efficiency or 0) > 1.005


def above_text(entries: Sequence[ProfileEntry], before: str = "") -> str:
    """Why some kernels are above the roofline; nothing where none is."""
    over = [e for e in entries if above(e)]
    if not over:
        return ""
    most = max(over, key=lambda e: e.efficiency or 0)
    return (
        f"{before}{count(len(over), 'kernel')} above the roofline ({most.symbol}: {percent(most.efficiency)}): the "
        "bytes were in a nearer cache than the roofline takes them from (the one that is large enough for all), or the "
        "ceilings were measured while the machine was busy (--remeasure)"
    )


def text(profile: Profile) -> str:
    """The whole table with its summary."""
    table = [headings(profile), *rows(profile)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    left = {i for i, name in enumerate(table[0]) if name in ("kernel", DEVICE, "limit", "rule", "from")}
    lines = [
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in table
    ]
    return "\n".join([*(line.rstrip() for line in lines), *summary(profile)])


def table(profile: Profile) -> str:
    """The same for notebooks."""
    return fragment(f"{profile.model}: profile", [headings(profile), *rows(profile)], "\n".join(summary(profile)))


__all__: Sequence[str] = [
    *("HEADINGS", "disturbance", "headings", "names", "number", "percent", "row", "rows", "seconds", "summary"),
    *("table", "text"),
]
