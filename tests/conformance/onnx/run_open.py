"""Run ONNX's node tests with open dimensions: `python tests/conformance/onnx/run_open.py --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2])]

from conformance_suite import cases, select  # noqa: E402
from open_suite import MODES, OUTCOMES, Result, reason, run_all  # noqa: E402

#: outcomes that need no attention
GOOD = ("pass", "refused", "invalid")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of tests, with * and ? (default: all)")
    parser.add_argument("--skip", nargs="*", default=[], help="names of tests to leave out")
    parser.add_argument("--modes", nargs="*", default=list(MODES), help="first: one open dimension; all: all of them")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--sample", type=int, help="only every Nth test")
    parser.add_argument("--seconds", type=float, help="begin no new test after this time")
    parser.add_argument("--report", type=Path, help="write the summary page here")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every refusal")
    arguments = parser.parse_args()
    every = cases(["node"])
    tests = [c for _, c in select(every, arguments.patterns)]
    tests = sorted((t for t in tests if not any(fnmatchcase(t.name, p) for p in arguments.skip)), key=lambda t: t.name)
    if arguments.sample:
        tests = tests[arguments.sample // 2 :: arguments.sample]
    start, done = time.monotonic(), 0
    shown = (set(OUTCOMES) - set(GOOD)) | ({"refused"} if arguments.verbose else set())

    def show(results: list[Result]) -> None:
        nonlocal done
        done += 1
        for r in results:
            if r.outcome in shown:
                print(f"{r.outcome:8} {r.name} ({r.mode}: {r.dims}): {' '.join(r.detail.split())[:400]}", flush=True)
        if done % 100 == 0:
            print(f"[{done}/{len(tests)}] {time.monotonic() - start:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TILEWRIGHT_CACHE", folder)
        os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
        os.environ.setdefault("TILEWRIGHT_THREADS", "1")
        results = run_all(
            tests, modes=arguments.modes, workers=arguments.jobs, seconds=arguments.seconds, progress=show
        )
    seconds = time.monotonic() - start
    for mode in arguments.modes:
        counts = Counter(r.outcome for r in results if r.mode == mode)
        print(f"{mode}: {counts.total()} tests: {', '.join(f'{counts[o]} {o}' for o in OUTCOMES if counts[o])}")
        for why, n in Counter(reason(r) for r in results if r.mode == mode and r.outcome == "refused").most_common(25):
            print(f"    {n:4} {why}")
    print(f"{seconds:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    if arguments.report:
        from open_report import write_report

        write_report(results, seconds, len(every), arguments.report)
    return any(r.outcome not in GOOD for r in results)


if __name__ == "__main__":
    sys.exit(main())
