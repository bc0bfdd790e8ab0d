"""Run ONNX's backend tests on Tilewright: `python tests/conformance/onnx/run.py --help`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from conformance_report import How, write_report  # noqa: E402
from conformance_suite import KINDS, Result, cases, run_all, sample, select  # noqa: E402
from conformance_table import not_comparable, reason_of  # noqa: E402


def unexpected(result: Result, target: str) -> bool:
    """Whether a result is none that the table of known failures allows."""
    return result.outcome != expected(result.name, target)


def expected(name: str, target: str = "cpu") -> str:
    """The outcome that the tables of known failures state."""
    if reason_of(name, target) is not None:
        return "unsupported"
    return "pass" if not_comparable(name) is None else "incomparable"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of tests, with * and ? (default: all)")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--sample", type=int, help="only every Nth test")
    parser.add_argument("--report", type=Path, help="write the summary page here")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--target", default="cpu", help="what to compile for (default: cpu)")
    parser.add_argument("--cache", type=Path, help="kernel cache (default: a new, empty one)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every test that does not pass")
    arguments = parser.parse_args()
    todo = select(cases(arguments.kinds), arguments.patterns)
    if arguments.sample:
        todo = sample(todo, arguments.sample)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE"] = str(arguments.cache or folder)
        os.environ["TILEWRIGHT_CONFORMANCE_TARGET"] = arguments.target
        os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
        os.environ.setdefault("TILEWRIGHT_THREADS", "1")
        results = run_all(todo, workers=arguments.jobs, progress=_progress(len(todo), arguments.verbose))
    seconds = time.monotonic() - start
    counts = Counter(r.outcome for r in results)
    print(f"\n{len(results)} tests in {seconds:.0f} s: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    if arguments.report:
        how = How(seconds, arguments.jobs, arguments.target, device_of(arguments.target))
        write_report(results, how, arguments.report)
    bad = [r for r in results if unexpected(r, arguments.target)]
    for r in bad:
        print(f"{r.outcome:11} {r.name}: {' '.join(r.detail.split())[:160]}" + _expectation(r, arguments.target))
    return bool(bad)


def device_of(target: str) -> str:
    """The device that a target's code runs on; nothing for the processor."""
    return "" if target == "cpu" else importlib.import_module(f"tilewright.targets.{target}.device").device().name


def _expectation(result: Result, target: str) -> str:
    reason = reason_of(result.name, target)
    return "" if reason is None else f" (listed as a known failure: {reason})"


def _progress(total: int, verbose: bool):
    done = 0

    def show(result: Result) -> None:
        nonlocal done
        done += 1
        if verbose and result.outcome != "pass":
            print(
                f"[{done}/{total}] {result.outcome:11} {result.name}: {' '.join(result.detail.split())[:200]}",
                flush=True,
            )
        elif done % 100 == 0:
            print(f"[{done}/{total}]", flush=True)

    return show


if __name__ == "__main__":
    sys.exit(main())
