"""The text of `Executable.explain`.

The compiler leaves a report in the package: ``{"model": name, "levels": [{"stage", "level", "text", "seconds"}],
"kernels": [{"symbol", "kind", "schedule", "flops", "bytes", ...}], "notes": [...]}``; every part may be missing, and
kernels may have more keys, which are printed as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..program.package import Package

if TYPE_CHECKING:
    from .executable import Memory


def explain(package: Package, memory: Memory, threads: int) -> str:
    report, program = package.report, package.program
    lines = [f"model: {report.get('model', '(unnamed)')}", f"target: {package.target}, {count(threads, 'thread')}"]
    lines += [f"input  {t}" for t in program.inputs] + [f"output {t}" for t in program.outputs]
    lines += _levels(report.get("levels", ()))
    lines += _kernels(package, {k.get("symbol"): k for k in report.get("kernels", ())})
    lines += ["", "memory"]
    lines += [
        f"  weights  {size(memory.weights)}",
        f"  arena    {size(memory.arena)} (no plan needs less than {size(memory.arena_bound)})",
        f"  scratch  {size(memory.scratch)}",
        f"  code     {size(memory.code)}",
        f"  peak     {size(memory.peak)}",
    ]
    notes = report.get("notes", ())
    if notes:
        lines += ["", "notes", *(f"  {n}" for n in notes)]
    return "\n".join(lines)


def _levels(levels: Sequence[dict[str, Any]]) -> list[str]:
    if not levels:
        return []
    rows = [("stage", "level", "result", "seconds")]
    rows += [
        (str(e.get("stage", "")), str(e.get("level", "")), str(e.get("text", "")), f"{e.get('seconds', 0):.3f}")
        for e in levels
    ]
    return ["", "levels", *_table(rows)]


def _kernels(package: Package, reports: dict[str | None, dict[str, Any]]) -> list[str]:
    """One row a kernel call, in the order of the program."""
    extra = sorted({k for r in reports.values() for k in r if k not in ("symbol", "kind", "names")})
    rows = [("kernel", "kind", "code", *extra, "from")]
    for call in package.program.calls:
        about = reports.get(call.symbol, {})
        code = package.objects.get(call.symbol)
        names = ", ".join(call.names[:3]) + (f" +{len(call.names) - 3}" if len(call.names) > 3 else "")
        cells = [str(about.get(k, "")) for k in extra]
        rows.append((call.symbol, str(about.get("kind", "")), size(len(code)) if code else "", *cells, names))
    calls, kernels = len(package.program.calls), len(package.program.symbols)
    return ["", f"{count(calls, 'kernel call')}, {count(kernels, 'kernel')}", *_table(rows)]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def count(n: int, noun: str) -> str:
    """
    >>> count(1, "thread"), count(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


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
