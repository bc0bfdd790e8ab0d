"""`com.microsoft` PagedAttention, which ONNX Runtime has for CUDA alone, against a loop over tokens."""

from __future__ import annotations

import numpy as np
import pytest
from support.against_onnxruntime import model_of
from support.gpus import device_of

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.frontends.onnx import load
from tilewright.graph.interpret import interpret

HEADS, SHARED, DEPTH, PAGE, PAGES = 4, 2, 8, 4, 9
ATTRIBUTES = {"num_heads": HEADS, "kv_num_heads": SHARED}


def drawn(tokens: list[int], past: list[int], packed: bool = False, seed: int = 0) -> dict[str, np.ndarray | None]:
    g, total = np.random.default_rng(seed), sum(tokens)

    def floats(*shape):
        return g.standard_normal(shape).astype(np.float32)

    pages = -(-max(t + p for t, p in zip(tokens, past, strict=True)) // PAGE)
    table = g.permutation(PAGES)[: len(past) * pages].reshape(len(past), pages).astype(np.int32)
    q, k, v = (floats(total, h * DEPTH) for h in (HEADS, SHARED, SHARED))
    given = {"q": np.concatenate([q, k, v], 1), "k": None, "v": None} if packed else {"q": q, "k": k, "v": v}
    return {
        **given, "kp": floats(PAGES, PAGE, SHARED, DEPTH), "vp": floats(PAGES, PAGE, SHARED, DEPTH),
        "ends": np.cumsum([0, *tokens]).astype(np.int32), "past": np.array(past, np.int32), "table": table,
    }  # fmt: skip


def right(x: dict[str, np.ndarray | None], turn=lambda rows, place: rows) -> list[np.ndarray]:
    """Token by token."""
    q, k, v = x["q"], x["k"], x["v"]
    if k is None:
        q, k, v = np.split(q, [HEADS * DEPTH, (HEADS + SHARED) * DEPTH], 1)
    kp, vp, ends = x["kp"].copy(), x["vp"].copy(), x["ends"]
    out = np.empty_like(q)
    for b, past in enumerate(x["past"]):
        for i, t in enumerate(range(ends[b], ends[b + 1])):
            place = past + i
            page, row = x["table"][b, place // PAGE], place % PAGE
            kp[page, row] = turn(k[t].reshape(SHARED, DEPTH), place)
            vp[page, row] = v[t].reshape(SHARED, DEPTH)
            own = turn(q[t].reshape(HEADS, DEPTH), place)
            seen = [(x["table"][b, j // PAGE], j % PAGE) for j in range(place + 1)]
            keys, values = (np.repeat([p[s] for s in seen], HEADS // SHARED, 1) for p in (kp, vp))
            scores = np.einsum("hd,jhd->hj", own, keys) / np.sqrt(DEPTH)
            e = np.exp(scores - scores.max(1, keepdims=True))
            out[t] = np.einsum("hj,jhd->hd", e / e.sum(1, keepdims=True), values).ravel()
    return [out, kp, vp]


CASES = {
    "a prompt": ([6], [0]),
    "more of one sequence": ([3], [7]),
    "a token of each": ([1, 1, 1], [5, 0, 9]),
    "some of each": ([3, 0, 2], [2, 4, 5]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_tokens_of_several_sequences(name, packed):
    x = drawn(*CASES[name], packed)
    data, feed = model_of("PagedAttention", x, outputs=3, **ATTRIBUTES)
    for got, want in zip(interpret(load(data), feed).values(), right(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_rotated():
    x = drawn(*CASES["some of each"])
    angles = np.arange(16)[:, None] / 10.0 ** np.arange(DEPTH // 2)
    x |= {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}

    def turn(rows, place):
        a, b = np.split(rows, 2, 1)
        c, s = x["cos"][place], x["sin"][place]
        return np.concatenate([a * c - b * s, a * s + b * c], 1)

    data, feed = model_of("PagedAttention", x, ("cos", "sin"), outputs=3, **ATTRIBUTES, do_rotary=1)
    for got, want in zip(interpret(load(data), feed).values(), right(x, turn), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_compiled():
    device_of("opencl")
    x = drawn(*CASES["some of each"])
    data, feed = model_of("PagedAttention", x, outputs=3, **ATTRIBUTES)
    run = tw.compile(data, target="opencl")
    assert "paged_attention" in run.explain()
    for got, want in zip(run(*feed.values()), right(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_missing():
    x = drawn(*CASES["a prompt"])
    for more, why in (({"softcap": 5.0}, "softcap"), ({"do_rotary": 1}, "do_rotary needs cos_cache")):
        data, _ = model_of("PagedAttention", x, outputs=3, **ATTRIBUTES, **more)
        with pytest.raises(TilewrightError, match=why):
            load(data)
