"""Run PyTorch's own table of operators on Tilewright: `python tests/conformance/torch/run.py --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from op_db_report import write_report
from op_db_suite import _ENTRIES, SAMPLES, Result, entries, run_all, select
from op_db_table import GOOD, surprise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of entries, with * and ? (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--interpret", action="store_true", help="by the operators' references, without compiling")
    parser.add_argument("--slice", help="FIRST:LAST, a part of the entries")
    parser.add_argument("--seconds", type=float, help="begin no entry after so many")
    parser.add_argument("--json", type=Path, help="read results of before from here, write all results there")
    parser.add_argument("--report", type=Path, help="write the page from --json (compiled) and --interpreted")
    parser.add_argument("--interpreted", type=Path, help="results of runs with --interpret")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every entry that does not pass")
    arguments = parser.parse_args()
    if arguments.report:
        import torch

        compiled, interpreted = (_known(p).values() for p in (arguments.json, arguments.interpreted or arguments.json))
        operators = {name: entry.name for name, entry in entries().items()}
        version = torch.__version__.partition("+")[0]
        write_report(arguments.report, list(compiled), list(interpreted), version, operators)
        return 0
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    os.environ.setdefault("TILEWRIGHT_THREADS", "1")
    _ENTRIES.update(entries())
    names = select(list(_ENTRIES), arguments.patterns)
    if arguments.slice:
        first, _, last = arguments.slice.partition(":")
        names = names[int(first or 0) : int(last) if last else None]
    start = time.monotonic()

    known = _known(arguments.json)

    def progress(r: Result) -> None:
        known[r.name] = r
        if arguments.json:  # what is known so far, if the run is stopped
            arguments.json.write_text(json.dumps([asdict(known[n]) for n in sorted(known)], indent=1) + "\n")
        if arguments.verbose and r.outcome not in GOOD:
            print(f"{r.outcome:12} {r.name}: {' '.join(r.detail.split())[:300]}", flush=True)

    results = run_all(
        names, interpret=arguments.interpret, workers=arguments.jobs, progress=progress, seconds=arguments.seconds
    )
    counts = Counter(r.outcome for r in results)
    seconds = time.monotonic() - start
    print(f"\n{len(results)} entries, up to {SAMPLES} samples each, in {seconds:.0f} s: {dict(counts.most_common())}")
    surprises = [f"{r.name} {why}" for r in results if (why := surprise(r.name, r.outcome))]
    print("".join(f"\n{line}" for line in surprises))
    return 1 if surprises else 0


def _known(path: Path | None) -> dict[str, Result]:
    """The results in a file, by name."""
    if path is None or not path.exists():
        return {}
    return {r["name"]: Result(**r) for r in json.loads(path.read_text())}


if __name__ == "__main__":
    sys.exit(main())
