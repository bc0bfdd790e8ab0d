"""N-gram counts of numbers. Strings are not tensors here: what takes or gives them is refused, with the reason."""

from __future__ import annotations

import numpy as np

from .registry import onnx_op
from .values import OnnxNotImported

STRINGS = ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")


@onnx_op(*STRINGS, since=10)
def strings(n, *operands):
    raise OnnxNotImported("string tensors are not supported")


@onnx_op("ImageDecoder", since=20)
def image_decoder(n, *operands):
    raise OnnxNotImported("images in files are to be decoded before the model runs")


@onnx_op("TfIdfVectorizer", since=9)
def tf_idf(n, x):
    """For every n-gram of the pool how often it occurs: windows of x compared with all grams of one length at once."""
    if n.attr("pool_strings"):
        raise OnnxNotImported("of strings")
    mode, low, high = n.required("mode"), n.required("min_gram_length"), n.required("max_gram_length")
    pool, starts, places = n.required("pool_int64s"), n.required("ngram_counts"), n.required("ngram_indexes")
    skips = n.required("max_skip_count")
    batch = x.rank == 2
    if x.rank > 2 or mode not in ("TF", "IDF", "TFIDF"):
        raise n.error(f"mode {mode!r} or input {x.type} is not possible")
    x = n.cast(x if batch else n.reshape(x, (1, x.type.size)), "i64")
    width, first = max(places, default=-1) + 1, 0
    total = n.expand(n.constant(np.zeros((), np.float32)), (x.shape[0], width))
    for i, start in enumerate(starts):
        size, end = i + 1, (starts[i + 1] if i + 1 < len(starts) else len(pool))
        grams = np.array(pool[start:end], np.int64).reshape(-1, size)
        own, first = places[first : first + len(grams)], first + len(grams)
        if low <= size <= high and len(grams):
            found = occurrences(n, x, grams, skips if size > 1 else 0)
            if found is not None:
                table = np.zeros((len(grams), width), np.float32)
                table[np.arange(len(grams)), own] = 1
                total = n("add", total, n("matmul", found, n.constant(table)))
    weights = n.attr("weights")
    scale = None
    if weights is not None and mode != "TF":
        scale = np.ones(width, np.float32)
        scale[places] = weights
    if mode == "IDF":
        total = n.cast(n("greater", total, 0.0), "f32")
    if scale is not None:
        total = n("mul", total, n.constant(scale))
    return [total if batch else n.reshape(total, (width,))]


def occurrences(n, x, grams, skips):
    """[batch, grams] as f32: matches at all places, with 0 to `skips` elements left out between neighbours."""
    rows, length = x.shape
    size, total = grams.shape[1], None
    for skip in range(skips + 1):
        count = length - (size - 1) * (skip + 1)
        if count <= 0:
            break
        table = np.arange(count)[:, None] + np.arange(size) * (skip + 1)
        windows = n.reshape(n("gather", x, n.constant(table, "i64"), axis=1), (rows, count, 1, size))
        equal = n.cast(n("equal", windows, n.constant(grams)), "f32")
        found = n("reduce_sum", n("reduce_min", equal, axes=(3,), keepdims=False), axes=(1,), keepdims=False)
        total = found if total is None else n("add", total, found)
    return total
