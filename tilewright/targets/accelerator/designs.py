"""Design-space exploration: time, energy and area of models on several designs of a chip, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

Value = int | float
#: what bounds the time that the host takes
ON_HOST = "the host"


@dataclass(frozen=True)
class DesignMeasurement:
    """A run of a model on a design. `cycles`, `work` (multiply-adds) and `energy` (picojoules) are the chip's, `host`
    is what the host takes at the chip's `host_rate`, in seconds; `use` is the work over what the array could have done
    in all cycles. `calls` of kernels are the chip's, `left` those of the host. `bounds`: seconds by what bounds them,
    the most first; they add up to `seconds`."""

    seconds: float
    cycles: int
    host: float
    energy: float
    work: int
    use: float
    calls: int
    left: int
    bounds: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DesignMeasurement:
        return DesignMeasurement(**data)


@dataclass(frozen=True)
class Design:
    """A chip with parameters: `area` in square millimetres (0 if the chip does not say), what each model did on it in
    the order of `Exploration.models`, or why it was `refused`."""

    parameters: Mapping[str, Value]
    area: float = 0.0
    models: tuple[DesignMeasurement, ...] = ()
    refused: str = ""

    @property
    def text(self) -> str:
        """
        >>> Design({"array": 8, "scratch": 32768}).text
        'array=8, scratch=32K'
        """
        return ", ".join(f"{name}={shown(value)}" for name, value in self.parameters.items())

    @property
    def seconds(self) -> float:
        """The geometric mean over the models."""
        return math.exp(sum(math.log(m.seconds) for m in self.models) / len(self.models))

    @property
    def energy(self) -> float:
        """Picojoules of one run of each model."""
        return sum(m.energy for m in self.models)

    @property
    def use(self) -> float:
        """The use of the array in all cycles of the models."""
        cycles = sum(m.cycles for m in self.models)
        return sum(m.use * m.cycles for m in self.models) / cycles if cycles else 0.0

    @property
    def bottleneck(self) -> tuple[str, float]:
        """What bounds the most time, each model counted alike, and which part of the time that is.

        >>> m = DesignMeasurement(4.0, 3, 1.0, 0.0, 1, 0.5, 2, 1, {"load": 2.5, "array": 0.5, "the host": 1.0})
        >>> Design({}, 0.0, (m,)).bottleneck
        ('load', 0.625)
        """
        parts: dict[str, float] = {}
        for m in self.models:
            for name, seconds in m.bounds.items():
                parts[name] = parts.get(name, 0.0) + seconds / m.seconds / len(self.models)
        name = max(parts, key=lambda n: parts[n])
        return name, parts[name]


@dataclass(frozen=True)
class Exploration:
    """All points of an exploration, in the order in which they were asked for; `varied` are the parameters, `models`
    the names of the models."""

    chip: str
    doc: str
    varied: tuple[str, ...]
    models: tuple[str, ...]
    designs: tuple[Design, ...]
    interrupted: bool = False

    @cached_property
    def measured(self) -> tuple[Design, ...]:
        """Those that were not refused."""
        return tuple(d for d in self.designs if d.models)

    @cached_property
    def refused(self) -> tuple[Design, ...]:
        return tuple(d for d in self.designs if d.refused)

    @cached_property
    def best(self) -> float:
        """The seconds of the fastest design."""
        return min(d.seconds for d in self.measured)

    @cached_property
    def front(self) -> tuple[bool, ...]:
        """For each design that was measured, whether none is better in time, energy and area together."""
        return front([(d.seconds, d.energy, d.area) for d in self.measured])

    def front_of(self, *sides: Callable[[Design], float]) -> list[Design]:
        """The designs that none beats in these numbers, by the first of them."""
        on = front([tuple(side(d) for side in sides) for d in self.measured])
        return sorted((d for d, kept in zip(self.measured, on, strict=True) if kept), key=sides[0])


def front(points: Sequence[tuple[float, ...]]) -> tuple[bool, ...]:
    """Whether a point is on the Pareto front: no other is at most as large in all numbers and smaller in one.

    >>> front([(1, 5), (2, 2), (3, 2), (4, 1), (2, 2)])
    (True, True, False, True, True)
    """
    return tuple(not any(q != p and all(a <= b for a, b in zip(q, p, strict=True)) for q in points) for p in points)


def shown(value: Value) -> str:
    """A parameter for people.

    >>> shown(32768), shown(1 << 21), shown(1000), shown(0.5)
    ('32K', '2M', '1000', '0.5')
    """
    for suffix, unit in (("M", 1 << 20), ("K", 1 << 10)):
        if isinstance(value, int) and value >= unit and value % unit == 0:
            return f"{value // unit}{suffix}"
    return f"{value:g}" if isinstance(value, float) else str(value)
