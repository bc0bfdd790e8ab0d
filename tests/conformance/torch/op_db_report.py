"""The page docs/torch_conformance.md, from the results of runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from op_db_suite import SAMPLES, Result

_OPERATOR = re.compile(r"^  (\S+): \d+ nodes? \([^)]*\)(?:: (.*))?$", re.M)


def reason_of(detail: str) -> str:
    """Why an entry is refused, without what is special to it.

    >>> reason_of("the program uses 1 operator that cannot be imported:\\n  aten.lgamma: 1 node (a.py:3 in f)")
    'no import function for aten.lgamma'
    """
    found = _OPERATOR.findall(detail)
    if found:
        missing = [name for name, why in found if not why]
        if missing:
            return f"no import function for {', '.join(sorted(missing))}"
        return "; ".join(sorted({f"{name} {why}" for name, why in found}))
    if "PyTorch cannot" in detail:
        return "PyTorch cannot export it: " + detail.split(": ", 1)[1].split("\n")[0].split(" (")[0][:120]
    return detail.split("\n")[0][:120]


def write_report(path: Path, compiled: Sequence[Result], interpreted: Sequence[Result], version: str) -> None:
    """`compiled` are results of compiled code, `interpreted` those of the references of the operators."""
    done = {r.name: r for r in compiled}
    results = [done.get(r.name, r) for r in interpreted]
    counts, native = Counter(r.outcome for r in results), Counter(r.outcome for r in compiled)
    right = counts["pass"] + counts["incomparable"]
    lines = [
        "# PyTorch conformance",
        "",
        f"The entries of PyTorch's own table of operators (`op_db` of torch {version}), each through",
        f"`tw.compile(module, inputs)`: the first {SAMPLES} samples of each, in float32 (or in an integer type or bool",
        "where there is no float32), compared at the tolerances of `torch.testing.assert_close`. This page",
        "is written by `python tests/conformance/torch/run.py --report docs/torch_conformance.md`.",
        "",
        f"**{right} of {len(results)} entries pass** ({counts['incomparable']} of them draw random numbers or leave",
        f"memory as it is: shapes and types count); {counts['unsupported']} are refused with a reason;",
        f"{counts['no reference']} do not run in PyTorch here; {counts['wrong']} wrong, {counts['crash']} crashes,",
        f"{counts['hang']} hangs, {counts['error']} others.",
        "",
        f"{len(compiled)} of the entries ran as compiled code: {native['pass'] + native['incomparable']} pass,",
        f"{native['unsupported']} are refused, {native['wrong']} wrong. The others were imported and evaluated by the",
        "references of the operators, without compiling.",
        "",
        "## What does not pass, and why",
        "",
    ]
    reasons: dict[str, list[str]] = {}
    for r in results:
        if r.outcome not in ("pass", "incomparable"):
            why = (
                reason_of(r.detail)
                if r.outcome == "unsupported"
                else "not run by PyTorch here"
                if r.outcome == "no reference"
                else f"{r.outcome}: {r.detail.splitlines()[0][:120]}"
            )
            reasons.setdefault(why, []).append(f"`{r.name}`")
    for why, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"- {why}: {', '.join(names)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
