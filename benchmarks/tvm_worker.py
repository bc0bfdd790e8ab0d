"""The kernels of tune_kernels.py in TVM's tensor expressions, tuned by its MetaSchedule and timed. Driven by
tune_tvm.py, with a Python that has TVM and what its tuner needs.

    python tvm_worker.py tune FOLDER THREADS TRIALS KERNEL...
    python tvm_worker.py serve FOLDER THREADS

FOLDER/KERNEL.npz has the kernel's inputs in the order of its parameters, and behind them the expected result; the sizes
are theirs. `tune` leaves TVM's own database in FOLDER/KERNEL/, and goes on from what is there. `serve` builds the best
of it and times it: it answers JSON lines on stdin, ``{"load": KERNEL}`` and then any number of ``{"seconds": S}``.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target
from tvm.target.codegen import llvm_get_system_cpu

#: how many of the best records are built and timed once more: one measurement of each is not enough to choose by
BEST = 5
#: seconds a candidate may take to be built, and to be run; TVM's own 30 are short where other programs are at work
PATIENCE = 120.0
#: the fraction of the fastest runs whose mean counts, as in tilewright.tune.runner
FASTEST = 0.3
PAGE = 2 << 20


def free(*weights: te.Tensor) -> dict[str, Any]:
    """Constant operands whose layout TVM may choose: they are packed before anything is measured, as ours are."""
    return {"layout_free_placeholders": list(weights)}


def matmul(a, b):
    k = te.reduce_axis((0, a.shape[1]), "k")
    shape = (a.shape[0], b.shape[1])
    return te.compute(shape, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c", attrs=free(b))


def conv(x, w, bias):
    size, _, channels, filters = w.shape
    shape = (x.shape[0] - size + 1, x.shape[1] - size + 1, filters)
    r = [te.reduce_axis((0, size), "ry"), te.reduce_axis((0, size), "rx"), te.reduce_axis((0, channels), "rc")]
    out = te.compute(
        shape,
        lambda y, z, f: te.sum(x[y + r[0], z + r[1], r[2]] * w[r[0], r[1], r[2], f], axis=r),
        "conv",
        attrs=free(w),
    )
    return te.compute(shape, lambda y, z, f: te.max(out[y, z, f] + bias[f], te.const(0.0, "float32")), "y")


def depthwise(x, w):
    size, _, channels = w.shape
    shape = (x.shape[0] - size + 1, x.shape[1] - size + 1, channels)
    r = [te.reduce_axis((0, size), "ry"), te.reduce_axis((0, size), "rx")]
    return te.compute(
        shape, lambda y, z, f: te.sum(x[y + r[0], z + r[1], f] * w[r[0], r[1], f], axis=r), "y", attrs=free(w)
    )


def batch_matmul(a, b):
    k = te.reduce_axis((0, a.shape[2]), "k")
    shape = (a.shape[0], a.shape[1], b.shape[2])
    return te.compute(shape, lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], axis=k), "c")


def softmax(x):
    """The last axis of any number of dimensions. With TVM's fast exponential: the plain one calls the C library for
    every element."""
    n, rows = x.shape[-1], x.shape[:-1]
    k, k2 = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "k2")
    top = te.compute(rows, lambda *i: te.max(x[(*i, k)], axis=k), "top")
    e = topi.fast_exp(te.compute(x.shape, lambda *i: x[i] - top[i[:-1]], "less"))
    total = te.compute(rows, lambda *i: te.sum(e[(*i, k2)], axis=k2), "total")
    return te.compute(x.shape, lambda *i: e[i] / total[i[:-1]], "y")


def layer_norm(x, g, b):
    rows, n = x.shape
    k, k2 = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "k2")
    part = te.const(1.0 / int(n), "float32")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], axis=k), "total")
    mean = te.compute((rows,), lambda i: total[i] * part, "mean")
    square = te.compute((rows,), lambda i: te.sum((x[i, k2] - mean[i]) * (x[i, k2] - mean[i]), axis=k2), "square")
    one, tiny = te.const(1.0, "float32"), te.const(1e-5, "float32")
    scale = te.compute((rows,), lambda i: one / te.sqrt(square[i] * part + tiny), "scale")
    return te.compute((rows, n), lambda i, j: (x[i, j] - mean[i]) * scale[i] * g[j] + b[j], "y")


def attention(q, k, v):
    one, heads, queries, width = q.shape
    d, j = te.reduce_axis((0, width), "d"), te.reduce_axis((0, k.shape[2]), "j")
    scale = te.const(int(width) ** -0.5, "float32")
    scores = te.compute(
        (one, heads, queries, k.shape[2]), lambda n, h, a, b: te.sum(q[n, h, a, d] * k[n, h, b, d], axis=d), "scores"
    )
    p = softmax(te.compute(scores.shape, lambda *i: scores[i] * scale, "scaled"))
    return te.compute(q.shape, lambda n, h, a, c: te.sum(p[n, h, a, j] * v[n, h, j, c], axis=j), "y")


def reduction(x):
    k = te.reduce_axis((0, x.shape[1]), "k")
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=k), "y")


def transpose(x):
    return te.compute((x.shape[1], x.shape[0]), lambda i, j: x[j, i], "y")


KERNELS = {
    "matmul": matmul,
    "conv3x3": conv,
    "conv1x1": conv,
    "depthwise": depthwise,
    "batch_matmul": batch_matmul,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "attention": attention,
    "reduction": reduction,
    "transpose": transpose,
}


def arrays_of(folder: Path, name: str) -> list[np.ndarray]:
    return list(np.load(folder / f"{name}.npz").values())


def function(folder: Path, name: str):
    """The kernel at the sizes of its arrays, as a function of TVM's."""
    *shapes, _ = (a.shape for a in arrays_of(folder, name))
    inputs = [te.placeholder(s, name=f"p{i}") for i, s in enumerate(shapes)]
    return te.create_prim_func([*inputs, KERNELS[name.removesuffix("_round")](*inputs)])


def target(threads: int) -> Target:
    return Target({"kind": "llvm", "mcpu": llvm_get_system_cpu(), "num-cores": threads})


def build(mod, where, _params=None):
    """What TVM's own builder does, less the import of its tensor intrinsics: that takes 20 s in every process, and no
    kernel here has a use for them."""
    from tvm.driver import build as driver_build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return driver_build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod), target=where)


# ---- tuning --------------------------------------------------------------------------------------------------------


def records(folder: Path, name: str) -> list[float | None]:
    """The seconds of every trial in the order in which they were made; None for one that failed."""
    file = folder / name / "database_tuning_record.json"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line)[1][1] for line in lines]
    return [s[0] if s and s[0] < 1e9 else None for s in found]


def tune(folder: Path, threads: int, trials: int, names: list[str]) -> None:
    for name in names:
        done, start = len(records(folder, name)), time.perf_counter()
        if done < trials:
            ms.tune_tir(
                function(folder, name), target(threads), str(folder / name), trials - done, seed=1 + done,
                builder=ms.builder.LocalBuilder(max_workers=1, timeout_sec=PATIENCE, f_build=build),
                runner=ms.runner.LocalRunner(timeout_sec=PATIENCE),
                num_tuning_cores=1,
            )  # fmt: skip
        taken = time.perf_counter() - start
        print(f"{name}: {len(records(folder, name))} trials in {taken:.0f} s", file=sys.stderr, flush=True)


# ---- timing --------------------------------------------------------------------------------------------------------


def large_pages(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros that begins with a large page, as tilewright.support.huge_pages makes them."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, -(-count // PAGE) * PAGE + PAGE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(memory, np.uint8)
    first = -view.ctypes.data % PAGE
    array = view[first : first + count].view(dtype).reshape(shape)
    array[...] = 0
    return array


class Loaded:
    """The best records of a kernel, built; `seconds` times the fastest of them."""

    def __init__(self, folder: Path, name: str, threads: int) -> None:
        *inputs, self.expected = arrays_of(folder, name)
        self.inputs = [large_pages(a.shape, a.dtype) for a in inputs]
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine[...] = given
        where = target(threads)
        database = ms.database.JSONDatabase(work_dir=str(folder / name))
        workload = database.commit_workload(ms.tune_context._normalize_mod(function(folder, name)))
        self.error, self.candidates = 0.0, []
        for record in database.get_top_k(workload, BEST):
            schedule = tvm.s_tir.Schedule(workload.mod)
            record.trace.apply_to_schedule(schedule, remove_postproc=False)
            self.error = max(self.error, self.check(schedule.mod, where))
            self.candidates.append(self.prepare(schedule.mod, where))
        self.chosen = min(self.candidates, key=lambda c: self.time(c, 0.1))

    def prepare(self, mod, where):
        """A library without the packing of weights, and arrays of the sizes that it takes."""
        info = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
        shapes = [tuple(map(int, i.shape)) for i in info]
        rng, made = np.random.default_rng(0), []
        for mine, shape in zip([*self.inputs, None], shapes, strict=True):
            array = mine
            if mine is None or mine.shape != shape:
                array = large_pages(shape, np.float32)
                array[...] = rng.random(shape, np.float32)
            made.append(tvm.runtime.from_dlpack(array))
        return build(mod, where), made

    def check(self, mod, where) -> float:
        """The error of the whole function, packing included, relative to the largest value of the result."""
        out = large_pages(self.expected.shape, np.float32)
        tvm.compile(mod, where)(*map(tvm.runtime.from_dlpack, [*self.inputs, out]))
        return float(np.abs(out - self.expected).max() / np.abs(self.expected).max())

    def time(self, candidate, seconds: float) -> float:
        library, arrays = candidate
        once = library.time_evaluator("main", tvm.cpu(), number=1, repeat=3)(*arrays).min
        count = max(8, min(20_000, int(seconds / max(once, 1e-7))))
        taken = np.sort(library.time_evaluator("main", tvm.cpu(), number=1, repeat=count)(*arrays).results)
        return float(taken[: max(1, round(len(taken) * FASTEST))].mean())


def serve(folder: Path, threads: int) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"version": tvm.__version__, "cpu": llvm_get_system_cpu()}) + "\n")
    loaded: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            loaded = Loaded(folder, request["load"], threads)
            answer: dict[str, Any] = {"error": loaded.error, "trials": records(folder, request["load"])}
        else:
            answer = {"seconds": loaded.time(loaded.chosen, request["seconds"])}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    os.environ["TVM_NUM_THREADS"] = sys.argv[3]
    if sys.argv[1] == "tune":
        tune(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    else:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
