"""One peer with one model in one process, driven by bench.py: load, check the outputs, then time bursts on request.

    python worker.py PEER MODEL.onnx THREADS [--once]

With ``--once`` it stops after loading and two runs. Requests come as JSON lines on stdin, answers leave on the original
stdout: the arguments of `burst`, or ``{"model": PATH}`` for another model in the place of this one. Whatever libraries
print goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


def load_peer(name: str):
    """The module ``peers/NAME.py`` (under a name of its own: peers are called like the packages they import)."""
    spec = importlib.util.spec_from_file_location(f"peer_{name}", HERE / "peers" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peak_megabytes(who: int = resource.RUSAGE_SELF) -> float:
    """Largest resident size of this process, or with RUSAGE_CHILDREN of the largest one that it waited for."""
    return round(resource.getrusage(who).ru_maxrss / 1024, 1)


def cpu_seconds() -> float:
    """Of this process, of those that it waited for, and on Linux of those below it that still run: a compiling process
    is kept for the next compilation."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system + _living(os.getpid())


def _living(parent: int) -> float:
    """Processor seconds of the processes below one, and of those that they waited for."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" ", 1)
        except OSError:  # it has ended
            continue
        numbers = rest.rsplit(")", 1)[1].split()
        if int(numbers[1]) == parent:
            total += sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK") + _living(int(pid))
    return total


def error_of(outputs, expected) -> float:
    """The largest error of any output, relative to the largest value of that output; infinite if shapes differ."""
    import numpy as np

    if len(outputs) != len(expected):
        return float("inf")
    worst = 0.0
    for got, want in zip(map(np.asarray, outputs), expected, strict=True):
        if got.shape != want.shape:
            return float("inf")
        difference = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0))
        if not np.isfinite(difference):
            return float("inf")
        worst = max(worst, difference / (float(np.abs(want).max(initial=0.0)) or 1.0))
    return worst


def aligned(array):
    """A copy that begins with a cache line, for all peers: by itself NumPy may begin anywhere in one."""
    import numpy as np

    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def start(peer: str, onnx_path: str, threads: int) -> tuple:
    """Import, load and run twice: the function, its inputs, and what was measured."""
    import numpy as np

    base = onnx_path.removesuffix(".onnx")
    inputs = {name: aligned(x) for name, x in np.load(f"{base}.inputs.npz").items()}
    expected = list(np.load(f"{base}.expected.npz").values())
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    module = load_peer(peer)
    facts = {"version": module.version(), "reduced": getattr(module, "REDUCED", False), "import_s": lap()}
    cpu = cpu_seconds()
    run = module.load(onnx_path, threads)
    facts |= {"load_s": lap(), "load_cpu_s": cpu_seconds() - cpu}
    facts["load_peak_mb"] = max(peak_megabytes(), peak_megabytes(resource.RUSAGE_CHILDREN))
    if hasattr(module, "sizes"):
        facts["sizes"] = module.sizes(run)
        lap()
    outputs = run(inputs)
    facts["first_run_s"] = lap()
    facts["error"] = error_of(outputs, expected)
    lap()
    run(inputs)
    facts["second_run_s"] = lap()
    facts["peak_mb"] = peak_megabytes()
    return run, inputs, facts


def burst(run, inputs: dict, seconds: float, warm: float, least: int) -> dict:
    """Time single runs for `seconds` (at least `least` of them) after untimed runs for `warm` seconds."""
    end = time.perf_counter() + warm
    run(inputs)
    while time.perf_counter() < end:
        run(inputs)
    times, cpu = [], []
    end = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < end and len(times) < 50_000):
        cpu_before, before = time.process_time(), time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - before)
        cpu.append(time.process_time() - cpu_before)
    return {"times": times, "cpu": cpu, "peak_mb": peak_megabytes()}


def main() -> None:
    peer, onnx_path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**facts) -> None:
        answers.write(json.dumps(facts) + "\n")

    try:
        run, inputs, facts = start(peer, onnx_path, threads)
        answer(**facts)
        for line in sys.stdin if "--once" not in sys.argv else ():
            request = json.loads(line)
            if "model" in request:
                run, inputs, facts = start(peer, request["model"], threads)
                answer(**facts)
            else:
                answer(**burst(run, inputs, **request))
    except BaseException as error:  # whatever a peer does, the driver hears of it
        traceback.print_exc()
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        answer(failed=f"{type(error).__name__}: {error}"[:1500], missing=missing)
    answers.flush()
    os._exit(0)  # some runtimes hang or crash in their destructors


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.modules["worker"] = sys.modules["__main__"]
    main()
