"""Operators of recurrent layers and of mixtures of experts on random batches, and a model that has both: snapshots
begun from, written, and both in one step."""

import numpy as np
import pytest
from llm.tiny_models import drawn, hybrid

import tilewright as tw
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.llm.batch import Batch
from tilewright.llm.config import DecoderLayer, DecoderModel, Norm, Sublayer
from tilewright.llm.layers.experts import Experts, Router
from tilewright.llm.program import ModelPlan, compile_model
from tilewright.ops.block_experts import ExpertBlockMatmul, ExpertIntegerBlockMatmul
from tilewright.ops.block_quantized import QuantizeBlocks
from tilewright.ops.block_weights import BlockWeights
from tilewright.ops.experts import ExpertMatmul, ExpertOrder
from tilewright.ops.ragged_recurrent import GatedLinearAttention, RaggedConv
from tilewright.support.options import Options

SNAPSHOTS = 7
T, B = tw.Dim("T", 1, 64), tw.Dim("B", 1, 8)


def places(rng) -> dict[str, np.ndarray]:
    """Sequences of random lengths: some begin from a snapshot, some write that again, some another one."""
    count = int(rng.integers(1, 8))
    starts = np.concatenate([[0], rng.integers(1, 9, count).cumsum()])
    initial, keep = np.full(count, -1), np.full(starts[-1], -1)
    free = rng.permutation(SNAPSHOTS).tolist()
    for b in range(count):
        if free and rng.random() < 0.6:
            initial[b] = free.pop()
        if initial[b] >= 0 and rng.random() < 0.5:
            keep[starts[b + 1] - 1] = initial[b]
        elif free:
            keep[rng.integers(starts[b], starts[b + 1])] = free.pop()
    return {n: a.astype(np.int32) for n, a in (("starts", starts), ("initial", initial), ("keep", keep))}


def check(operator, shapes, pool, optional=(), threads=2, **attributes):
    """The compiled operator on random batches, its pool a state; a shape that begins with None is one for each
    token."""
    name = operator.mnemonic
    types = {n: Type(s, "f32") for n, s in shapes.items()} | {"pool": Type((SNAPSHOTS, *pool), "f32")}
    lists = {n: Type((None,), "i32") for n in ("starts", "initial", "keep")}
    make = Maker([*types.items(), *lists.items()])
    values = dict(zip(make.names, make.inputs, strict=True))
    order = [n for n in shapes if n not in optional] + ["pool", *lists, *optional]
    y, new = make(name, *[values[n] for n in order], **attributes)
    sizes = {n: (T, *s[1:]) for n, s in shapes.items() if s[0] is None}
    sizes |= {"starts": ("B+1",), "initial": (B,), "keep": (T,)}
    graph = make.finish([("y", y), ("new", new)])
    run = tw.compile(graph, inputs=sizes, states={"pool": "new"}, threads=threads)
    assert "two buffers" not in str(run.states)
    rng = np.random.default_rng(0)
    for _ in range(12):
        given = places(rng)
        fed = {n: drawn(rng, *[len(given["keep"]) if d is None else d for d in s]) / 4 for n, s in shapes.items()}
        if "gate" in fed:
            fed["gate"] = -abs(fed["gate"])
        state = drawn(rng, SNAPSHOTS, *pool)
        run.states["pool"] = state
        (got,) = run(**fed, **given)
        all_given = fed | given | {"pool": state}
        defaults = {**operator.attributes, **attributes}
        expected, kept = operator.reference(*[all_given[n].copy() for n in order], **defaults)
        np.testing.assert_allclose(got, expected, atol=2e-5)
        np.testing.assert_allclose(run.states["pool"], kept, atol=2e-5)
        untouched = np.setdiff1d(np.arange(SNAPSHOTS), given["keep"])
        assert np.array_equal(run.states["pool"][untouched], state[untouched])


@pytest.mark.parametrize("channels, silu", [(37, True), (8, False)])
def test_ragged_conv(channels, silu):
    shapes = {"x": (None, channels), "weights": (4, channels), **({"bias": (channels,)} if silu else {})}
    check(RaggedConv, shapes, (3, channels), ["bias"] if silu else (), silu=silu)


@pytest.mark.parametrize("beta, width", [(True, 40), (False, 5)])
def test_gated_linear_attention(beta, width):
    """Widths of more than one task, and of less than a vector."""
    shapes = {"q": (None, 2, 12), "k": (None, 2, 12), "v": (None, 4, width), "gate": (None, 4)}
    shapes |= {"beta": (None, 4)} if beta else {}
    check(GatedLinearAttention, shapes, (4, 12, width), ["beta"] if beta else ())


@pytest.mark.parametrize("dtype, columns", [("f32", 72), ("bf16", 21)])
def test_experts(dtype, columns):
    """All pairs at one expert, at many, and experts without any; weights of halves."""
    rng, count, each, depth = np.random.default_rng(1), 9, 2, 20
    weights = drawn(rng, count, columns, depth).astype(tw.ir.types.numpy_dtype(dtype))
    make = Maker([("x", Type((None, depth), "f32")), ("experts", Type((None, each), "i32"))])
    rows, at, starts = make("expert_order", make.inputs[1], count=count)
    y = make("expert_matmul", make.inputs[0], make.constant(weights), starts, rows)
    outputs = [("y", y), ("rows", rows), ("places", at), ("starts", starts)]
    run = tw.compile(make.finish(outputs), inputs={"x": (T, depth), "experts": (T, each)}, threads=2)
    for tokens in (1, 2, 5, 17, 64):
        for alike in (False, True):
            experts = np.argsort(rng.random((tokens, count)), 1)[:, :each].astype(np.int32)
            experts = np.broadcast_to(experts[0], experts.shape).copy() if alike else experts
            x = drawn(rng, tokens, depth)
            got, *order = run(x, experts)
            expected = ExpertOrder.reference(experts, count=count)
            for a, b in zip(order, expected, strict=True):
                np.testing.assert_array_equal(a, b)
            wide = weights.astype(np.float32)
            np.testing.assert_allclose(got, ExpertMatmul.reference(x, wide, expected[2], expected[0]), atol=1e-4)


FORMS = {"4 bits": (4, 32, ()), "minima": (4, 32, ("minimum",)), "zeros": (4, 16, ("zero",)), "6 bits": (6, 16, ())}


@pytest.mark.parametrize("form", FORMS)
def test_experts_with_weights_in_blocks(form):
    """Of bytes and of floats, against the references; experts of one row, of several and of none."""
    bits, block, more = FORMS[form]
    rng, count, each, columns, depth = np.random.default_rng(2), 5, 2, 64, 96
    size = (count * columns, depth // block)
    fields = {"minimum": rng.uniform(0, 0.1, size).astype("f4"), "zero": rng.integers(0, 16, size, np.uint8)}
    codes = rng.integers(0, 1 << bits, (count * columns, depth), np.uint8)
    scale = rng.uniform(0.01, 0.1, size).astype("f4")
    weights = BlockWeights.of_codes(codes, bits, block, scale, **{n: fields[n] for n in more})
    make = Maker([("x", Type((None, depth), "f32")), ("experts", Type((None, each), "i32"))])
    rows, _, starts = make("expert_order", make.inputs[1], count=count)
    given = [None if a is None else make.constant(a) for a in weights.operands]
    q = make("quantize_blocks", make.inputs[0], block=32, part=block)
    y = make("expert_integer_block_matmul", *q, *given, starts, rows, **weights.attributes)
    z = make("expert_block_matmul", make.inputs[0], *given, starts, rows, **weights.attributes)
    run = tw.compile(make.finish([("y", y), ("z", z)]), inputs={"x": (T, depth), "experts": (T, each)}, threads=2)
    for tokens in (1, 2, 3, 7, 40):
        experts = np.argsort(rng.random((tokens, count)), 1)[:, :each].astype(np.int32)
        x = drawn(rng, tokens, depth)
        order, _, first = ExpertOrder.reference(experts, count=count)
        operands = (*weights.operands, first, order)
        whole = ExpertIntegerBlockMatmul.reference(
            *QuantizeBlocks.reference(x, block=32, part=block), *operands, **weights.attributes
        )
        exact = ExpertBlockMatmul.reference(x, *operands, **weights.attributes)
        for got, expected in zip(run(x, experts), (whole, exact), strict=True):
            np.testing.assert_allclose(got, expected, atol=2e-6 * abs(expected).max())


# ---- a model with both kinds of layers -----------------------------------------------------------------------------


def test_snapshots_of_a_hybrid_model():
    """Beginning from a snapshot equals going on, whether it was kept in the middle of a chunk (a draft that is rolled
    back), is shared by two sequences, was copied, or read and written back; all states are updated in place."""
    plan = ModelPlan(context=64, sequences=4, tokens=32, page_length=4, pages=64, snapshots=SNAPSHOTS, dtype="f32")
    runner = compile_model(*hybrid(), plan, Options.of(threads=1))
    for entry in runner.executable.entries.values():
        assert "two buffers" not in str(entry) and "in place" in str(entry)
    text = np.random.default_rng(4).integers(0, 50, 40).tolist()

    def step(*chunks):
        """Logits by chunk, which are (pages from, position, tokens, snapshot to begin from, {token: snapshot})."""
        parts = {n: [] for n in ("tokens", "positions", "slots", "keep", "lengths", "table", "initial")}
        starts = [0]
        for page, first, tokens, begin, kept in chunks:
            at = first + np.arange(len(tokens))
            parts["tokens"] += tokens
            parts["positions"] += at.tolist()
            parts["slots"] += (page * 4 + at).tolist()
            parts["keep"] += [kept.get(i, -1) for i in range(len(tokens))]
            parts["lengths"].append(first + len(tokens))
            parts["table"].append(list(range(page, page + 16)))
            parts["initial"].append(begin)
            starts.append(starts[-1] + len(tokens))
        arrays = {n: np.asarray(a, np.int32) for n, a in parts.items()}
        batch = Batch(**arrays, starts=np.int32(starts), rows=np.arange(starts[-1], dtype=np.int32))
        return np.split(runner.step(batch).logits.copy(), starts[1:-1])

    (first,) = step((0, 0, text[:24], -1, {9: 5, 23: 2}))
    (rest,) = step((0, 24, text[24:], 2, {}))
    expected = np.concatenate([first, rest])

    def same(got, start):
        np.testing.assert_allclose(got, expected[start : start + len(got)], atol=2e-5)

    # token by token: the state goes back where it came from; a wrong draft before that, and a sequence beside
    runner.copy([(i, 16 + i) for i in range(16)], [(5, 6)])
    step((0, 10, [1, 2, 3], 5, {}))
    for i in range(10, 14):
        mine, beside = step((0, i, text[i : i + 1], 5, {0: 5}), (16, i, text[i : i + 1], 6, {0: 6}))
        same(mine, i)
        same(beside, i)
    # two sequences from one snapshot, which neither writes
    for got in step((0, 14, text[14:20], 5, {}), (16, 14, text[14:20], 5, {5: 3})):
        same(got, 14)
    runner.write(runner.read([16, 17, 18, 19, 20], [3]), [32, 33, 34, 35, 36], [0])
    (got,) = step((32, 20, text[20:], 0, {}))
    same(got, 20)


def test_a_mixture_with_weights_in_blocks():
    """As the same mixture with the weights that these stand for, but for the rounding of activations; with columns
    that do not fill tiles."""
    rng = np.random.default_rng(5)
    model, weights = mixture(96, 32, 4, rng)
    plan = ModelPlan(context=16, sequences=1, tokens=17, page_length=4, pages=4, dtype="f32")
    blocks = {}
    for name, w in weights.items():
        if ".experts." in name:
            codes = rng.integers(0, 16, w.shape, np.uint8)
            blocks[name] = BlockWeights.of_codes(codes, 4, 32, np.full((len(w), w.shape[1] // 32), 0.02, np.float16))
            weights[name] = blocks[name].dequantized()
    tokens = rng.integers(0, 50, 5).astype(np.int32)
    ordered = np.arange(5, dtype=np.int32)
    lists = {"starts": np.int32([0, 5]), "lengths": np.int32([5]), "table": np.int32([[0, 1]])}
    batch = Batch(tokens=tokens, positions=ordered, slots=ordered, rows=ordered, **lists)
    found = [
        compile_model(model, w, plan, Options.of(threads=1)).step(batch).logits.copy()
        for w in (weights, weights | blocks)
    ]
    np.testing.assert_allclose(found[1], found[0], atol=0.02 * abs(found[0]).max())
    assert np.corrcoef(found[0].ravel(), found[1].ravel())[0, 1] > 0.999


def mixture(hidden: int, size: int, count: int, rng) -> tuple[DecoderModel, dict[str, np.ndarray]]:
    """A model of one layer, a mixture with weights for each expert."""
    norm = Norm("rms")
    experts = Experts(Router(count, 2), size)
    shapes = {f"experts.{e}.{n}.weight": (size, hidden) for e in range(count) for n in ("gate", "up")}
    shapes |= {f"experts.{e}.down.weight": (hidden, size) for e in range(count)} | {"router.weight": (count, hidden)}
    weights = {f"layers.0.mlp.{n}": drawn(rng, *s) / s[-1] ** 0.5 for n, s in shapes.items()}
    weights |= {"embedding.weight": drawn(rng, 50, hidden), "norm.weight": np.ones(hidden, np.float32)}
    weights["layers.0.mlp.before.weight"] = np.ones(hidden, np.float32)
    return DecoderModel(
        "mixture", 50, hidden, 16, (DecoderLayer((Sublayer("mlp", experts, norm),)),), norm, tied=True
    ), weights
