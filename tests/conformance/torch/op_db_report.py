"""The page docs/torch_conformance.md, from the results of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from op_db_suite import SAMPLES, Result
from op_db_table import GOOD, KNOWN


def _how(compiled: int, all_of_them: int, native: Counter[str]) -> list[str]:
    """Whether the results are those of compiled code."""
    if compiled == all_of_them:
        return ["All entries ran as compiled code."]
    return [
        f"{compiled} of the entries ran as compiled code: {sum(native[o] for o in GOOD)} pass,",
        f"{native['unsupported']} are refused, {native['wrong']} wrong. The others were imported and evaluated by the",
        "references of the operators, without compiling.",
    ]


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
    right = sum(counts[o] for o in GOOD)
    by_name: dict[str, list[Result]] = {}
    for r in results:
        by_name.setdefault(operators[r.name], []).append(r)
    whole = sum(all(r.outcome in GOOD for r in rs) for rs in by_name.values())
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
        *_how(len(compiled), len(results), native),
        "",
        "## What does not pass, and why",
        "",
        "What PyTorch runs here ends in an `UnsupportedError` that names the operator, or repeats what PyTorch says.",
        "",
        "| entries | why |",
        "|---|---|",
    ]
    reasons: dict[str, list[str]] = {}
    for r in results:
        if r.outcome not in GOOD:
            why = KNOWN.get(r.name, f"{r.outcome}: {' '.join(r.detail.split())[:120]}")
            reasons.setdefault(why, []).append(f"`{r.name}`")
    for why, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {', '.join(names)} | {why} |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
