"""Requests for one model, run together where its signature leaves the batch open."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...support.dims import Dim
from ...support.errors import InputError, TilewrightError
from .body import Problem


@dataclass(frozen=True)
class Port:
    """An input or output: a number, a name or None for each dimension; shape None where the rank is open."""

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str
    plain: bool


def ports(infos: Sequence[Any]) -> list[Port]:
    """The inputs or outputs of an executable. A dimension that is computed from others has no name (None)."""
    found = []
    for info in infos:
        shape = info.shape if info.shape is None else tuple(_dimension(d) for d in info.shape)
        found.append(Port(info.name, shape, info.dtype, getattr(info, "kind", "tensor") == "tensor"))
    return found


def _dimension(d: Any) -> int | str | None:
    if d is None or isinstance(d, int):
        return d
    return str(d) if str(d).isidentifier() else None


def open_batch(executable: Any) -> Dim | None:
    """The dimension along which calls can be joined: the first one of every input and output, and of no other place.
    None for a model without one, with states, that draws random numbers, or that is several programs."""
    programs = getattr(executable, "programs", [executable])
    if len(programs) != 1 or programs[0].package.program.states:
        return None
    if len(programs[0].arguments) != len(executable.inputs):
        return None
    shapes = [p.shape for p in (*ports(executable.inputs), *ports(executable.outputs))]
    first = {s[0] if s else None for s in shapes}
    later = {d for s in shapes if s for d in s[1:]}
    name = first.pop() if len(first) == 1 else None
    if not isinstance(name, str) or name in later or None in later:
        return None
    return next((d for d in programs[0].sizes.dims if d.name == name), None)


@dataclass
class _Waiting:
    arrays: dict[str, np.ndarray]
    rows: int
    key: Any
    since: float
    done: asyncio.Future[list[np.ndarray]]


class Batcher:
    """Runs a model in a thread of its own. What arrives while it runs is run together next; a batch that is smaller
    than `most` waits up to `delay` seconds for more. Requests whose other sizes differ are not joined.

    Counts: requests, batches (runs), rows.
    """

    def __init__(self, executable: Any, most: int = 32, delay: float = 0.002, queue: int = 256) -> None:
        self.executable, self.delay, self.queue = executable, delay, queue
        self.inputs, self.outputs = ports(executable.inputs), ports(executable.outputs)
        self.batch = open_batch(executable) if most > 1 else None
        self.most = most if self.batch is None else min(most, self.batch.high)
        self.requests = self.batches = self.rows = 0
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "tilewright-model")

    async def run(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs for these inputs; a Problem for inputs that do not fit, and when too many requests wait."""
        if len(self._waiting) >= self.queue:
            raise Problem(429, f"{self.queue} requests wait already", code="queue_full", retry=1)
        self.requests += 1
        loop = asyncio.get_running_loop()
        key: Any = object()
        rows = 1
        if self.batch is not None:
            key, rows = tuple((n, a.shape[1:]) for n, a in sorted(arrays.items())), _rows(arrays, self.batch)
        mine = _Waiting(dict(arrays), rows, key, loop.time(), loop.create_future())
        self._waiting.append(mine)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        return await mine.done

    def close(self) -> None:
        """No more runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if self.batch is not None:
                left = self._waiting[0].since + self.delay - loop.time()
                if left > 0 and sum(w.rows for w in self._waiting) < self.most:
                    await asyncio.sleep(min(left, self.delay / 4))
                    continue
            chosen = self._take()
            if not chosen:
                continue
            try:
                results = await loop.run_in_executor(self._thread, self._run, [w.arrays for w in chosen])
            except Exception as error:  # nobody may wait for ever
                results = [error] * len(chosen)
            for w, result in zip(chosen, results, strict=True):
                if w.done.done():
                    continue
                if isinstance(result, Exception):
                    w.done.set_exception(_as_problem(result))
                else:
                    w.done.set_result(result)

    def _take(self) -> list[_Waiting]:
        """The oldest request, and those that fit to it; those whose client has gone are left out."""
        chosen: list[_Waiting] = []
        rest: deque[_Waiting] = deque()
        rows = 0
        while self._waiting:
            w = self._waiting.popleft()
            if w.done.done():
                continue
            if not chosen or (w.key == chosen[0].key and rows + w.rows <= self.most):
                chosen.append(w)
                rows += w.rows
            else:
                rest.append(w)
        self._waiting = rest
        return chosen

    def _run(self, requests: Sequence[dict[str, np.ndarray]]) -> list[list[np.ndarray] | Exception]:
        """One run for several requests: the outputs of each, or what is wrong with it. Where a run fails (an index out
        of range), those that it was for run alone."""
        counts = [next(iter(r.values())).shape[0] if self.batch is not None else 1 for r in requests]
        joined = requests[0]
        if len(requests) > 1:
            joined = {name: np.concatenate([r[name] for r in requests]) for name in joined}
        self.batches += 1
        self.rows += sum(counts)
        try:
            results = self.executable(joined)
        except Exception as error:
            return [error] if len(requests) == 1 else [self._run([r])[0] for r in requests]
        if len(requests) == 1:
            return [results]
        return [[r[e - c : e] for r in results] for c, e in zip(counts, np.cumsum(counts), strict=True)]


def _rows(arrays: Mapping[str, np.ndarray], batch: Dim) -> int:
    """The size of the open dimension in these inputs; a Problem for one that the model does not take."""
    sizes = {a.shape[0] for a in arrays.values()}
    rows = next(iter(sizes))
    if len(sizes) > 1 or not batch.low <= rows <= batch.high or rows % batch.divisor:
        raise Problem(400, f"the first dimension of every input must be the same size of {batch}, not {sorted(sizes)}")
    return rows


def _as_problem(error: Exception) -> Exception:
    if isinstance(error, InputError):
        return Problem(400, error.message)
    if isinstance(error, TilewrightError):
        return Problem(500, error.message)
    return error


__all__ = ["Batcher", "Port", "open_batch", "ports"]
