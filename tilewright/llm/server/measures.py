"""What ``/metrics`` tells, in Prometheus' text: of requests here, of the engine, of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from .batching import Batcher
from .language import Language

#: numbers of an engine that go down, too
GAUGES = {"running", "waiting", "pages", "pages_used", "pages_cached"}
SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Measures:
    """A registry of its own: several servers may be in one process."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, language: Language | None, models: Mapping[str, Batcher]) -> None:
        self._language, self._models = language, models
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "tilewright_http_requests", "Requests answered", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "tilewright_http_seconds", "Seconds of a request", ["route"], buckets=SECONDS, registry=self._registry
        )
        self._registry.register(self)  # type: ignore[arg-type]

    def request(self, route: str, status: int, seconds: float) -> None:
        """One request was answered, or its client has gone (499)."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry: what the engine and the batchers count themselves."""
        if self._language is not None:
            for name, value in self._language.engine.metrics().items():
                yield _metric(f"tilewright_engine_{name}", value, name in GAUGES)
        for what, about in (("requests", "Requests"), ("batches", "Runs of the model"), ("rows", "Rows that were run")):
            family = CounterMetricFamily(f"tilewright_model_{what}", about, labels=["model"])
            for name, batcher in self._models.items():
                family.add_metric([name], getattr(batcher, what))
            yield family


def _metric(name: str, value: Any, gauge: bool) -> Metric:
    about = name.removeprefix("tilewright_engine_").replace("_", " ")
    if not isinstance(value, Mapping):
        return GaugeMetricFamily(name, about, value=value) if gauge else CounterMetricFamily(name, about, value=value)
    total, buckets = 0, []
    for bound, count in zip([*map(str, value["bounds"]), "+Inf"], value["counts"], strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, about, buckets=buckets, sum_value=value["sum"])


__all__ = ["Measures"]
