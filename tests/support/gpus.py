"""Devices with drivers that tests may use; where there is none they are skipped."""

from __future__ import annotations

import importlib

import pytest

from tilewright.support.errors import UsageError


def device_of(target: str):
    """The first device of a target's driver, or a skipped test with the reason and what to install."""
    try:
        return importlib.import_module(f"tilewright.targets.{target}.device").device()
    except UsageError as e:
        pytest.skip(f"{e.message}: {e.hint}")
