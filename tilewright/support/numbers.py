"""Formatting of numbers in messages: counts with their noun, bytes with their unit."""

from __future__ import annotations


def count(n: int, noun: str, nouns: str = "") -> str:
    """
    >>> count(1, "thread"), count(2, "thread"), count(2, "copy", "copies")
    ('1 thread', '2 threads', '2 copies')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {nouns or f'{noun}s'}"


def size(nbytes: int) -> str:
    """Bytes for people.

    >>> size(100), size(2048), size(3 << 20)
    ('100 B', '2.0 KiB', '3.0 MiB')
    """
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


__all__ = ["count", "size"]
