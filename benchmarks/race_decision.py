"""A decision of the schedule rules, taken otherwise: default schedules race those with the other choice.

    python benchmarks/race_decision.py halves false [--count 24] [--seed 31] [--threads 1] -o results/decision_halves

Sizes of matrix products and 3x3 convolutions are drawn until `count` of them are found at which the rule asks for the
decision and its default is another one than what is given (as JSON). The decision is named as in docs/tuning.md. Each
pair runs in turns, as candidates of the tuner do (docs/tuning.md, "Measuring"). Writes results.json and results.md: how
many times as fast the default is."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from tune_kernels import conv, machine_facts, matmul

from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel
from tilewright.tune.measure import Meter
from tilewright.tune.space import Candidate, Space
from tilewright.tune.tasks import task_of

#: draws after which a decision that is hardly ever asked for is given up
DRAWS = 2000


def drawn(rng: random.Random) -> tuple[str, Kernel]:
    """A product or a convolution of 17 to 144 columns."""
    columns = rng.randint(17, 144)
    if rng.random() < 0.6:
        rows, depth = rng.randint(20, 800), rng.randint(16, 600)
        return f"{rows}x{depth}x{columns}", matmul(rows, depth, columns)
    height, width, channels = rng.randint(7, 40), rng.randint(7, 40), rng.randint(8, 96)
    return f"3x3 {height}x{width}, {channels} to {columns}", conv(height, width, channels, columns, 3)


def other(space: Space, name: str, value: Any) -> Candidate | None:
    """The candidate with the other choice, if the default takes the decision differently."""
    if name not in space.decisions or space.decisions[name].chosen == value:
        return None
    found = space.realize({name: value})
    return found if found is not None and found.decisions.get(name) == value else None


def markdown(results: dict[str, Any]) -> str:
    times = results["kernels"]
    mean = math.exp(sum(math.log(k["speedup"]) for k in times) / len(times))
    facts = results["machine"]
    lines = [
        f"# The decision `{results['decision']}`",
        "",
        f"{facts['processor']}, {results['threads']} thread(s); {facts['toolchain']}. {len(times)} sizes drawn with "
        f"seed {results['seed']} at which the default of `{results['decision']}` is not "
        f"{json.dumps(results['value'])}: how many times as fast it is as with that.",
        "",
        f"Geometric mean {mean:.3f}, least {min(k['speedup'] for k in times):.3f}.",
        "",
        "| kernel | default, us | other, us | times as fast |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {k['kernel']} | {k['default_us']:.1f} | {k['other_us']:.1f} | {k['speedup']:.3f} |" for k in times]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("decision")
    parser.add_argument("value", type=json.loads)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", default="race_decision")
    args = parser.parse_args()
    rng, meter = random.Random(args.seed), Meter(find("cpu"), args.threads, seconds=0.3)
    results: dict[str, Any] = {
        "machine": machine_facts(), "decision": args.decision, "value": args.value, "seed": args.seed,
        "threads": args.threads, "kernels": [],
    }  # fmt: skip
    try:
        for _ in range(DRAWS):
            if len(results["kernels"]) == args.count:
                break
            label, kernel = drawn(rng)
            space = Space(kernel, meter.description)
            candidate = other(space, args.decision, args.value)
            if candidate is None:
                continue
            (o,) = meter.measure(task_of(kernel).subject("cpu", args.threads), space.default, [candidate])
            if o.ratio is None:
                raise SystemExit(f"{label}: the other schedule ended with {o.status}")
            found = {"default_us": o.seconds / o.ratio * 1e6, "other_us": o.seconds * 1e6, "speedup": o.ratio}
            results["kernels"].append({"kernel": label, **found})
            print(f"{label:32} {o.ratio:.3f}", flush=True)
    finally:
        meter.close()
    if not results["kernels"]:
        raise SystemExit(f"no size was drawn at which the default of {args.decision} is another one")
    Path(f"{args.output}.json").write_text(json.dumps(results, indent=1) + "\n")
    Path(f"{args.output}.md").write_text(markdown(results))
    print(markdown(results), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
