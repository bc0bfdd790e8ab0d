"""Spaces, keys, features, search and the choice of the next task: without building anything."""

from __future__ import annotations

import json
import math
import random

import pytest

from tilewright.driver.kernel_key import kernel_key, nest_digest
from tilewright.driver.tuning_database import Measurement
from tilewright.lang import te
from tilewright.schedule.decisions import freeze
from tilewright.support.errors import UsageError
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.cost import CostModel
from tilewright.tune.features import features, names
from tilewright.tune.search import Search
from tilewright.tune.space import Candidate, Space, distance
from tilewright.tune.tasks import TaskProgress, next_task

MACHINE = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2", "fma"), vector_bytes=32, vector_registers=16, cores=2
)


def matmul(m: int = 12, n: int = 32, k: int = 24, prefix: str = ""):
    a = te.placeholder((m, k), f"{prefix}a")
    b = te.placeholder((k, n), f"{prefix}b", constant=True)
    r = te.reduce_axis(k, f"{prefix}r")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), f"{prefix}c"))


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(matmul(), MACHINE)


@pytest.fixture(scope="module")
def every(space) -> list[Candidate]:
    """All candidates of the space."""
    return list(space.list())


def test_key_ignores_names_and_sees_sizes():
    a, b, c = kernel_key(matmul()), kernel_key(matmul(prefix="other_")), kernel_key(matmul(n=48))
    assert a == b
    assert a.kernel != c.kernel and a.form == c.form and a.extents != c.extents


def test_key_sees_constants_and_roles():
    x = te.placeholder((8,), "x")
    k1, k2 = (kernel_key(te.kernel(te.compute((8,), lambda i, v=v: x[i] * v, "y"))) for v in (2.0, 3.0))
    assert k1.kernel != k2.kernel and k1.form == k2.form
    y = te.placeholder((8,), "x", constant=True)
    k3 = kernel_key(te.kernel(te.compute((8,), lambda i: y[i] * 2.0, "y")))
    assert k3.form != k1.form


def test_list_has_every_candidate_once(space, every):
    keys = [c.key for c in every]
    assert len(keys) == len(set(keys)) > 20
    # the count sees from the default what can be decided: later decisions may depend on earlier ones
    assert space.count() == math.prod(len(d.candidates) for d in space.decisions.values()) > 20
    assert keys[0] == space.default.key


def test_sample_is_valid_and_seeded(space, every):
    keys = {c.key for c in every}
    one, two = ([space.sample(random.Random(5)).key for _ in range(1)] for _ in range(2))
    assert one == two
    rng = random.Random(1)
    found = {space.sample(rng).key for _ in range(60)}
    assert found <= keys and len(found) > 20


def test_mutate_and_cross_stay_in_the_space(space, every):
    rng = random.Random(2)
    keys = {c.key for c in every}
    a, b = space.sample(rng), space.sample(rng)
    changed = 0
    for _ in range(40):
        m, c = space.mutate(a, rng), space.cross(a, b, rng)
        assert m.key in keys and c.key in keys
        changed += m.key != a.key
        for name, value in c.decisions.items():
            parents = [p.decisions[name] for p in (a, b) if name in p.decisions]
            assert value in parents or not parents  # a decision that neither parent had to take
    assert changed > 30


def test_decisions_survive_json(space):
    c = space.sample(random.Random(3))
    again = space.realize(json.loads(json.dumps(c.decisions)))
    assert again is not None and again.digest == c.digest and freeze(again.decisions) == c.key


def test_impossible_decisions_fall_back_to_the_default(space):
    c = space.realize(dict.fromkeys(space.decisions, "no such choice"))
    assert c is not None and c.key == space.default.key


def test_digest_is_that_of_the_code(space, every):
    digests = {c.digest for c in every}
    assert len(digests) > 20
    assert nest_digest(space.default.nest) == space.default.digest


def test_distance_orders_tiles():
    assert distance((4, 2), (4, 2)) == 0
    assert distance((4, 2), (8, 2)) < distance((4, 2), (16, 2))
    assert distance(True, False) == 1


def test_features_have_names_and_tell_candidates_apart(space, every):
    rows = [features(space.kernel, c.plain, MACHINE) for c in every]
    assert all(len(r) == len(names()) for r in rows)
    assert all(math.isfinite(x) for r in rows for x in r)
    assert len(set(rows)) > 0.8 * len({c.digest for c in every})


def pretend(c) -> float:
    """A made-up time, smooth in the decisions; long for tiles of another form."""
    if "tile" not in c.decisions:
        return 4.0
    rows, outer, vectors = c.decisions["tile"]
    return 1.0 + abs(rows * outer - 3) * 0.2 + abs(vectors - 4) * 0.3


def finished(search: Search, batches: int) -> list[float]:
    best = []
    for _ in range(batches):
        if search.model is not None:
            search.model.fit(search.samples)
        for c in search.propose(8):
            search.add(c, "ok", pretend(c))
        best.append(min(r for r, c in search.ranked if c is not search.space.default))
    return best


def test_search_never_repeats_and_ends():
    space = Space(matmul(6, 16, 8), MACHINE)
    search, seen, every = Search(space, None, seed=1), [], list(space.list())
    while batch := search.propose(8):
        for c in batch:
            seen.append(c.digest)
            search.add(c, "ok", 1.5)
        assert len(seen) <= len(every)
    assert len(seen) == len(set(seen))


def test_guided_search_finds_what_random_search_does_not():
    pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
    space = Space(matmul(24, 96, 64), MACHINE)
    assert space.count() > 96
    guided, blind = (
        sum(finished(Search(space, CostModel(seed=s) if with_model else None, seed=s), 6)[-1] for s in range(3))
        for with_model in (True, False)
    )
    assert guided < blind


def test_search_crosses_forks_first():
    pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
    space = Space(matmul(24, 96, 64), MACHINE)
    named = {n for n, d in space.decisions.items() if isinstance(d.chosen, (bool, str)) and len(d.candidates) > 1}
    first = Search(space, CostModel(seed=0), seed=0).propose(4 + len(named))
    ways = [{n for n in named if c.decisions.get(n) != space.default.decisions[n]} for c in first[: len(named)]]
    assert named and sorted(w for way in ways for w in way) == sorted(named)


def test_failures_are_not_parents(space):
    search = Search(space, None)
    (c,) = search.propose(1)
    search.add(c, "crash", None)
    assert search.best[1] is space.default and c not in search.propose(8)


def test_resume_takes_what_still_means_the_same(space):
    first = Search(space, None, seed=4)
    found = [Measurement(c.decisions, c.digest, "ok", 1.0, 0.5) for c in first.propose(6)]
    stale = Measurement(found[0].decisions, "another digest", "ok", 1.0, 0.1)
    search = Search(space, None, seed=4)
    search.resume([*found, stale])
    assert len(search.samples) == 6 and search.best[0] == 0.5
    again = search.propose(6)
    assert {c.digest for c in again}.isdisjoint({m.digest for m in found})


def test_next_task_prefers_what_promises_more():
    progress = [TaskProgress(1.0, 500), TaskProgress(5.0, 500), TaskProgress(0.1, 500)]
    assert next_task(progress) == 1
    for _ in range(30):
        progress[1].after(8, 1.0)
    assert next_task(progress) == 0
    for p in progress:
        p.finished = True
    assert next_task(progress) is None


def test_tuning_without_the_package_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(UsageError, match="lightgbm") as error:
        CostModel()
    assert error.value.hint == "pip install tilewright[tune]"


def test_tuning_without_a_budget_is_refused():
    import tilewright as tw

    with pytest.raises(UsageError, match="budget"):
        tw.tune("model.onnx")
    with pytest.raises(UsageError, match="trials must be positive"):
        tw.tune("model.onnx", trials=0)
