"""The summary page of a conformance run."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import onnx
from conformance_suite import KINDS, Result
from conformance_table import reason_of

OUTCOMES = ("pass", "unsupported", "incomparable", "wrong", "error", "crash", "hang")


def write_report(results: list[Result], how: How, path: Path) -> None:
    """Write docs/onnx_conformance.md, or the page of another target."""
    path.write_text("\n".join(_lines(results, how)) + "\n")


@dataclass(frozen=True)
class How:
    """Of a run: seconds, processes, the target, and the device that ran the code."""

    seconds: float
    workers: int
    target: str = "cpu"
    device: str = ""

    def title(self) -> str:
        return "ONNX conformance" + (f": {self.target}" if self.device else "")

    def what(self) -> str:
        if not self.device:
            return (
                "compiled to native code and run, at\nthe suite's own tolerances. "
                "This page is written by `make conformance`."
            )
        return (
            f"compiled for the target `{self.target}` and\nrun on {self.device}, at the suite's own tolerances. "
            f"This page is written by `make conformance-{self.target}`."
        )


def _lines(results: list[Result], how: How) -> list[str]:
    counts = Counter(r.outcome for r in results)
    lines = [
        f"# {how.title()}",
        "",
        f"The backend tests of onnx {onnx.__version__} (`onnx.backend.test`), each {how.what()}",
        "",
        f"**{counts['pass']} of {len(results)} tests pass**; {counts['unsupported']} are refused with a reason, "
        f"{counts['incomparable']} have expected numbers that cannot be met; "
        f"{counts['wrong']} wrong results, {counts['crash']} crashes, {counts['hang']} hangs, "
        f"{counts['error']} other errors.",
        f"{how.seconds / 60:.0f} minutes in {how.workers} processes with an empty kernel cache.",
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
                reason_of(r.name, how.target)
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
