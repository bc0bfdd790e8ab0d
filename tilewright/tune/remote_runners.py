"""Remote measurement: a `RunnerHost` builds and measures candidates, a `RunnerPool` distributes them among hosts.

What travels is JSON data: kernels as text (loop nests, MLIR), numbers and names. It comes over the authenticated
protocol of `wire` or through actors of Ray (`ray_runners`); neither side runs code that the other sent, apart from the
kernels themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ..driver.tuning_database import Machine
from ..schedule.nest import Nest
from ..schedule.text import format_nest, parse_nest
from ..support.errors import CompileError, TilewrightError, UsageError
from ..support.options import DEFAULT_TARGET
from ..targets.base import find, recorded
from .measure import STATUSES, C, Contest, Died, Meter, NestCandidate, NoRunners, Outcome
from .runner import Subject

#: a job whose runner is lost so often is itself the reason
ATTEMPTS = 3


class Lost(Exception):
    """A runner does not answer any more."""


class Link(Protocol):
    """The connection to one runner host."""

    name: str

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer; Lost if there is none."""

    def revive(self) -> None:
        """Connect again; Lost if that fails."""

    def close(self) -> None: ...


# ---- on the machine that measures ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shipped:
    """A candidate as it was sent: its finished nest and its digest."""

    digest: str
    text: str

    @cached_property
    def nest(self) -> Nest:
        return parse_nest(self.text)


class RunnerHost:
    """Answers requests (JSON data) on the machine where it is.

    >>> RunnerHost().answer({"do": "about"})["target"]
    'cpu'
    >>> RunnerHost().answer({"do": "nonsense"})["error"]
    "there is no request 'nonsense'"
    """

    def __init__(
        self, target: str = DEFAULT_TARGET, *, jobs: int | None = None, timeout: float = 20.0, seconds: float = 0.3
    ):
        self.target, self.jobs, self.timeout, self.seconds = find(target), jobs, timeout, seconds
        self._meter: Meter | None = None

    def about(self) -> dict[str, Any]:
        """What this machine is."""
        meter = self.meter(1)
        features, toolchain = meter.tuning.measured_on(meter.description)
        description = meter.description.to_json()
        return {
            "target": self.target.name, "features": features, "toolchain": toolchain, "description": description,
        }  # fmt: skip

    def answer(self, request: Any) -> dict[str, Any]:
        """The answer to a request; what goes wrong is an answer too."""
        try:
            kind = request.get("do") if isinstance(request, dict) else request
            if kind == "about":
                return self.about()
            if kind == "measure":
                return self._measure(request)
            if kind == "contest":
                return self._contest(request)
            return {"error": f"there is no request {kind!r}"}
        except Died as e:
            return {"died": [e.status, e.why]}
        except TilewrightError as e:
            return {"error": e.message}
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            return {"error": f"the request is damaged: {type(e).__name__}: {e}"}

    def meter(self, threads: int) -> Meter:
        if self._meter is None or self._meter.threads != threads:
            self.close()
            self._meter = Meter(self.target, threads, jobs=self.jobs, timeout=self.timeout, seconds=self.seconds)
        return self._meter

    def _measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        subject = _subject(request["subject"])
        default, *candidates = [Shipped(*map(str, c)) for c in (request["default"], *request["candidates"])]
        outcomes = self.meter(subject.threads).measure(subject, default, candidates)
        return {"outcomes": [[o.status, o.seconds, o.ratio, o.why] for o in outcomes]}

    def _contest(self, request: Mapping[str, Any]) -> dict[str, Any]:
        subject = _subject(request["subject"])
        default, incumbent, candidate = (Shipped(*map(str, request[n])) for n in ("default", "incumbent", "candidate"))
        found = self.meter(subject.threads).contest(subject, default, incumbent, candidate)
        return {"contest": dataclasses.astuple(found)}

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()
        self._meter = None


def _subject(data: dict[str, Any]) -> Subject:
    params = tuple((str(n), tuple(map(int, shape)), str(dtype)) for n, shape, dtype in data["params"])
    return Subject(
        params,
        tuple(map(str, data["outputs"])),
        frozenset(map(str, data["constants"])),
        str(data["target"]),
        int(data["threads"]),
        None if data["meaning"] is None else str(data["meaning"]),
        int(data["seed"]),
    )


# ---- on the machine that searches ----------------------------------------------------------------------------------


class RunnerPool:
    """Runner hosts of one kind; to the tuner what `Meter` is. A request whose runner is lost goes to another one.

    UsageError if there is no host or they are of different kinds.
    """

    def __init__(self, links: Sequence[Link], threads: int) -> None:
        if not links:
            raise UsageError("there is no runner", stage="tune")
        self.links, self.workers = list(links), len(links)
        self.lost: list[str] = []
        self._free: queue.Queue[Link | None] = queue.Queue()
        self._lock, self.closed = threading.Lock(), False
        about = {link.name: _checked(link.ask({"do": "about"})) for link in links}
        kinds = {n: (a["target"], a["features"], a["toolchain"]) for n, a in about.items()}
        first, kind = next(iter(kinds.items()))
        for name, other in kinds.items():
            if other != kind:
                self.close()
                raise UsageError(
                    f"runners {first} and {name} are of different kinds: {kind} and {other}",
                    stage="tune",
                    hint="results hold for one kind of machine: tune for each alone",
                )
        self.target = recorded(kind[0])
        self.description = type(self.target.describe()).from_json(about[first]["description"])
        self.machine = Machine(kind[0], kind[1], threads, kind[2])
        for link in links:
            self._free.put(link)

    def measure(self, subject: Subject, default: NestCandidate, candidates: Sequence[C]) -> list[Outcome[C]]:
        """As `Meter.measure`."""
        request = {
            "do": "measure", "subject": _data(subject), "default": _ship(default),
            "candidates": [_ship(c) for c in candidates],
        }  # fmt: skip
        try:
            found = self._ask(request)["outcomes"]
        except Died as e:
            return [Outcome(c, e.status, why=e.why) for c in candidates]
        if len(found) != len(candidates) or any(o[0] not in STATUSES for o in found):
            raise UsageError("a runner sent an answer that does not fit the request", stage="tune")
        return [Outcome(c, *o) for c, o in zip(candidates, found, strict=True)]

    def contest(
        self, subject: Subject, default: NestCandidate, incumbent: NestCandidate, candidate: NestCandidate
    ) -> Contest:
        """As `Meter.contest`."""
        three = {"default": default, "incumbent": incumbent, "candidate": candidate}
        request = {"do": "contest", "subject": _data(subject), **{n: _ship(c) for n, c in three.items()}}
        versus, gains, *rest = self._ask(request)["contest"]
        return Contest(tuple(versus), tuple(gains), *rest)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for _ in range(ATTEMPTS):
            if self.closed:
                raise NoRunners("the connections to the runners are closed", stage="tune")
            link = self._free.get()
            if link is None:  # for the next one who waits
                self._free.put(None)
                raise NoRunners(f"all runners are lost: {'; '.join(self.lost) or 'closed'}", stage="tune")
            try:
                answer = link.ask(request)
            except Lost as e:
                self._revive(link, e)
                continue
            self._free.put(link)
            return _checked(answer)
        raise Died("crash", f"{ATTEMPTS} runners were lost with it: {self.lost[-1]}")

    def _revive(self, link: Link, why: Lost) -> None:
        self.lost.append(f"{link.name}: {why}")
        try:
            if self.closed:
                raise Lost("the search has ended")
            link.revive()
        except Lost as e:
            self.lost[-1] += f"; then {e}"
            with self._lock:
                self.workers -= 1
                if not self.workers:
                    self._free.put(None)
            return
        self._free.put(link)

    def close(self) -> None:
        self.closed = True
        for link in self.links:
            with contextlib.suppress(Exception):
                link.close()


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "died" in answer:
        raise Died(*map(str, answer["died"]))
    if "error" in answer:
        raise CompileError(str(answer["error"]), stage="tune")
    return answer


def _ship(candidate: NestCandidate) -> list[str]:
    return [candidate.digest, format_nest(candidate.nest)]


def _data(subject: Subject) -> dict[str, Any]:
    return {**dataclasses.asdict(subject), "constants": sorted(subject.constants)}


def connect(
    runners: Sequence[str], threads: int, *, target: str = DEFAULT_TARGET, key: bytes | None = None
) -> RunnerPool:
    """The pool of some runners: ``HOST:PORT`` of `tilewright runner`, or ``ray://ADDRESS`` (see `ray_runners`).

    UsageError for an address that cannot be read or reached. `key` authenticates HOST:PORT (None:
    TILEWRIGHT_RUNNER_KEY).
    """
    links: list[Link] = []
    try:
        for text in runners:
            if text.startswith("ray://"):
                from .ray_runners import ray_links

                links += ray_links(text, target)
            else:
                from .wire import connect_to

                links.append(connect_to(text, key))
        return RunnerPool(links, threads)
    except BaseException:
        for link in links:
            with contextlib.suppress(Exception):
                link.close()
        raise


__all__ = ["RunnerPool", "Link", "Lost", "RunnerHost", "connect"]
