"""Error messages of failing devices: which one, at what, why, and what to do."""

from __future__ import annotations

from typing import Literal

from ...support.errors import TilewrightError

Kind = Literal["memory", "lost", "other"]
_HINTS: dict[Kind, str] = {
    "memory": "run a smaller batch, end what else is on the device, or compile for another device",
    "lost": "load the model again, which opens the device anew, or start the process anew; if one model loses the "
    "device every time, please report it",
    "other": "run it once more; if it fails again, compile with verify=True, which finds the kernel that is wrong",
}
#: what drivers say may be a page long
_LONGEST = 2000


def failure(device: str, doing: str, said: object, kind: Kind = "other", hint: str = "") -> TilewrightError:
    """The error of a device that failed while it did something.

    >>> print(failure("a GPU", "allocating 16 bytes", "out of memory", "memory").message)
    a GPU ran out of memory while allocating 16 bytes: out of memory
    """
    what = {"memory": "ran out of memory", "lost": "was lost", "other": "failed"}[kind]
    text = str(said).strip()[:_LONGEST]
    return TilewrightError(f"{device} {what} while {doing}: {text}", stage="run", hint=hint or _HINTS[kind])


__all__ = ["Kind", "failure"]
