"""The summary page of a run with open dimensions."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import onnx
from open_suite import OUTCOMES, Result, reason

TITLES = {"first": "one dimension", "all": "all dimensions"}


def write_report(results: list[Result], seconds: float, of: int, path: Path) -> None:
    """Write docs/onnx_open_dimensions.md: counts, refusals by reason, and a table of operators."""
    path.write_text("\n".join(_lines(results, seconds, of)) + "\n")


def _lines(results: list[Result], seconds: float, of: int) -> list[str]:
    tests = len({r.name for r in results})
    lines = [
        "# ONNX's node tests with open dimensions",
        "",
        f"{tests} of the {of} node tests of onnx {onnx.__version__}, each compiled once with one of its dimensions",
        "open, and once with all that may change, in ranges around the sizes of the test. Results are compared with",
        "those that the test expects, and at the ends of the ranges with ONNX's reference evaluator (or ONNX Runtime).",
        "`invalid`: no dimension may change, as the importer and the reference evaluator see it, or an input is no",
        "tensor.",
        f"This page is written by `make conformance-open`; {seconds / 60:.0f} minutes.",
        "",
        "| open | tests | " + " | ".join(OUTCOMES) + " |",
        "|---|---|" + "---|" * len(OUTCOMES),
    ]
    modes = list(dict.fromkeys(r.mode for r in results))
    for mode in modes:
        own = Counter(r.outcome for r in results if r.mode == mode)
        lines.append(f"| {TITLES[mode]} | {own.total()} | " + " | ".join(str(own[o]) for o in OUTCOMES) + " |")
    for mode in modes:
        groups: dict[str, list[str]] = defaultdict(list)
        for r in results:
            if r.mode == mode and r.outcome not in ("pass", "invalid"):
                groups[f"{r.outcome}: {reason(r)}"].append(r.operator)
        lines += ["", f"## What does not pass with {TITLES[mode]} open", ""]
        lines += ["| tests | why | operators |", "|---|---|---|"]
        for why, operators in sorted(groups.items(), key=lambda g: -len(g[1])):
            names = ", ".join(f"{o} {n}" for o, n in Counter(operators).most_common(8))
            lines.append(f"| {len(operators)} | {why.replace('|', '/')} | {names} |")
    heads = " | ".join(f"{TITLES[m]}: pass / refused" for m in modes)
    lines += ["", "## Operators", "", f"| operator | {heads} |"]
    lines.append("|---|" + "---|" * len(modes))
    counts = Counter((r.operator, r.mode, r.outcome) for r in results)
    for operator in sorted({r.operator for r in results}):
        cells = [f"{counts[operator, m, 'pass']} / {counts[operator, m, 'refused']}" for m in modes]
        if any(c != "0 / 0" for c in cells):
            lines.append(f"| {operator} | " + " | ".join(cells) + " |")
    return lines
