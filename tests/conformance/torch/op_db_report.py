"""The page docs/torch_conformance.md, from the results of runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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


def write_report(
    path: Path,
    compiled: Sequence[Result],
    interpreted: Sequence[Result],
    version: str,
    operators: Mapping[str, str],
) -> None:
    """`compiled` are results of compiled code, `interpreted` those of the references of the operators; `operators` are
    the names of operators by entry."""
    done = {r.name: r for r in compiled}
    results = [done.get(r.name, r) for r in interpreted]
    counts, native = Counter(r.outcome for r in results), Counter(r.outcome for r in compiled)
    good = ("pass", "random", "incomparable")
    right = sum(counts[o] for o in good)
    by_name: dict[str, list[Result]] = {}
    for r in results:
        by_name.setdefault(operators[r.name], []).append(r)
    whole = sum(all(r.outcome in good for r in rs) for rs in by_name.values())
    lines = [
        "# PyTorch conformance",
        "",
        f"The entries of PyTorch's own table of operators (`op_db` of torch {version}), each through",
        f"`tw.compile(module, inputs)`: the first {SAMPLES} samples of each, in float32 (or in an integer type or bool",
        "where there is no float32), compared at the tolerances of `torch.testing.assert_close`. This page",
        "is written by `python tests/conformance/torch/run.py --report docs/torch_conformance.md`.",
        "",
        f"**{right} of {len(results)} entries pass** ({counts['random']} of them draw random numbers and are compared",
        f"by distribution and seeds, {counts['incomparable']} leave memory as it is: shapes and types count);",
        f"**of {whole} of {len(by_name)} operators all entries pass**.",
        f"{counts['unsupported']} entries are refused with a reason; {counts['no reference']} do not run in PyTorch",
        f"here; {counts['wrong']} wrong, {counts['crash']} crashes, {counts['hang']} hangs, {counts['error']} others.",
        "",
        "A result that is not PyTorch's within the tolerances is right if PyTorch's own in float64 is within them, or",
        "if the two differ only in what is not determined (signs of vectors), as the table itself compares them.",
        "Linear algebra, Fourier transforms and what has sizes or numbers of steps that depend on data run on the",
        "host, by NumPy and SciPy, between native parts.",
        "",
        f"{len(compiled)} of the entries ran as compiled code: {sum(native[o] for o in good)} pass,",
        f"{native['unsupported']} are refused, {native['wrong']} wrong. The others were imported and evaluated by the",
        "references of the operators, without compiling.",
        "",
        "## What does not pass, and why",
        "",
    ]
    reasons: dict[str, list[str]] = {}
    for r in results:
        if r.outcome not in good:
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
