"""All import functions: loading this registers them."""

from __future__ import annotations


def load() -> None:
    from . import attention, control, conv, create, elementwise, index, linear, norm, pool, reduce, shape  # noqa: F401
