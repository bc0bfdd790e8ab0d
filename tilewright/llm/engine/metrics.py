"""Counters and histograms of an engine."""

from __future__ import annotations

import bisect
import threading
from typing import Any

#: upper bounds: seconds, and tokens of a step
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Histogram:
    """Counts of values at most each bound, the rest last."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def value(self) -> dict[str, Any]:
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum, "count": sum(self.counts)}


class Metrics:
    """Counters are added to by any thread, histograms by the engine's; readers get a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counters: dict[str, float] = dict.fromkeys(
            (
                *("requests", "requests_finished", "requests_cancelled", "requests_failed", "requests_refused"),
                *("prompt_tokens", "prompt_tokens_cached", "generated_tokens", "steps", "step_tokens", "preemptions"),
                *("draft_tokens", "draft_tokens_accepted"),
            ),
            0,
        )
        self.histograms = {
            "time_to_first_token_seconds": Histogram(SECONDS),
            "inter_token_seconds": Histogram(SECONDS),
            "queue_seconds": Histogram(SECONDS),
            "request_seconds": Histogram(SECONDS),
            "step_seconds": Histogram(SECONDS),
            "overhead_seconds": Histogram(SECONDS),
            "tokens_of_a_step": Histogram(TOKENS),
        }

    def add(self, name: str, by: float = 1) -> None:
        with self._lock:
            self.counters[name] += by

    def value(self) -> dict[str, Any]:
        return {**self.counters, **{k: h.value() for k, h in self.histograms.items()}}


__all__ = ["Histogram", "Metrics"]
