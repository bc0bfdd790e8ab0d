"""NNSmith's models with their first dimensions open: `python tests/fuzz/nnsmith_open.py FOLDER [--count N]`.

For each model of a folder that `nnsmith_models.py` made, inputs get an open first dimension, one for all inputs whose
first dimension has one size. Where ONNX Runtime accepts the model at other sizes of these, it is compiled once and
compared at the model's own sizes and two others.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance"), str(HERE.parents[1])]

from conditioning import Truth  # noqa: E402
from differential import Outcome, differs, feed_of, lost, oracle  # noqa: E402
from isolated import run_isolated  # noqa: E402

TIMEOUT, MEMORY = 90, 6 << 30
#: outcomes that need no attention; `fixed`: no first dimension may change
GOOD = ("equal", "refused", "fixed")


def opened(data: bytes) -> tuple[Any, dict[str, list[str]]]:
    """A model without sizes of first dimensions, and the inputs that have each of them by its name."""
    import onnx

    model = onnx.load_from_string(data)
    constants = {t.name for t in model.graph.initializer}
    names: dict[int, str] = {}
    where: dict[str, list[str]] = {}
    for i in model.graph.input:
        dims = i.type.tensor_type.shape.dim
        if i.name not in constants and len(dims) and dims[0].dim_value > 0:
            name = names.setdefault(dims[0].dim_value, f"batch{len(names)}")
            where.setdefault(name, []).append(i.name)
            dims[0].dim_param = name
    for o in model.graph.output:
        o.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model, where


def at(feed: dict[str, np.ndarray], where: dict[str, list[str]], sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Inputs with other first dimensions: the numbers again and again."""
    size_of = {n: sizes[d] for d, names in where.items() for n in names if d in sizes}
    return {n: np.resize(x, (size_of[n], *x.shape[1:])) if n in size_of else x for n, x in feed.items()}


def fixed(model: Any, feed: dict[str, np.ndarray]) -> bytes:
    """The model for the sizes of these inputs."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for i in copy.graph.input:
        if i.name in feed:
            for d, n in zip(i.type.tensor_type.shape.dim, feed[i.name].shape, strict=True):
                d.dim_value = n
    return bytes(copy.SerializeToString())


def compare(path: Path) -> Outcome:
    """One model."""
    import onnx

    import tilewright as tw
    from tilewright.support.errors import CompileError, TilewrightError
    from tilewright.support.sizes import Undecided

    data = path.read_bytes()
    feed = feed_of(onnx.load_from_string(data), seed=int("".join(c for c in path.stem if c.isdigit()) or 0))
    model, where = opened(data)
    own = {d: feed[names[0]].shape[0] for d, names in where.items()}
    bytes_ = model.SerializeToString()
    if isinstance(oracle(bytes_, feed), str):
        return Outcome(path.name, "fixed", "ONNX Runtime refuses the model")
    free = {
        d: n
        for d, n in own.items()
        if not any(isinstance(oracle(bytes_, at(feed, where, {**own, d: m})), str) for m in (n + 1, 2 * n + 3))
    }
    high = {d: 2 * n + 5 + i for i, (d, n) in enumerate(free.items())}
    if not free or isinstance(oracle(bytes_, at(feed, where, {**own, **high})), str):
        return Outcome(path.name, "fixed", "no first dimension may change")
    small = dict.fromkeys(free, 1)
    low = own if isinstance(oracle(bytes_, at(feed, where, {**own, **small})), str) else small
    dims = {d: tw.Dim(d, low[d], high[d]) for d in free}
    of = {n: d for d, names in where.items() for n in names}
    shapes = {n: (dims.get(of[n], x.shape[0]), *x.shape[1:]) if n in of else x.shape for n, x in feed.items()}
    try:
        run = tw.compile(bytes_, inputs=shapes, cache=False)
    except Exception as e:
        other = isinstance(e.__cause__, Exception) and not isinstance(e.__cause__, TilewrightError)
        stage = isinstance(e, CompileError) and not isinstance(e.__cause__, Undecided)
        clear = isinstance(e, TilewrightError) and not stage
        return Outcome(path.name, "refused" if clear and not other else "error", f"{type(e).__name__}: {e}")
    for sizes in (own, {**own, **high}, {**own, **{d: low[d] for d in free}}):
        values = at(feed, where, sizes)
        want = oracle(bytes_, values)
        if isinstance(want, str):
            continue
        try:
            got = run(values)
        except Exception as e:
            return Outcome(path.name, "error", f"{sizes}: {type(e).__name__}: {e}")
        truth = Truth(fixed(model, values), values)
        for i, output in enumerate(model.graph.output):
            if why := differs(got[i], want[i], truth, i):
                closed = tw.compile(bytes_, inputs={n: x.shape for n, x in values.items()}, cache=False)(values)
                if differs(closed[i], want[i], truth, i):
                    return Outcome(path.name, "mismatch at fixed sizes too", f"{sizes}, {output.name}: {why}")
                return Outcome(path.name, "mismatch", f"{sizes}, {output.name}: {why}")
    return Outcome(path.name, "equal", str(dims))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="begin no new model after this time")
    parser.add_argument("--only", help="one file, in this process")
    arguments = parser.parse_args()
    os.environ.setdefault("TILEWRIGHT_COMPILE", "inprocess")
    os.environ.setdefault("TILEWRIGHT_THREADS", "1")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TILEWRIGHT_CACHE", cache)
        if arguments.only:
            print(compare(arguments.folder / arguments.only))
            return 0
        paths = sorted(arguments.folder.glob("*.onnx"), key=lambda p: int(p.stem))[: arguments.count]
        begun = time.monotonic()

        def show(result: Outcome) -> None:
            if result.outcome not in ("equal", "fixed"):
                print(f"{result.outcome:8} {result.name}: {' '.join(result.detail.split())[:300]}", flush=True)

        outcomes = run_isolated(
            paths,
            compare,
            lost,
            workers=arguments.jobs,
            timeout=TIMEOUT,
            memory=MEMORY,
            progress=show,
            seconds=arguments.seconds,
        )
    counts = Counter(o.outcome for o in outcomes)
    seconds = time.monotonic() - begun
    print(f"{len(outcomes)} models in {seconds:.0f} s: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    return bool(set(counts) - set(GOOD))


if __name__ == "__main__":
    sys.exit(main())
