"""The digits of scikit-learn (1,797 real images of 8x8 pixels), split in the same way for training and demo."""

from __future__ import annotations

import numpy as np

TEST_IMAGES = 512


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """``(train images, train labels), (test images, test labels)``.

    Images are float32 of shape (N, 1, 8, 8) between 0 and 1, labels int64 of shape (N,). The test images are a fixed
    random choice of `TEST_IMAGES` that training never sees.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return (images[train], labels[train]), (images[test], labels[test])
