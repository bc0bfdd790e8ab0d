"""Random chains of operators on hard numbers, bit for bit or within stated bounds: `python tests/fuzz/hard_numbers.py`.

NaN, infinities, signed zeros, subnormals, ties, the ends of every type and what lies beside them, through chains of two
to six ONNX operators (`hard_chains.py`), against NumPy's numbers in their types (`hard_reference.py`). A mode says what
the compiler knows: `static` sizes, `folded` (all inputs are constants), `mixed` (some are), `dynamic` sizes (each is
compiled when it is met), `open` sizes (one program). A pack of chains is one model; a chain that is wrong is compiled
alone, then shortened, and its model is saved. Everything is decided by --seed: the same packs come again, and --resume
goes on where a run ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "conformance"), str(HERE.parents[1])]

from hard_allowed import reason_of  # noqa: E402
from hard_chains import MODES, SHAPES, Chain, draw_chain, feed_of, pack, pruned  # noqa: E402
from hard_reference import MANY, Rules, wrong  # noqa: E402
from isolated import run_isolated  # noqa: E402
from support.hard_numbers import DTYPES  # noqa: E402

TIMEOUT = 600
#: types whose subnormals may be zero: by what AVX512-BF16 converts with, and by GPUs
BF, SMALL = ("bfloat16",), ("bfloat16", "float16", "float32", "float64")
#: what each target may do to numbers besides, and the element types that it has (docs/gpu.md)
TARGETS: dict[str, tuple[Rules, tuple[str, ...]]] = {
    "cpu": (Rules(flushes=BF), tuple(DTYPES)),
    "c": (Rules(), tuple(t for t in DTYPES if t not in ("f16", "bf16"))),
    "opencl": (Rules(functions=40, divisions=3, roots=3, flushes=SMALL), tuple(DTYPES)),
    "vulkan:text=spirv": (Rules(functions=70, divisions=3, roots=3, flushes=SMALL), tuple(DTYPES)),
    "vulkan": (Rules(functions=70, divisions=3, roots=3, flushes=SMALL), tuple(DTYPES)),
}
#: mismatches of a pack that are shortened; the others are only counted
SHORTENED = 4


@dataclass(frozen=True)
class Task:
    """A pack of chains."""

    number: int
    seed: int
    target: str
    mode: str
    types: tuple[str, ...]
    chains: int

    @property
    def shape(self) -> tuple[int, int]:
        return random.Random(self.number).choice(SHAPES)

    def draw(self) -> list[Chain]:
        names = [f"s{self.seed}p{self.number}c{i}" for i in range(self.chains)]
        return [draw_chain(n, self.types, self.shape, self.mode) for n in names]

    def sizes(self) -> list[tuple[int, int]]:
        """Of the inputs: those of two runs where sizes are not fixed."""
        return [self.shape, (2, 33)] if self.mode in ("dynamic", "open") else [self.shape]


@dataclass
class Found:
    """What a pack gave: its chains, how many numbers were compared, what was refused, and each mismatch as text."""

    number: int
    mode: str
    target: str
    chains: int = 0
    numbers: int = 0
    seconds: float = 0.0
    refused: list[str] = field(default_factory=list)
    wrong: list[dict] = field(default_factory=list)
    allowed: int = 0


def compiled(chains: Sequence[Chain], task: Task):
    """The chains as one executable, which is called with a feed."""
    import tilewright as tw

    how = {"target": task.target, "threads": 1, "cache": False}
    if task.mode not in ("dynamic", "open"):
        return tw.compile(pack(chains, task.shape), **how)
    model = pack(chains, ("rows", "columns"))
    if task.mode == "dynamic":
        return tw.compile(model, specialize="now", **how)
    dims = (tw.Dim("rows", 1, 200), tw.Dim("columns", 1, 512))
    return tw.compile(model, inputs={i.name: dims for i in model.graph.input}, **how)


def mismatches(chains: Sequence[Chain], task: Task, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[list[str]]:
    """For each chain how its results differ from what is right, in all feeds; what the compiler raises."""
    run = compiled(chains, task)
    rules, found = TARGETS[task.target][0], [[] for _ in chains]
    for feed in feeds:
        read = set().union(*(c.reads for c in chains))
        got = run.run({n: a for n, a in feed.items() if n in read})
        for why, chain, made in zip(found, chains, got, strict=True):
            want = chain.value(feed, rules)
            if made.shape != want.free.shape or made.dtype != want.dtype:
                why.append(f"{made.dtype}{list(made.shape)} instead of {want.dtype}{list(want.free.shape)}")
            elif wrong(made, want).any() and (off := wrong(made, want := chain.value(feed, rules, MANY))).any():
                at = tuple(int(i) for i in np.argwhere(off)[0])
                right = list(dict.fromkeys(repr(v.item()) for v in want.samples[(slice(None), *at)]))
                why.append(
                    f"{off.sum()} of {off.size} differ, at {at}: {made[at].item()!r}, right: {', '.join(right[:4])}"
                )
    return found


def settle(chains: Sequence[Chain], task: Task, feeds, found: Found) -> list[tuple[Chain, str]]:
    """The chains that are wrong; those that cannot be compiled are looked for by halves."""
    try:
        return [(c, why[0]) for c, why in zip(chains, mismatches(chains, task, feeds), strict=True) if why]
    except Exception as e:
        if len(chains) == 1:
            text = f"{type(e).__name__}: {str(e)[:300]}"
            if type(e).__name__ == "UnsupportedError":
                found.refused.append(f"{chains[0]} | {text}")
                return []
            return [(chains[0], text)]
    half = len(chains) // 2
    return settle(chains[:half], task, feeds, found) + settle(chains[half:], task, feeds, found)


def shortened(chain: Chain, task: Task, feeds) -> tuple[Chain, list, str]:
    """The fewest steps at the end of a chain that are wrong alone, on the right values of the steps before."""
    rules = TARGETS[task.target][0]
    for n in range(1, len(chain.steps) + 1):
        tail = chain.steps[-n:]
        made = {s.name for s in tail}
        cut = {i for s in tail for i in s.inputs} - made - set(chain.constants) - chain.reads
        try:
            if n == len(chain.steps):
                tried, given = pruned(chain), feeds
            elif cut and task.mode in ("dynamic", "open"):
                continue
            else:
                values = {i: chain.values(feeds[0], rules)[i].samples[0] for i in cut}
                tried = pruned(replace(chain, steps=tail, constants={**chain.constants, **values}))
                tried, given = as_inputs(tried, cut, feeds[0], task)
            why = mismatches([tried], task, given)[0]
        except Exception as e:
            why = [f"{type(e).__name__}: {str(e)[:200]}"]
            if n < len(chain.steps):
                continue
        if why:
            return tried, given, why[0]
    return chain, feeds, "only in its pack"


def as_inputs(chain: Chain, cut: set[str], feed, task: Task):
    """Values of earlier steps as inputs, if they have the inputs' shape and the mode has inputs; else as constants."""
    names, constants, feed = {}, dict(chain.constants), dict(feed)
    for i, name in enumerate(sorted(cut & set(constants))):
        if task.mode != "folded" and constants[name].shape == task.shape:
            names[name] = f"{constants[name].dtype.name}_v{i}"
            feed[names[name]] = constants.pop(name)
    steps = tuple(replace(s, inputs=tuple(names.get(i, i) for i in s.inputs)) for s in chain.steps)
    return replace(chain, steps=steps, constants=constants), [feed]


def run_pack(task: Task, folder: Path | None = None) -> Found:
    """One pack in this process."""
    start, found = time.perf_counter(), Found(task.number, task.mode, task.target)
    chains = task.draw()
    names = sorted(set().union(*(c.reads for c in chains)))
    feeds = [feed_of(names, s, task.seed * 1000 + task.number) for s in task.sizes()]
    bad = settle(chains, task, feeds, found)
    for i, (chain, why) in enumerate(bad):
        short, given = chain, feeds
        if i < SHORTENED:
            short, given, why = shortened(chain, task, feeds)
        if reason_of(task.target, str(short)):
            found.allowed += 1
            continue
        found.wrong.append({"chain": chain.seed, "text": str(short), "whole": str(chain), "why": why})
        if folder is not None:
            save(folder / f"{task.target}-{task.mode}-{chain.seed}", short, given, task)
    found.chains = len(chains) - len(found.refused)
    found.numbers = sum(int(np.prod(s)) for s in task.sizes()) * found.chains
    found.seconds = round(time.perf_counter() - start, 2)
    return found


def save(path: Path, chain: Chain, feeds, task: Task) -> None:
    """The model of one chain, and its inputs beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".onnx").write_bytes(pack([chain], task.shape).SerializeToString())
    arrays = {n: feeds[0][n] for n in chain.reads}
    np.savez(
        path.with_suffix(".npz"), **{n: a if a.dtype.kind != "V" else a.view(np.uint16) for n, a in arrays.items()}
    )


def lost(task: Task, outcome: str, detail: str, seconds: float) -> Found:
    text = f"{outcome}: {detail}"
    return Found(
        task.number,
        task.mode,
        task.target,
        0,
        0,
        seconds,
        [],
        [{"chain": f"p{task.number}", "text": text, "whole": "", "why": text}],
    )


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """All packs: they take turns among targets and modes."""
    each = [(t, m) for t in arguments.target for m in arguments.mode]
    count = -(-arguments.count // arguments.pack)
    made = []
    for number in range(count):
        target, mode = each[number % len(each)]
        types = tuple(t for t in arguments.types or DTYPES if t in TARGETS[target][1])
        made.append(Task(number, arguments.seed, target, mode, types, arguments.pack))
    return made


def table(results: Sequence[Found]) -> str:
    """Chains, numbers and mismatches by target and mode."""
    lines = ["| target | mode | chains | numbers | refused | allowed | wrong | seconds |", "|---" * 8 + "|"]
    for key in sorted({(r.target, r.mode) for r in results}):
        part = [r for r in results if (r.target, r.mode) == key]
        counts = [sum(r.chains for r in part), sum(r.numbers for r in part)]
        counts += [sum(len(r.refused) for r in part), sum(r.allowed for r in part), sum(len(r.wrong) for r in part)]
        lines.append(f"| {' | '.join(key)} | {' | '.join(map(str, counts))} | {sum(r.seconds for r in part):.0f} |")
    return "\n".join(lines)


def report(results: Sequence[Found], todo: Sequence[Task], command: str) -> str:
    """A page of results."""
    done = {r.number for r in results}
    types = Counter(t for task in todo if task.number in done for c in task.draw() for t in c.types)
    operators = Counter(s.op for task in todo if task.number in done for c in task.draw() for s in c.steps)
    lines = ["# Chains of operators on hard numbers", "", f"`{command}`", "", table(results), ""]
    lines += ["Chains that compute in a type: " + ", ".join(f"{t} {n}" for t, n in types.most_common()) + ".", ""]
    lines += [f"Operators ({len(operators)}): " + ", ".join(f"{o} {n}" for o, n in operators.most_common()) + "."]
    if found := [w for r in results for w in r.wrong]:
        lines += ["", "Wrong:", "", *(f"- `{w['text']}` ({w['chain']}): {w['why']}" for w in found)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="chains")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new pack after this time")
    parser.add_argument("--target", nargs="*", default=["cpu"], choices=list(TARGETS))
    parser.add_argument("--mode", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--types", nargs="*", choices=list(DTYPES), help="element types (default: all)")
    parser.add_argument("--pack", type=int, default=50, help="chains in one model")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path, help="folder for the models of chains that are wrong")
    parser.add_argument("--resume", type=Path, help="a file of results: packs that it has are not run again")
    parser.add_argument("--report", type=Path, help="write a page of all results here")
    parser.add_argument("--only", type=int, help="the pack of this number, in this process")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    every, results = tasks(arguments), []
    todo = every
    if arguments.only is not None:
        todo = [t for t in todo if t.number == arguments.only]
    if arguments.resume and arguments.resume.exists():
        results = [Found(**json.loads(line)) for line in arguments.resume.read_text().splitlines()]
        done = {r.number for r in results}
        todo = [t for t in todo if t.number not in done]
    begun, total = time.monotonic(), len(todo)

    def show(found: Found) -> None:
        results.append(found)
        if arguments.resume:
            with arguments.resume.open("a") as f:
                f.write(json.dumps(asdict(found)) + "\n")
        for w in found.wrong:
            print(f"\r{found.target} {found.mode} {w['chain']}: {w['why']}\n    {w['text']}", flush=True)
        if sys.stderr.isatty():
            bar = "#" * (30 * len(results) // max(1, total))
            line = f"\r[{bar:30}] {len(results)}/{total} packs, {time.monotonic() - begun:.0f} s"
            print(line, end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        work = partial(run_pack, folder=arguments.save)
        if arguments.only is not None:
            for task in todo:
                show(work(task))
        else:
            run_isolated(
                todo, work, lost, workers=arguments.jobs, timeout=TIMEOUT, progress=show, seconds=arguments.seconds
            )
    print(f"\n{table(results)}")
    if arguments.report:
        arguments.report.write_text(report(results, every, f"python {' '.join(sys.argv)}"))
    for text, n in Counter(r.split(" | ")[-1][:120] for f in results for r in f.refused).most_common(10):
        print(f"refused {n} times: {text}")
    return bool(any(f.wrong for f in results))


if __name__ == "__main__":
    sys.exit(main())
