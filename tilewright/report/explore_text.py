"""An exploration of designs as a table for the terminal."""

from __future__ import annotations

from ..targets.accelerator.designs import Design, Exploration, shown
from .profile_text import percent, seconds


def headings(e: Exploration) -> list[str]:
    """One for each cell of `rows`."""
    alone = [f"{name} on chip" for name in e.models] if _hosted(e) else []
    return [*e.varied, *e.models, *alone, "relative", "energy", "area", "use", "bottleneck", "front"]


def _hosted(e: Exploration) -> bool:
    """Whether the host does a part of a model, so that the chip's time alone is another one."""
    return any(m.host for d in e.measured for m in d.models)


def rows(e: Exploration, every: bool = True) -> list[list[str]]:
    """A row for each design that was measured, the fastest first; without `every` only those on the Pareto front."""
    on_front = dict(zip(map(id, e.measured), e.front, strict=True))
    order = sorted(e.measured, key=lambda d: d.seconds)
    return [_row(e, d, on_front[id(d)]) for d in order if every or on_front[id(d)]]


def _row(e: Exploration, d: Design, on_front: bool) -> list[str]:
    return [
        *(shown(d.parameters[name]) for name in e.varied),
        *(seconds(m.seconds) for m in d.models),
        *(seconds(m.seconds - m.host) for m in d.models if _hosted(e)),
        f"{d.seconds / e.best:.2f}",
        energy(d.energy),
        area(d.area),
        percent(d.use),
        bottleneck(d),
        "front" if on_front else "",
    ]


def bottleneck(d: Design) -> str:
    """What bounds most of the time, and how much of it."""
    name, part = d.bottleneck
    return f"{name} {100 * part:.0f}%"


def energy(picojoules: float) -> str:
    """
    >>> energy(1234.0), energy(5.6e6), energy(7e9)
    ('1.23 nJ', '5.6 uJ', '7 mJ')
    """
    for unit, size in (("mJ", 1e9), ("uJ", 1e6)):
        if picojoules >= size:
            return f"{picojoules / size:.3g} {unit}"
    return f"{picojoules / 1e3:.3g} nJ"


def area(square_millimetres: float) -> str:
    """
    >>> area(0.1234), area(0.0)
    ('0.123 mm2', '-')
    """
    return f"{square_millimetres:.3g} mm2" if square_millimetres else "-"


def summary(e: Exploration) -> list[str]:
    """How many designs there are, and why some were refused."""
    lines = [f"{len(e.measured)} designs, {sum(e.front)} on the front; {len(e.refused)} refused"]
    return [*lines, *(f"refused: {d.text}: {d.refused}" for d in e.refused)]
