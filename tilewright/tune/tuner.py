"""The tuner: takes the kernels of a model in turn, searches each one's space, and writes what it finds to the database
at once.

    report = tw.tune("model.onnx", minutes=15)
    model = tw.compile("model.onnx")          # uses the results

Stopping it at any moment loses nothing that was measured; starting it again continues.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from ..driver.tuning_database import Database, Measurement, Result
from ..schedule.trace import format_trace
from ..support.dims import open_dims
from ..support.errors import CheckError, TilewrightError, UnsupportedError, UsageError
from ..support.options import DEFAULT_TARGET, Options
from ..targets.base import find
from .cost import CostModel, require
from .measure import Died, Meter, NoRunners, Outcome, machine_of
from .pretrained import load
from .quiet import alone, doubt, least_seconds, warning
from .search import Search
from .space import Candidate, Space
from .tasks import Task, TaskProgress, extract_tasks, next_task
from .tune_report import TaskReport, TuneReport

if TYPE_CHECKING:
    from .chip_measure import PlanMeter
    from .remote_runners import RunnerPool

log = logging.getLogger("tilewright")
#: candidates measured together
BATCH = 8
#: a candidate must beat the incumbent and the default by this much, in the median of the bursts, to take its place
MARGIN = 0.98
#: a model's budget is spent in turns: so much of each on kernels alone, the rest on races in the model
TURNS, ALONE = 3, 0.6
#: what comes before: algorithms to compute convolutions, in so much of the time, or as that part of the trials
ALGORITHM_SHARE = 0.2


Watch = Callable[
    [TuneReport, "int | None", float], None
]  # the report so far, the task at work, the fraction of the budget that is used


def tune(
    source: object,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    target: str = DEFAULT_TARGET,
    inputs: Mapping[str, object] | None = None,
    states: Mapping[str, str] | None = None,
    database: Database | None = None,
    seed: int = 0,
    watch: Watch | None = None,
    runners: Sequence[str] = (),
    key: str | None = None,
    verify: bool = True,
    pretrained: bool = True,
) -> TuneReport:
    """Search better schedules for the kernels of a model, and keep them in the tuning database.

    `source` is what `tilewright.compile` takes. The search ends after `trials` measured candidates or after `minutes`,
    whichever is first; at least one must be given. `threads` is the number of threads the model will run with; results
    hold for that number. `states` are those that the model will have: it is measured with them. Ctrl-C ends it early
    with `interrupted` set. UsageError without a budget or without the package lightgbm.

    `runners` measure elsewhere: addresses of `tilewright runner` (``HOST:PORT``, with `key` or TILEWRIGHT_RUNNER_KEY)
    or ``ray://ADDRESS``; results hold for their kind of machine. Without them, `verify` measures the tuned model
    against the untuned one at the end, and withdraws results that make it slower.

    `pretrained` lets the shipped cost model lead where there are few measurements yet (`report.guide` has it).
    UsageError if its file is damaged or made for another version of Tilewright.

        report = tw.tune("model.onnx", minutes=5, threads=2)
        print(report)
    """
    if trials is None and minutes is None:
        raise UsageError("tuning needs a budget", stage="tune", hint="give trials=200 or minutes=15")
    for name, value in (("trials", trials), ("minutes", minutes)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise UsageError(f"{name} must be positive, not {value!r}", stage="tune")
    if dims := open_dims(inputs):
        raise UnsupportedError(
            f"tuning measures programs of known sizes, and {', '.join(map(str, dims))} is open",
            stage="tune",
            hint="tune at a size in the range: inputs={name: (1, 128)}",
        )
    given: dict[str, Any] = {
        "trials": trials,
        "minutes": minutes,
        "inputs": inputs,
        "database": database,
        "runners": runners,
    }
    given["states"] = states
    given |= {"key": key, "verify": verify, "pretrained": pretrained, "seed": seed, "watch": watch}
    if (chip := find(target).coprocessor) is not None and chip.tuned_on():
        return _tune_chip(source, threads, target, **given)
    require()  # before anything is waited for
    if runners:  # they measure, not this machine
        return _tune(source, threads, target, **given)
    with alone(lambda what: log.warning("%s", what)):
        noise = warning()
        if noise:
            log.warning("%s", noise)
        report = _tune(source, threads, target, **given)
    report.noise = noise
    return report


def _tune(
    source: object, threads: int | None, target: str, *, trials: int | None, minutes: float | None, inputs: Any,
    states: Mapping[str, str] | None, database: Database | None, runners: Sequence[str], key: str | None, verify: bool,
    pretrained: bool, seed: int, watch: Watch | None,
) -> TuneReport:  # fmt: skip
    """`tune` once this process is the one that measures; the time before that is not of the budget."""
    begin = time.monotonic()
    deadline = begin + 60 * minutes if minutes is not None else None
    guide = load(target) if pretrained else None
    model = CostModel(seed, pretrained=guide)
    chosen = Options.of(target=target, threads=threads, inputs=inputs, states=states)
    options = {"target": target, "threads": chosen.thread_count, "inputs": inputs, "states": states}
    kept = database or Database()
    if runners:
        from .remote_runners import connect
        from .wire import key_from

        secret = key_from(key) if key is not None else None
        pool: Any = connect(runners, chosen.thread_count, target=target, key=secret)
        found = extract_tasks(source, **options, tuned=False)
        tuner = Tuner(found, chosen, model, kept, seed, watch, pool)
        tuner.report.guide = guide
        return tuner.run(trials, deadline)
    algorithms = _algorithms(source, options, kept, watch, trials, begin, deadline) if verify else TuneReport([])
    algorithms.guide = guide
    if algorithms.interrupted:
        return algorithms
    options["algorithms"] = {str(w.layer): w.way for w in algorithms.algorithms}
    tuner = Tuner(extract_tasks(source, **options, tuned=False), chosen, model, kept, seed, watch)
    tuner.report.algorithms, tuner.report.guide = algorithms.algorithms, guide
    report = _in_turns(tuner, source, options, trials, deadline) if verify else tuner.run(trials, deadline)
    if verify and not report.interrupted and (report.algorithms or any(t.ratio < 1 for t in report.tasks)):
        from .recheck import recheck

        report.recheck = recheck(source, options, kept, tuner.machine)
        for t, task in zip(report.tasks, tuner.tasks, strict=True):
            if task.kernel.name in report.recheck.withdrawn:
                t.ratio, t.decisions = 1.0, {}
    return report


def _tune_chip(
    source: object, threads: int | None, target: str, *, trials: int | None, minutes: float | None, inputs: Any,
    states: Mapping[str, str] | None, database: Database | None, runners: Sequence[str], seed: int,
    watch: Watch | None, verify: bool, **_: object,
) -> TuneReport:  # fmt: skip
    """`tune` for a chip: whatever else this machine does, simulated cycles are the same."""
    from .chip_tuner import tune_chip

    if runners:
        raise UsageError(
            "a chip is simulated, and runners measure on machines of their own",
            stage="tune",
            hint="leave out runners; TILEWRIGHT_JOBS says how many processes simulate",
        )
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    options = Options.of(target=target, threads=threads, inputs=inputs, states=states)
    kept = database or Database()
    return tune_chip(
        source, options, trials=trials, deadline=deadline, database=kept, seed=seed, watch=watch, verify=verify
    )


def _algorithms(
    source: object, options: dict[str, Any], kept: Database, watch: Watch | None, trials: int | None, begin: float,
    deadline: float | None,
) -> TuneReport:  # fmt: skip
    """The convolutions that are faster another way than estimated; see `algorithm_choice`."""
    from .algorithm_choice import AlgorithmRaces

    report = TuneReport([])
    until = None if deadline is None else begin + ALGORITHM_SHARE * (deadline - begin)

    def tell(what: str) -> None:
        report.doing, report.seconds = what, time.monotonic() - begin
        if watch is not None:
            watch(report, None, 0.0 if deadline is None else report.seconds / (deadline - begin))

    target = find(options["target"])
    machine = machine_of(target, target.describe(), options["threads"])
    races = AlgorithmRaces(source, options, kept, machine, tell)
    try:
        report.algorithms = races.run(None if trials is None else int(ALGORITHM_SHARE * trials), until)
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def _in_turns(
    tuner: Tuner, source: object, options: dict[str, Any], trials: int | None, deadline: float | None
) -> TuneReport:
    """Search kernel by kernel and race what was found in the model, by turns: each learns from the other."""
    from .measure_in_model import InModel

    races, begin, left = InModel(source, options, tuner), time.monotonic(), trials
    report = tuner.report
    watch = tuner.watch
    for turn in range(TURNS):
        started = time.monotonic()
        tuner.watch = partial(_part, watch, turn) if watch is not None else None
        turn_end = None if deadline is None else begin + (deadline - begin) * (turn + 1) / TURNS
        alone_end = None if turn_end is None else started + (turn_end - started) * ALONE
        share = None if left is None else -(-left // (TURNS - turn))
        report = tuner.run(share, alone_end)
        left = None if left is None else left - (share or 0)
        own_end = time.monotonic() + (time.monotonic() - started) * (1 - ALONE) / ALONE
        try:
            if not report.interrupted:
                races.run(own_end if turn_end is None else min(own_end, turn_end) if trials else turn_end)
        except KeyboardInterrupt:
            report.interrupted = True
        if report.interrupted or left == 0:
            break
    report.seconds, tuner.watch = time.monotonic() - begin, watch
    return report


def _part(watch: Watch, turn: int, report: TuneReport, at: int | None, used: float) -> None:
    """Show what a part of the budget has been used of as a part of the whole."""
    watch(report, at, (turn + ALONE * used) / TURNS)


class Tuner:
    """Tunes a list of tasks; `run` may be called again and goes on. With ``model=None`` the search is random."""

    def __init__(
        self,
        tasks: Sequence[Task],
        options: Options,
        model: CostModel | None,
        database: Database,
        seed: int = 0,
        watch: Watch | None = None,
        meter: Meter | RunnerPool | PlanMeter | None = None,
    ) -> None:
        self.options, self.model, self.database, self.watch = options, model, database, watch
        self.target = find(options.target)
        self.meter: Any = meter or Meter(self.target, options.thread_count, jobs=options.job_count)
        self.machine = self.meter.machine
        self.tasks = list(tasks)
        self.searches = [self.search(t, seed + i) for i, t in enumerate(self.tasks)]
        self.numbers = [database.task(t.key, t.label, self.machine) for t in self.tasks]
        self.progress = [
            TaskProgress(t.seconds or 1.0, s.space.count()) for t, s in zip(self.tasks, self.searches, strict=True)
        ]
        self.incumbents: list[Candidate] = [s.space.default for s in self.searches]
        entries = [
            TaskReport(t.label, t.calls, t.seconds, p.space, layers=t.names)
            for t, p in zip(self.tasks, self.progress, strict=True)
        ]
        self.report = TuneReport(entries)
        self.others: list[tuple[tuple[float, ...], float]] = []
        for i in range(len(self.tasks)):
            self._resume(i)

    def search(self, task: Task, seed: int) -> Search:
        return Search(Space(task.kernel, self.meter.description), self.model, seed)

    def _resume(self, i: int) -> None:
        """Take up what the database has of a task, and the nearest kernels' results as first candidates."""
        task, search = self.tasks[i], self.searches[i]
        found = self.database.measurements(self.numbers[i])
        search.resume(found)
        self.progress[i].trials = self.report.tasks[i].trials = len(found)
        for near in self.database.nearest(task.key, self.machine):
            candidate = search.space.realize(near.decisions)
            if candidate is not None:
                search.hints.append(candidate)
        old = self.database.result(task.key.kernel, self.machine)
        candidate = search.space.realize(old.decisions) if old is not None else None
        if old is not None and candidate is not None and candidate.digest == old.digest:
            self.incumbents[i] = candidate
            self._improved(i, old.seconds / old.baseline, candidate)
        if search.space.count() <= 1:
            self.progress[i].finished = True

    def _improved(self, i: int, ratio: float, candidate: Candidate) -> None:
        self.progress[i].best = min(self.progress[i].best, ratio)
        self.report.tasks[i].ratio, self.report.tasks[i].decisions = ratio, dict(candidate.decisions)

    # ---- the loop ----

    def run(self, trials: int | None, deadline: float | None = None) -> TuneReport:
        """Search until `trials` candidates were measured or the (monotonic) deadline; see `tune`."""
        begin, done = time.monotonic(), 0
        if self.model is not None:
            self.others = self.database.samples(self.machine)
        running: dict[Future[list[Outcome[Candidate]] | TilewrightError], tuple[int, list[Candidate]]] = {}
        pool = ThreadPoolExecutor(self.meter.workers)
        try:
            while True:
                while len(running) < self.meter.workers and (trials is None or done < trials):
                    if deadline is not None and time.monotonic() >= deadline:
                        break
                    at = next_task(self.progress, Counter(i for i, _ in running.values()))
                    if at is None:
                        break
                    self._tell(at, done, trials, begin, deadline)
                    batch = self.propose(at, min(BATCH, trials - done) if trials is not None else BATCH)
                    done += len(batch)
                    if batch:
                        running[pool.submit(self._measure, at, batch)] = at, batch
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    at, batch = running.pop(future)
                    self._learn(at, future.result())
                    self.report.seconds = time.monotonic() - begin
        except KeyboardInterrupt:
            self.report.interrupted = True
        finally:
            self.meter.close()
            pool.shutdown(cancel_futures=True)
            self.meter.close()  # what a batch that was being built has started since
        self.report.seconds = time.monotonic() - begin
        self._tell(None, done, trials, begin, deadline)
        return self.report

    def _tell(self, at: int | None, done: int, trials: int | None, begin: float, deadline: float | None) -> None:
        if self.watch is not None:
            used = [done / trials] if trials else []
            if deadline is not None and deadline > begin:
                used.append((time.monotonic() - begin) / (deadline - begin))
            self.watch(self.report, at, min(1.0, max(used, default=0.0)))

    def propose(self, i: int, count: int) -> list[Candidate]:
        """The next candidates of a task; none if there are no more."""
        search = self.searches[i]
        if self.model is not None and (len(search.samples) >= 4 or not self.model.trained):
            self.model.fit(search.samples, self.others)
        batch = search.propose(count)
        self.progress[i].finished = not batch
        return batch

    def _measure(self, i: int, batch: list[Candidate]) -> list[Outcome[Candidate]] | TilewrightError:
        """The outcomes of a batch; the error if not even the default schedule can be built."""
        try:
            return self.meter.measure(self.subject(i), self.searches[i].space.default, batch)
        except NoRunners:
            raise
        except TilewrightError as e:
            return e

    def subject(self, i: int) -> Any:
        """What the meter measures."""
        return self.tasks[i].subject(self.target.name, self.options.thread_count)

    def _learn(self, i: int, outcomes: list[Outcome[Candidate]] | TilewrightError) -> None:
        """Keep what was measured, and see whether there is a new winner."""
        search, progress, entry = self.searches[i], self.progress[i], self.report.tasks[i]
        if isinstance(outcomes, TilewrightError):  # there is nothing to compare with
            progress.finished, entry.problem = True, outcomes.message
            return
        self.database.add(self.numbers[i], [self._measurement(search, o) for o in outcomes])
        for o in outcomes:
            search.add(o.candidate, o.status, o.ratio)
            self.report.outcomes[o.status] += 1
        self.report.trials += len(outcomes)
        entry.trials += len(outcomes)
        self._promote(i, self.subject(i))
        progress.after(len(outcomes), entry.ratio)

    @staticmethod
    def _measurement(search: Search, o: Outcome[Candidate]) -> Measurement:
        return Measurement(
            o.candidate.decisions, o.candidate.digest, o.status, o.seconds, o.ratio, search.features(o.candidate)
        )

    # ---- winners ----

    def settle(self, i: int, ratio: float, candidate: Candidate) -> None:
        """Make a candidate the result of a task, whatever won before."""
        self.incumbents[i] = candidate
        self.progress[i].best = ratio
        self.report.tasks[i].ratio, self.report.tasks[i].decisions = ratio, dict(candidate.decisions)

    def _promote(self, i: int, subject: Any) -> None:
        """Let the fastest candidate race against the incumbent; only one that wins clearly, and is right, becomes the
        result."""
        search = self.searches[i]
        for _ in range(3):
            ratio, candidate = search.best
            entry = self.report.tasks[i]
            if candidate is self.incumbents[i] or candidate is search.space.default or ratio > MARGIN * entry.ratio:
                return
            try:
                race = self.meter.contest(subject, search.space.default, self.incumbents[i], candidate)
            except NoRunners:
                raise
            except (Died, TilewrightError) as e:
                self.reject(i, candidate, getattr(e, "status", "build"))
                continue
            if race.default_error > 100:
                raise CheckError(
                    f"the default schedule of kernel {self.tasks[i].kernel.name} is wrong: it differs "
                    f"{race.default_error:.0f} times as much "
                    "as allowed from what its IR means",
                    stage="tune",
                    hint="this is a bug in Tilewright: tilewright compile --verify shows it",
                )
            if race.error > max(1.0, 1.5 * race.default_error):
                self.reject(i, candidate, "wrong")
                continue
            versus, gain = median(race.against_incumbent), median(race.against_default)
            if self.doubtful(i, race.default_seconds * gain, race.default_seconds):
                self.reject(i, candidate, "doubtful")
                continue
            agree = sum(r < 1.0 for r in race.against_default) >= 0.8 * len(race.against_default)
            if versus < MARGIN and gain < MARGIN and agree:
                self.incumbents[i] = candidate
                self._improved(i, gain, candidate)
                trace = format_trace(candidate.schedule)
                result = Result(
                    candidate.decisions, candidate.digest, trace, race.default_seconds * gain, race.default_seconds
                )
                self.database.record(self.numbers[i], result)
            self.database.correct(self.numbers[i], candidate.digest, gain)
            search.correct(candidate, gain)
            if versus < MARGIN:
                return

    def doubtful(self, i: int, seconds: float, baseline: float) -> str:
        """Why the time of a candidate cannot be right, empty if it can (see `quiet`)."""
        task = self.tasks[i]
        least = least_seconds(task.kernel, self.meter.description, self.options.thread_count)
        here = isinstance(self.meter, Meter)  # runners are other machines than the one that ran the model
        return doubt(seconds, baseline, least, task.seconds / max(task.calls, 1) if here else 0.0)

    def reject(self, i: int, candidate: Candidate, status: str) -> None:
        self.searches[i].drop(candidate)
        self.report.outcomes[status] += 1


__all__ = ["TaskReport", "TuneReport", "Tuner", "machine_of", "tune"]
