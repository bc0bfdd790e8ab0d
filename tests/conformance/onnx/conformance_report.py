"""The summary page of a conformance run."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import onnx
from conformance_suite import KINDS, Result
from conformance_table import reason_of

OUTCOMES = ("pass", "unsupported", "incomparable", "wrong", "error", "crash", "hang")


def write_report(results: list[Result], seconds: float, workers: int, path: Path) -> None:
    """Write docs/onnx_conformance.md."""
    path.write_text("\n".join(_lines(results, seconds, workers)) + "\n")


def _lines(results: list[Result], seconds: float, workers: int) -> list[str]:
    counts = Counter(r.outcome for r in results)
    lines = [
        "# ONNX conformance",
        "",
        f"The backend tests of onnx {onnx.__version__} (`onnx.backend.test`), each compiled to native code and run, at",
        "the suite's own tolerances. This page is written by `make conformance`.",
        "",
        f"**{counts['pass']} of {len(results)} tests pass**; {counts['unsupported']} are refused with a reason, "
        f"{counts['incomparable']} have expected numbers that cannot be met; "
        f"{counts['wrong']} wrong results, {counts['crash']} crashes, {counts['hang']} hangs, "
        f"{counts['error']} other errors.",
        f"{seconds / 60:.0f} minutes in {workers} processes with an empty kernel cache.",
        "",
        "| kind | tests | " + " | ".join(OUTCOMES) + " |",
        "|---|---|" + "---|" * len(OUTCOMES),
    ]
    for kind in KINDS:
        own = Counter(r.outcome for r in results if r.kind == kind)
        if own:
            lines.append(f"| {kind} | {own.total()} | " + " | ".join(str(own[o]) for o in OUTCOMES) + " |")
    groups: dict[str, list[str]] = defaultdict(list)
    for r in results:
        if r.outcome != "pass":
            groups[
                reason_of(r.name)
                or (r.detail if r.outcome == "incomparable" else "")
                or f"{r.outcome}: {' '.join(r.detail.split())[:120]}"
            ].append(r.name)
    lines += ["", "## What does not pass, and why", ""]
    for reason, names in sorted(groups.items(), key=lambda g: -len(g[1])):
        lines += [
            f"**{reason}** ({len(names)})",
            "",
            ", ".join(f"`{n.removeprefix('test_')}`" for n in sorted(names)),
            "",
        ]
    return lines[:-1] if lines[-1] == "" else lines
