"""The pretrained cost model: its file, how it leads a search, and how it gives way to measurements."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.tune import _guided_by
from tilewright.lang import te
from tilewright.support.errors import UsageError
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.cost import HALF, CostModel
from tilewright.tune.features import VERSION, features, names
from tilewright.tune.pretrained import FILE, Pretrained, columns, compared, digest, load
from tilewright.tune.search import Search
from tilewright.tune.space import Space

pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")
MACHINE = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2", "fma"), vector_bytes=32, vector_registers=16, cores=2
)


class Guide:
    """Stands for trees: what it predicts is a feature."""

    def __init__(self, feature: str, sign: float = 1.0) -> None:
        self.at, self.sign = columns().index(feature), sign

    def predict(self, x: np.ndarray, num_threads: int) -> np.ndarray:
        return self.sign * x[:, self.at]


def guide(feature: str, sign: float = 1.0) -> Pretrained:
    return Pretrained({"target": "cpu"}, Guide(feature, sign))


@pytest.fixture(scope="module")
def space() -> Space:
    a, b = te.placeholder((24, 64), "a"), te.placeholder((64, 96), "b", constant=True)
    r = te.reduce_axis(64, "r")
    return Space(te.kernel(te.compute((24, 96), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c")), MACHINE)


def test_the_shipped_model_fits_the_features_of_today(space):
    model = load()
    assert model is not None and model.about["features"] == str(VERSION)
    assert "measurements of" in str(model)
    described = [features(space.kernel, c.plain, MACHINE) for c in itertools.islice(space.list(), 12)]
    predicted = model.predict(described, described[0])
    assert predicted.shape == (12,) and np.isfinite(predicted).all() and len(set(predicted)) > 1
    assert (predicted == model.predict(described, described[0])).all()
    assert model.predict([], described[0]).shape == (0,)
    assert load("another target") is None


def test_the_shipped_model_is_small_and_is_packaged():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'"tilewright.tune" = ["{FILE.name}"]' in text
    assert FILE.stat().st_size < 200_000


def test_a_candidate_is_compared_with_the_default():
    assert compared([(3.0, 1.0), (2.0, 5.0)], (2.0, 1.0)).tolist() == [[3, 1, 1, 0], [2, 5, 0, 4]]
    assert len(columns()) == 2 * len(names()) == len(set(columns()))


def whole(head: str, trees: str) -> str:
    """A file whose digest is right."""
    return re.sub(r"# digest: \w+", f"# digest: {digest(trees)}", head) + "\n\n" + trees


def changed(text: str, how: str) -> str:
    head, _, trees = text.partition("\n\n")
    return {
        "version": text.replace(f"# features: {VERSION}", f"# features: {VERSION + 1}"),
        "other names": whole(head, trees.replace("feature_names=work ", "feature_names=walk ")),
        "no head": trees,
        "half": text[: len(text) // 2],
        "empty": "",
        "no trees": head,
        "numbers": text.replace("threshold=", "threshold=x"),
    }[how]


@pytest.mark.parametrize("how", ["version", "other names", "no head", "half", "empty", "no trees", "numbers"])
def test_a_file_that_does_not_fit_is_refused(tmp_path, how):
    path = tmp_path / "pretrained.txt"
    path.write_text(changed(FILE.read_text(), how))
    with pytest.raises(UsageError, match=r"pretrained cost model pretrained\.txt cannot be used") as error:
        load(path=path)
    assert "--no-pretrained" in error.value.hint


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be used"):
        load(path=tmp_path / "none.txt")


def test_it_leads_from_the_first_batch(space):
    """A model that likes large tiles makes the first batch one of larger tiles than a model that likes small ones."""

    def first(sign: float) -> float:
        search = Search(space, CostModel(pretrained=guide("register_vectors", sign)), seed=3)
        at = names().index("register_vectors")
        return float(np.mean([search.features(c)[at] for c in search.propose(8)]))

    assert first(-1.0) > first(1.0) + 1


def test_it_gives_way_to_measurements(space):
    described = [features(space.kernel, c.plain, MACHINE) for c in itertools.islice(space.list(), 40)]
    prior = guide("register_vectors").predict(described, described[0])
    model = CostModel(pretrained=guide("register_vectors"))
    assert model.ready and not model.trained
    assert (model.predict(described, described[0]) == prior).all()
    model.fit([(f, 1.0 + i % 5) for i, f in enumerate(described)])
    learnt = model.predict(described)  # without a default to compare with, only what was learnt
    for measured, share in ((0, 1.0), (HALF, 0.5), (3 * HALF, 0.25)):
        blended = model.predict(described, described[0], measured)
        assert blended == pytest.approx(share * prior + (1 - share) * learnt)


def test_without_it_nothing_is_known_at_first():
    model = CostModel()
    assert not model.ready and model.predict([(1.0, 2.0)], (0.0, 0.0)).tolist() == [0.0]


@pytest.mark.parametrize("wanted", [True, False])
def test_tune_takes_it_or_leaves_it(monkeypatch, wanted):
    """The argument arrives at the cost model."""
    made = []

    class Stop(Exception):
        pass

    def stop(*_, pretrained):
        made.append(pretrained)
        raise Stop

    monkeypatch.setattr("tilewright.tune.tuner.CostModel", stop)
    with pytest.raises(Stop):
        tw.tune("model.onnx", trials=1, pretrained=wanted)
    assert (made[0] is not None) == wanted


def test_the_command_says_whether_it_is_in_use():
    assert _guided_by(load(), True, "cpu").startswith("pretrained on ")
    assert _guided_by(None, False, "cpu") == "not pretrained (--no-pretrained)"
    assert "none for target cuda" in _guided_by(load("cuda"), True, "cuda")
