"""Building and timing candidates, each step in processes that may die.

    with Meter(target, threads=2) as meter:
        outcomes = meter.measure(subject, default, candidates)

Every outcome has a status: ``ok``, ``build`` (the kernel does not compile), ``crash``, ``timeout``, ``wrong`` (other
results than the default schedule's or the reference's) or ``unstable`` (different results in two runs). The default
schedule runs beside the candidates in the same program and gives the ratio that counts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from ..driver.tuning_database import Machine
from ..support import child_processes
from ..support.errors import CompileError, UsageError
from ..targets.base import Built, Target, Tuning
from .runner import KernelTiming, Request, RunnerReply, Subject, read_message, write_message

if TYPE_CHECKING:
    from ..schedule.nest import Nest

#: results of two schedules may differ by this multiple of the tolerance of one
BETWEEN = 2.0
#: seconds between two looks at a process that may hang
STEP = 0.2
STATUSES = ("ok", "build", "crash", "timeout", "wrong", "unstable")


class NestCandidate(Protocol):
    """What is built and measured: `Candidate`, or one that was sent."""

    @property
    def nest(self) -> Nest: ...

    @property
    def digest(self) -> str: ...


C = TypeVar("C", bound=NestCandidate)


@dataclass(frozen=True)
class Outcome(Generic[C]):
    """What became of a candidate; `ratio` is its time over the default's. `why` says more about a failure."""

    candidate: C
    status: str
    seconds: float | None = None
    ratio: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Contest:
    """A candidate against the incumbent and the default: time ratios of every burst, and its error as a multiple of the
    tolerance."""

    against_incumbent: tuple[float, ...]
    against_default: tuple[float, ...]
    seconds: float
    default_seconds: float
    error: float
    default_error: float


class Died(Exception):
    """The measuring process ended: `status` is ``crash`` or ``timeout``."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class NoRunners(UsageError):
    """Nothing is left to measure with."""


class RunnerProcess:
    """A process that runs candidates; started when first used, and again after it died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the runner)

    def ask(self, request: Request, timeout: float) -> RunnerReply:
        """The answer to a request; Died if the process crashed or was killed after `timeout` seconds."""
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        self.log.seek(0)
        self.log.truncate()
        late, done = threading.Event(), threading.Event()

        def give_up() -> None:
            # steps, not a clock: a machine that sleeps, or stops both processes, stops the time too
            if not any(done.wait(STEP) for _ in range(max(1, round(timeout / STEP)))):
                late.set()
                process.kill()

        threading.Thread(target=give_up, daemon=True).start()
        try:
            write_message(process.stdin, request)
            return read_message(process.stdout)
        except (EOFError, OSError, ValueError):
            if self.process is not process:
                raise NoRunners("the search has ended", stage="tune") from None
            code = process.wait()
            self.process = None
            if late.is_set():
                raise Died("timeout", f"it ran longer than {timeout:g} s") from None
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.log.seek(0)
            last = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Died("crash", f"the process died ({how}){': ' + last[0] if last else ''}") from None
        except BaseException:  # interrupted: what the process is at does not matter any more
            self.close()
            raise
        finally:
            done.set()

    def _start(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.process = child_processes.start(
                "from tilewright.tune.runner import main; main()",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the tuner, which ends this process in its own time
            )
        return self.process

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None  # both are pipes
                with contextlib.suppress(OSError):
                    stream.close()


def tuning_of(target: Target) -> Tuning:
    """The `Tuning` of a target; UsageError if it has none."""
    if (tuning := target.tuning()) is None:
        raise UsageError(
            f"target {target.name} cannot be tuned: its kernels are not measured on this machine",
            stage="tune",
            hint="tune for target cpu, or give the target a `tuning` (tilewright.targets.base.Target)",
        )
    return tuning


def machine_of(target: Target, description: object, threads: int) -> Machine:
    """What results of a target are valid for."""
    features, toolchain = tuning_of(target).measured_on(description)
    return Machine(target.name, features, threads, toolchain)


class Meter:
    """Builds and measures on this machine. UsageError if the target cannot be tuned."""

    #: batches that can be measured at the same time
    workers = 1

    def __init__(
        self, target: Target, threads: int, *, jobs: int | None = None, timeout: float = 20.0, seconds: float = 0.3
    ) -> None:
        self.tuning = tuning_of(target)
        self.target, self.threads, self.jobs, self.timeout, self.seconds = target, threads, jobs, timeout, seconds
        self.description = target.describe()
        self.machine = machine_of(target, self.description, threads)
        self.runner = RunnerProcess()
        self._defaults: dict[tuple[Subject, str], Built] = {}

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.runner.close()

    # ---- building ----

    def build(self, candidates: Mapping[str, NestCandidate]) -> dict[str, Built | str]:
        """Objects by symbol, or why there is none."""
        nests = {s: c.nest for s, c in candidates.items()}
        return self.tuning.build(nests, self.description, workers=self.jobs, timeout=max(60.0, self.timeout))

    def default(self, subject: Subject, candidate: NestCandidate) -> Built:
        """The default schedule, built once a task; CompileError if it does not build."""
        key = (subject, candidate.digest)
        if key not in self._defaults:
            (built,) = self.tuning.build({"base": candidate.nest}, self.description, workers=1, timeout=600.0).values()
            if isinstance(built, str):
                raise CompileError(f"the default schedule does not compile: {built}", stage="tune")
            self._defaults = {key: built}
        return self._defaults[key]

    # ---- measuring ----

    def measure(self, subject: Subject, default: NestCandidate, candidates: Sequence[C]) -> list[Outcome[C]]:
        """Measure candidates against the default schedule; one that crashes or hangs is found and does not harm the
        others."""
        base, of = self.default(subject, default), {f"c{i}": c for i, c in enumerate(candidates)}
        built = self.build(of)
        outcomes = {s: Outcome(of[s], "build", why=b) for s, b in built.items() if isinstance(b, str)}
        outcomes.update(self._run(subject, base, {s: b for s, b in built.items() if not isinstance(b, str)}, of))
        return [outcomes[s] for s in of]

    def _run(
        self, subject: Subject, base: Built, variants: dict[str, Built], of: dict[str, C]
    ) -> dict[str, Outcome[C]]:
        if not variants:
            return {}
        request = Request(subject, {"base": base, **variants}, self.seconds)
        try:
            answer = self.runner.ask(request, self.timeout)
            if answer.failed:
                raise Died("crash", answer.failed)
        except Died as e:
            if len(variants) == 1:
                (symbol,) = variants
                return {symbol: Outcome(of[symbol], e.status, why=e.why)}
            names = list(variants)
            halves = names[: len(names) // 2], names[len(names) // 2 :]
            return {
                s: o for half in halves for s, o in self._run(subject, base, {n: variants[n] for n in half}, of).items()
            }
        unit = answer.timings["base"].seconds[0]
        return {s: judge(of[s], answer.timings[s], unit) for s in variants}

    def contest(
        self,
        subject: Subject,
        default: NestCandidate,
        incumbent: NestCandidate,
        candidate: NestCandidate,
        bursts: int = 5,
    ) -> Contest:
        """A longer race of three with a check against the reference. Died if a process did; CompileError if one does
        not build."""
        variants = {"base": self.default(subject, default)}
        known = (default.digest, candidate.digest)
        others = {"candidate": candidate, **({"incumbent": incumbent} if incumbent.digest not in known else {})}
        for name, built in self.build(others).items():
            if isinstance(built, str):
                raise CompileError(f"a schedule does not compile: {built}", stage="tune")
            variants[name] = built
        seconds = max(self.seconds, 0.1) * bursts
        answer = self.runner.ask(
            Request(subject, variants, seconds, float("inf"), True, bursts), self.timeout + 10 * seconds
        )
        if answer.failed:
            raise Died("crash", answer.failed)
        t = answer.timings
        mine, base, old = (
            t["candidate"],
            t["base"],
            t.get("incumbent", t["base"] if incumbent.digest == default.digest else t["candidate"]),
        )
        own = max(mine.error / BETWEEN, mine.reference_error or 0.0)
        return Contest(
            tuple(a / b for a, b in zip(mine.seconds, old.seconds, strict=True)),
            tuple(a / b for a, b in zip(mine.seconds, base.seconds, strict=True)),
            min(mine.seconds), min(base.seconds), own if mine.repeatable else float("inf"), base.reference_error or 0.0,
        )  # fmt: skip


def judge(candidate: C, timing: KernelTiming, unit: float) -> Outcome[C]:
    """The outcome of a candidate that ran; `unit` is the default's time in the same program."""
    if not timing.error <= BETWEEN:
        return Outcome(
            candidate,
            "wrong",
            why=f"its results differ from the default schedule's {timing.error:.1f} times as much as allowed",
        )
    if not timing.repeatable:
        return Outcome(candidate, "unstable", why="two runs gave different results")
    seconds = float(np.median(timing.seconds))
    return Outcome(candidate, "ok", seconds, seconds / unit)


__all__ = ["Contest", "Died", "Meter", "NoRunners", "Outcome", "RunnerProcess", "STATUSES", "machine_of"]
