"""`com.microsoft` attention against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from support.against_onnxruntime import check, equal, floats

B, S, H, D = 2, 4, 2, 8
W = H * D


def ints(*values):
    return np.array(values, np.int32)


# ---- Attention -----------------------------------------------------------------------------------------------------

MASKS = {
    "none": None,
    "lengths": ints(4, 2),
    "ends and starts": ints(4, 3, 0, 1),
    "keys": ints([1, 1, 1, 1], [1, 1, 0, 0]),
    "queries and keys": np.tril(np.ones((B, S, S), np.int32)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_masks(mask, causal):
    inputs = {"x": floats(B, S, 12), "w": floats(12, 3 * W, seed=1, scale=0.3), "b": floats(3 * W)}
    check("Attention", inputs | {"mask": MASKS[mask]}, ("w", "b"), num_heads=H, unidirectional=causal,
          native=mask == "keys")  # fmt: skip


def test_attention_with_sizes_and_scale():
    inputs = {"x": floats(B, S, 12), "w": floats(12, 2 * W + 6, seed=1, scale=0.3), "b": floats(2 * W + 6)}
    check("Attention", inputs, ("w", "b"), num_heads=H, qkv_hidden_sizes=[W, W, 6], scale=0.2, native=True)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_past(causal):
    inputs = {
        "x": floats(B, S, 12),
        "w": floats(12, 3 * W, seed=1, scale=0.3),
        "b": floats(3 * W),
        "mask": None,
        "past": floats(2, B, H, 3, D, seed=2),
    }
    check("Attention", inputs, ("w", "b"), num_heads=H, unidirectional=causal, outputs=2, native=True)


@pytest.mark.parametrize("shape", [(B, H, S, S), (1, H, S, S), (1, 1, S, S)])
def test_attention_with_scores_to_add(shape):
    inputs = {
        "x": floats(B, S, 12),
        "w": floats(12, 3 * W, seed=1, scale=0.3),
        "b": floats(3 * W),
        "mask": None,
        "past": None,
        "scores": floats(*shape, seed=3),
    }
    check("Attention", inputs, ("w", "b"), num_heads=H)


# ---- MultiHeadAttention --------------------------------------------------------------------------------------------


def heads(**rest):
    return {"q": floats(B, S, W), "k": floats(B, 5, W, seed=1), "v": floats(B, 5, W, seed=2)} | rest


PADDING = {
    "lengths": ints(5, 3),
    "keys": ints([1, 1, 1, 1, 1], [1, 1, 1, 0, 0]),
    "queries and keys": np.broadcast_to(np.tril(np.ones((S, 5), np.int32), 1), (B, S, 5)).copy(),
}


@pytest.mark.parametrize("padding", PADDING)
def test_multi_head_attention_padding(padding):
    check("MultiHeadAttention", heads(b=floats(3 * W), padding=PADDING[padding]), num_heads=H, native=padding == "keys")


def test_multi_head_attention_without_a_bias():
    check("MultiHeadAttention", heads(), num_heads=H, scale=0.3)


def test_multi_head_attention_causal():
    inputs = {"q": floats(B, S, W), "k": floats(B, S, W, seed=1), "v": floats(B, S, W, seed=2)}
    check("MultiHeadAttention", inputs, num_heads=H, unidirectional=1)


def test_multi_head_attention_packed_keys_and_values():
    inputs = {"q": floats(B, S, W), "kv": floats(B, 5, H, 2, D)}
    same = {
        "q": inputs["q"],
        "k": inputs["kv"][:, :, :, 0],
        "v": inputs["kv"][:, :, :, 1],
    }
    equal("MultiHeadAttention", inputs, {k: v.reshape(B, -1, W) for k, v in same.items()}, num_heads=H)


def test_multi_head_attention_packed():
    qkv = floats(B, S, H, 3, D)
    same = {k: qkv[:, :, :, i].reshape(B, S, W) for i, k in enumerate("qkv")}
    equal("MultiHeadAttention", {"qkv": qkv}, same, num_heads=H)


def test_multi_head_attention_with_split_keys_and_values():
    inputs = {"q": floats(B, S, W), "k": floats(B, H, 5, D, seed=1), "v": floats(B, H, 5, D, seed=2)}
    check("MultiHeadAttention", inputs, num_heads=H)


def test_multi_head_attention_with_scores_to_add():
    check("MultiHeadAttention", heads(b=None, padding=None, scores=floats(1, H, S, 5)), num_heads=H)


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_a_past(causal):
    inputs = {
        "q": floats(B, S, W),
        "k": floats(B, S, W, seed=1),
        "v": floats(B, S, W, seed=2),
        "b": None,
        "padding": None,
        "scores": None,
        "past_k": floats(B, H, 3, D, seed=3),
        "past_v": floats(B, H, 3, D, seed=4),
    }
    check("MultiHeadAttention", inputs, num_heads=H, outputs=3, unidirectional=causal, native=bool(causal))


# ---- RotaryEmbedding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", [np.array([3], np.int64), np.array([[0, 1, 2, 3], [5, 4, 3, 2]], np.int64)])
@pytest.mark.parametrize("shape", [(B, S, W), (B, H, S, D)])
def test_rotary_embedding(interleaved, places, shape):
    inputs = {"x": floats(*shape), "at": places, "cos": floats(9, D // 2), "sin": floats(9, D // 2, seed=1)}
    check("RotaryEmbedding", inputs, ("cos", "sin"), interleaved=interleaved, native=len(shape) == 3)


def test_rotary_embedding_of_a_part():
    inputs = {"x": floats(B, S, W), "at": np.array([0], np.int64), "cos": floats(9, 2), "sin": floats(9, 2, seed=1)}
    check("RotaryEmbedding", inputs, ("cos", "sin"), rotary_embedding_dim=4, num_heads=H)


@pytest.mark.parametrize("layout, sections", [(0, [1, 2, 1]), (1, [2, 1, 1])])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_multimodal_rotary_embedding(layout, sections, interleaved):
    places = np.random.default_rng(0).integers(0, 9, (3, B, S)).astype(np.int64)
    inputs = {"x": floats(B, S, W), "at": places, "cos": floats(9, D // 2), "sin": floats(9, D // 2, seed=1)}
    check("MRotaryEmbedding", inputs, ("cos", "sin"), interleaved=interleaved, mrope_section=sections,
          mrope_layout=layout, num_heads=H, native=True)  # fmt: skip


# ---- GroupQueryAttention -------------------------------------------------------------------------------------------


def grouped(new, past, *, packed=False, tables=False, last=None, shared=1):
    """Inputs of a step with `new` positions after `past` ones; heads of 16, as ONNX Runtime rotates no smaller ones."""
    given = {"q": floats(B, new, H * 16, scale=2), "k": floats(B, new, shared * 16, seed=1)}
    given["v"] = floats(B, new, shared * 16, seed=2)
    if packed:
        given = {"q": np.concatenate(list(given.values()), 2), "k": None, "v": None}
    given["past_k"] = floats(B, shared, past, 16, seed=3)
    given["past_v"] = floats(B, shared, past, 16, seed=4)
    given["last"] = np.full(B, new + past - 1, np.int32) if last is None else last
    given["total"] = np.array(new + past, np.int32)
    if tables:
        given["cos"], given["sin"] = floats(16, 8, seed=5), floats(16, 8, seed=6)
    return given


def gqa(given, constants=("total",), **attributes):
    check("GroupQueryAttention", given, constants, outputs=3, num_heads=H, **attributes)


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("new, past", [(4, 0), (1, 5)])
def test_group_query_attention(shared, new, past):
    gqa(grouped(new, past, shared=shared), kv_num_heads=shared, native=shared == 1)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("new, past", [(4, 0), (1, 5)])
def test_group_query_attention_rotates(interleaved, new, past):
    gqa(grouped(new, past, tables=True, packed=True), ("total", "cos", "sin"), kv_num_heads=1, do_rotary=1,
        rotary_interleaved=interleaved)  # fmt: skip


def test_group_query_attention_window_scale():
    gqa(grouped(1, 7), kv_num_heads=1, local_window_size=3, scale=0.2)
    gqa(grouped(6, 0), kv_num_heads=1, local_window_size=3)


@pytest.mark.parametrize(
    "attributes", [{"softcap": 2.0}, {"smooth_softmax": 1}, {"softcap": 1.5, "local_window_size": 3}]
)
@pytest.mark.parametrize("new, past", [(4, 0), (1, 5)])
def test_group_query_attention_caps(attributes, new, past):
    gqa(grouped(new, past), kv_num_heads=1, native=True, **attributes)


def test_group_query_attention_with_a_sink():
    given = grouped(4, 0, tables=True) | {"places": None, "scores": None, "sink": floats(H)}
    gqa(given, kv_num_heads=1, do_rotary=1)


def test_group_query_attention_with_scores_to_add():
    given = grouped(1, 5, tables=True) | {"places": None, "scores": floats(B, H, 1, 6)}
    gqa(given, kv_num_heads=1, do_rotary=1)


def test_group_query_attention_of_rows_of_different_lengths():
    gqa(grouped(1, 5, last=ints(3, 5)), kv_num_heads=1)
