"""The demo's model on the real images: accuracy, agreement with PyTorch, batches of any size."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def images_and_labels():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install tilewright[demo]")
    spec = importlib.util.spec_from_file_location("digits_data", FOLDER / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()[1]


@pytest.fixture(scope="module")
def expected():
    """PyTorch's outputs for the test images, written by train.py."""
    return np.load(FOLDER / "digits.expected.npz")["probabilities"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_digits(batch, threads, images_and_labels, expected, tmp_path):
    images, labels = images_and_labels
    compiled = tw.compile(FOLDER / "digits.onnx", inputs={"image": (batch, 1, 8, 8)}, threads=threads)
    compiled.save(tmp_path / "digits.tw")
    for executable in (compiled, tw.load(tmp_path / "digits.tw", threads=threads)):
        count = min(len(images) // batch, 16) * batch
        parts = [executable.run({"image": images[i : i + batch]})[0].copy() for i in range(0, count, batch)]
        got = np.concatenate(parts)
        assert np.abs(got - expected[:count]).max() < 1e-5
        assert np.mean(got.argmax(1) == labels[:count]) > (0.97 if count >= 512 else 0.9)


def test_training_and_demo_see_different_images():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install tilewright[demo]")
    spec = importlib.util.spec_from_file_location("digits_data", FOLDER / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (train, _), (test, _) = module.load()
    assert len(train) + len(test) == 1797 and len(test) == module.TEST_IMAGES
    (again, _), _ = module.load()
    np.testing.assert_array_equal(train, again)
