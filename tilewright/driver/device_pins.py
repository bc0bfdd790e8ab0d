"""The option ``place``: kernels and operators that the user puts on one of several devices."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..support.errors import UsageError
from ..targets.base import Target, find

#: stands for every kernel that no other pin names
ALL = "*"


@dataclass(frozen=True)
class Pins:
    """Devices by what is pinned: a node of the source (``/layer/MatMul``), an operator (``softmax``), a kernel or how
    its name begins, or ``*`` for all that is not named. A node counts before a kernel, a longer name before a shorter
    one."""

    devices: Mapping[str, str]

    def of(self, calls: Sequence[tuple[str, Sequence[str]]], devices: Sequence[str]) -> list[int | None]:
        """The number of the device that each call is pinned to, None if it is not. `calls`: kernel and nodes.

        UsageError for a device that there is not, a name that fits nothing, and nodes of one kernel on two devices.

        >>> pins = Pins({"softmax": "cpu", "/head/Add": "opencl"})
        >>> pins.of([("softmax_1", ("/a",)), ("add_softmax_2", ("/head/Add", "/b")), ("add_3", ())], ["cpu", "opencl"])
        [0, 1, None]
        """
        numbers = {name: _device(device, devices) for name, device in self.devices.items()}
        fits = {name: [_fits(name, *c) for c in calls] for name in numbers}
        for name, found in fits.items():
            if not any(found) and name != ALL:
                raise _fits_nothing(name, calls)
        return [self.wanted(c, numbers, {n: f[i] for n, f in fits.items()}) for i, c in enumerate(calls)]

    def of_node(self, operator: str, nodes: Sequence[str], devices: Sequence[str]) -> int | None:
        """The device of a single operation, which is by itself then: by its node, else by its operator."""
        named = [n for n in self.devices if n in nodes] or [n for n in self.devices if n.lower() == operator]
        return _device(self.devices[named[0]], devices) if named else None

    def wanted(
        self, call: tuple[str, Sequence[str]], numbers: Mapping[str, int], fits: Mapping[str, int]
    ) -> int | None:
        """The device of one call."""
        best = max(fits.values(), default=0)
        if not best:
            return None
        names = [n for n, f in fits.items() if f == best]
        if best < _NODE:  # the longest name of a kernel
            names = [max(names, key=len)]
        if len({numbers[n] for n in names}) > 1:
            told = " and ".join(f"{n!r} on {self.devices[n]}" for n in names)
            raise UsageError(
                f"option 'place' puts {told}, and they are one kernel",
                stage="fuse",
                operator=f"kernel {call[0]}",
                hint="put them on one device: a kernel runs as a whole",
            )
        return numbers[names[0]]


_NODE, _KERNEL, _ANY = 3, 2, 1


def _fits(name: str, symbol: str, nodes: Sequence[str]) -> int:
    """How well a pin fits a call; 0 if it does not."""
    if name == ALL:
        return _ANY
    if name in nodes:
        return _NODE
    operators = f"_{symbol.lower()}_"
    return _KERNEL if symbol.startswith(name) or f"_{name.lower()}_" in operators else 0


def _device(name: str, devices: Sequence[str]) -> int:
    """The number of a device by its name, or by what it begins with before its parameters."""
    with contextlib.suppress(UsageError):
        name = find(name).name  # there are several ways to write parameters
    found = [n for n, d in enumerate(devices) if d == name] or [
        n for n, d in enumerate(devices) if d.partition(":")[0] == name
    ]
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"option 'place' names the device {name!r}, and there {'are several' if found else 'is no such device'}",
        stage="fuse",
        hint=f"devices: {', '.join(devices)}",
    )


def check_pins(pins: Mapping[str, str] | None, target: Target) -> None:
    """UsageError for pins where there is one device."""
    if pins and not target.members:
        raise UsageError(
            f"option 'place' is for programs of several devices, and {target.name} is one",
            hint=f"name them in the target: {target.name}+cpu, or leave out 'place'",
        )


def _fits_nothing(name: str, calls: Sequence[tuple[str, Sequence[str]]]) -> UsageError:
    known = [*dict.fromkeys(n for _, nodes in calls for n in nodes), *dict.fromkeys(s for s, _ in calls)]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    kernels = ", ".join(dict.fromkeys(s for s, _ in calls))
    return UsageError(
        f"option 'place' names {name!r}, and there is no such node, operator or kernel",
        stage="fuse",
        hint=f"{hint}kernels: {kernels}",
    )


__all__ = ["ALL", "Pins", "check_pins"]
