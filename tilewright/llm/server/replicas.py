"""Copies of the server on a Ray cluster, behind one address, by Ray Serve."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...support.errors import TilewrightError, UsageError

APPLICATION = "tilewright"


def serve_replicas(
    settings: Mapping[str, Any], count: int, host: str, port: int, limit: float, ready: Callable[[], object]
) -> None:
    """Serve until SIGTERM or Ctrl-C: `count` copies of what `loading.load_app` makes of the settings, on the cluster at
    RAY_ADDRESS, or on one that is started here. `ready` is called when they answer. Every node must have this package,
    and the models at the same paths; a copy has its share of the cluster's processors. UsageError without Ray, or for
    a cluster that is not there."""
    try:
        import ray
        from ray import serve
    except ImportError:
        raise UsageError("--replicas needs Ray Serve", stage="serve", hint="pip install 'tilewright[ray]'") from None
    if port == 0:
        raise UsageError("--replicas needs a --port: Ray Serve takes no free one", stage="serve")
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS"), logging_level="warning", log_to_driver=False)
    except ConnectionError as error:
        raise UsageError(f"the Ray cluster does not answer: {error}", stage="serve", hint="see RAY_ADDRESS") from None
    options = dict(settings["options"])
    with contextlib.suppress(ValueError):
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
        raise UsageError("Ray Serve runs on this cluster already", stage="serve", hint="end it: serve shutdown")
    threads = options["threads"] or max(int(ray.cluster_resources().get("CPU", 1)) // count, 1)
    others, _, *batches = settings["others"]
    copied = {**settings, "options": {**options, "threads": threads}, "others": (others, threads, *batches)}
    deployment = serve.deployment(
        name=APPLICATION,
        num_replicas=count,
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=options["queue"] + options["sequences"],  # the engine says 429, not a queue before it
        graceful_shutdown_timeout_s=limit,
    )(serve.ingress(_builder(copied))())
    stopped = threading.Event()
    handlers = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
        serve.run(deployment.bind(), name=APPLICATION, route_prefix="/")
        ready()
        while not stopped.wait(1.0):
            pass
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise TilewrightError(f"Ray Serve could not start the copies: {error}"[:500], stage="serve") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        serve.shutdown()
        ray.shutdown()


def _builder(settings: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes the application in each copy."""

    def build() -> Any:
        from tilewright.llm.server.loading import load_app

        return load_app(settings)[0]

    return build


__all__ = ["serve_replicas"]
