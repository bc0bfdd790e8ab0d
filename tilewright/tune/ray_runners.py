"""Runners on the machines of a Ray cluster: one actor on each, which builds and measures what it is sent.

    ray://auto                       the cluster that this machine is part of (or RAY_ADDRESS)
    ray://HOST:10001                 a cluster reached through Ray's client
    ray://auto?resource=board&workers=4

`resource` is a custom resource of Ray that marks machines of one kind; without it all machines with a free core are
used. Every machine needs Tilewright. Needs the extra ``tilewright[ray]``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from ..support.errors import UsageError
from ..support.options import DEFAULT_TARGET
from .remote_runners import Lost

if TYPE_CHECKING:
    from types import ModuleType

#: seconds for the answer to a request, and for an actor to start
PATIENCE, START = 1800.0, 120.0


def require() -> ModuleType:
    """The ray module; UsageError that says how to get it."""
    try:
        import ray
    except (ImportError, OSError) as e:
        raise UsageError(
            f"runners at ray:// need the package ray, which cannot be imported ({e})",
            stage="tune",
            hint="pip install tilewright[ray]",
        ) from None
    return ray


class RayLink:
    """The way to an actor on one machine of the cluster."""

    def __init__(self, ray: ModuleType, node: dict[str, Any], target: str, resource: str | None) -> None:
        self.ray, self.node, self.target, self.resource = ray, node, target, resource
        self.name = f"ray:{node['NodeManagerAddress']}/{node['NodeID'][:8]}"
        self.actor: Any = None
        self.start()

    def start(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from .remote_runners import RunnerHost

        place = NodeAffinitySchedulingStrategy(self.node["NodeID"], soft=False)
        resources = {self.resource: 0.001} if self.resource else None
        # one at a time: what measures must not be disturbed by another measurement
        remote = self.ray.remote(num_cpus=1, max_concurrency=1, max_restarts=0, resources=resources)(RunnerHost)
        self.actor = remote.options(scheduling_strategy=place).remote(self.target)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self.ray.get(self.actor.answer.remote(request), timeout=PATIENCE)
        except (self.ray.exceptions.RayError, TimeoutError, ConnectionError) as e:
            raise Lost(str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__) from None

    def revive(self) -> None:
        """Another actor on the same machine, if that is still there."""
        self.close()
        alive = {n["NodeID"] for n in self.ray.nodes() if n["Alive"]}
        if self.node["NodeID"] not in alive:
            raise Lost("its machine has left the cluster")
        self.start()
        try:
            self.ray.get(self.actor.answer.remote({"do": "about"}), timeout=START)
        except (self.ray.exceptions.RayError, TimeoutError, ConnectionError) as e:
            self.close()
            raise Lost(f"its machine cannot start another actor ({type(e).__name__})") from None

    def close(self) -> None:
        if self.actor is not None:
            with contextlib.suppress(Exception):
                self.ray.kill(self.actor)
        self.actor = None


def ray_links(address: str, target: str = DEFAULT_TARGET) -> list[RayLink]:
    """One link for each machine; see the head of this file. UsageError if the cluster cannot be reached or has none."""
    ray = require()
    parts = urlsplit(address)
    query = {k: v[-1] for k, v in parse_qs(parts.query).items()}
    odd = set(query) - {"resource", "workers"}
    count = query.get("workers")
    if odd or not parts.netloc or (count is not None and not (count.isdecimal() and int(count))):
        raise UsageError(
            f"{address!r} is no address of a Ray cluster", stage="tune", hint="ray://auto?resource=NAME&workers=N"
        )
    if not ray.is_initialized():
        where = "auto" if parts.netloc == "auto" else f"ray://{parts.netloc}"
        try:
            ray.init(address=where, log_to_driver=False, logging_level="ERROR")
        except Exception as e:  # Ray raises whatever its parts raise
            reason = str(e).strip().splitlines() or [type(e).__name__]
            raise UsageError(f"the Ray cluster at {address} cannot be used: {reason[0]}", stage="tune") from None
    resource = query.get("resource")
    wanted = resource or "CPU"
    nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get(wanted, 0) > 0]
    if not nodes:
        raise UsageError(f"no machine of the Ray cluster has the resource {wanted}", stage="tune")
    return [RayLink(ray, n, target, resource) for n in nodes[: int(count) if count else None]]


__all__ = ["RayLink", "ray_links", "require"]
