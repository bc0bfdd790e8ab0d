"""Accelerators that come with the package, one file each: a subclass of `targets.accelerator.Chip` called ``CHIP``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..accelerator.target import ChipTarget


def _targets() -> Iterator[ChipTarget]:
    from ..accelerator.target import ChipTarget

    for info in pkgutil.iter_modules(__path__):
        yield ChipTarget(importlib.import_module(f"{__name__}.{info.name}").CHIP)


TARGETS = list(_targets())
