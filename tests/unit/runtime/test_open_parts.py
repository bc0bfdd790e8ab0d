"""Parts of a model whose sizes change from run to run: one program for all of them, from the second on."""

from __future__ import annotations

import logging

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from support.onnx_models import model, node, value
from support.staged_models import detector, growing_loop, speech

import tilewright as tw
from tilewright.runtime.open_parts import SizePattern, Term, split
from tilewright.runtime.parts import EmbeddedConstant
from tilewright.support.dims import Dim

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compared(run, made, feeds, counts=None):
    """Against ONNX Runtime; how many programs there are after each call."""
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = []
    for feed in feeds:
        for got, want in zip(run(feed), session.run(None, feed), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        found.append(run.compiled)
    return found


# ---- whole models: ten inputs ----


def texts():
    return [{"ids": np.random.default_rng(n).integers(0, 30, (1, n))} for n in (12, 17, 9, 40, 23, 5, 33, 64, 28, 50)]


def test_text_to_speech():
    """The text has one length, what is made of it another one, which data decide."""
    made = speech()
    run = tw.compile(made, threads=1)
    assert compared(run, made, texts()) == [2] + [4] * 9
    said = run.explain()
    assert "for ids i64[1, d0] with d0:1..272" in said and "n i64[] = [d1]" in said and "for 9 sizes so far" in said


def test_a_loop_with_a_growing_cache():
    made = growing_loop()
    sizes = ((5, 3), (9, 2), (20, 7), (4, 1), (30, 11), (8, 8), (12, 5), (17, 6), (25, 2), (3, 40))
    feeds = [
        {"steps": np.array(n), "start": normal(n, 1, 16), "k0": normal(n + 1, p, 16), "v0": normal(n + 2, p, 16)}
        for n, p in sizes
    ]
    run = tw.compile(made, threads=1)
    counts = compared(run, made, feeds)
    assert counts[-1] == counts[1] <= 4


def test_a_detector_of_images_of_any_size():
    made = detector()
    feeds = [{"image": normal(i, 1, 3, 8 + 2 * i, 12 + i)} for i in range(10)]
    run = tw.compile(made, threads=1)
    assert compared(run, made, feeds) == [2] + [4] * 9


# ---- what is one program for all sizes, and what is not ----


def found_twice(operator="Concat", **attributes):
    """What is found in two tensors, joined."""
    nodes = [node("NonZero", "x", "a"), node("NonZero", "y", "b"), node(operator, "a b", "z", **attributes)]
    return model(nodes, [value("x", [40]), value("y", [40])], [value("z", None, I64)])


def filled(count):
    x = np.zeros(40, np.float32)
    x[:count] = 1
    return x


def test_sizes_that_were_equal_by_chance():
    made = found_twice(axis=1)
    run = tw.compile(made, threads=1)
    counts = [(3, 3), (5, 5), (7, 7), (4, 6), (6, 4), (9, 9), (1, 2)]
    found = compared(run, made, [{"x": filled(a), "y": filled(b)} for a, b in counts])
    # a program for 3, one for d0 and d0, one for d0 and d1; and the first part, which has one size
    assert found == [2, 3, 3, 4, 4, 4, 4]


def test_what_needs_equal_sizes_has_them():
    made = found_twice("Add")
    run = tw.compile(made, threads=1)
    assert compared(run, made, [{"x": filled(n), "y": filled(n)} for n in (3, 5, 7, 2)])[1:] == [3, 3, 3]
    with pytest.raises(tw.errors.TilewrightError, match="broadcast"):
        run({"x": filled(3), "y": filled(5)})


def test_a_model_that_cannot_be_compiled_for_all_sizes(caplog):
    """Pairs of what is found: of how many that is, the program has to know."""
    nodes = [node("NonZero", "x", "a"), node("Reshape", "a pairs", "z")]
    made = model(nodes, [value("x", [40])], [value("z", None, I64)], {"pairs": np.array([-1, 2])})
    run = tw.compile(made, threads=1)
    with caplog.at_level(logging.INFO, "tilewright"):
        assert compared(run, made, [{"x": filled(n)} for n in (4, 8, 2, 6, 8, 4)]) == [2, 3, 4, 5, 5, 5]
    refusals = [r.message for r in caplog.records if "no program for all sizes" in r.message]
    assert 1 <= len(refusals) <= 4, "after two rounds nothing more is tried"


def test_nothing_found_and_sizes_beyond_the_range():
    made = found_twice(axis=1)
    run = tw.compile(made, threads=1)
    assert compared(run, made, [{"x": filled(a), "y": filled(a)} for a in (1, 2, 0, 3, 0, 40)]) == [2, 3, 4, 4, 4, 4]
    made = speech()
    run = tw.compile(made, threads=1)
    lengths = (3, 2, 60, 80, 7, 100)  # of 1..64, then of 1..1280
    feeds = [{"ids": np.random.default_rng(n).integers(0, 30, (1, n))} for n in lengths]
    assert compared(run, made, feeds)[-3:] == [6, 6, 6]


def test_a_model_whose_sizes_are_those_of_its_inputs_has_a_program_for_each():
    made = model([node("Relu", "x", "y")], [value("x", ["n"])], [value("y", ["n"])])
    run = tw.compile(made, threads=1, specialize="now")
    assert compared(run, made, [{"x": normal(n, n)} for n in (3, 5, 7)]) == [1, 2, 3]


# ---- ahead, saved, measured ----


def test_programs_made_ahead_are_for_one_size(tmp_path):
    run = tw.compile(speech(), threads=1)
    for feed in texts()[:3]:
        run.specialize(feed)
    assert run.compiled == 6 and not list(run.open_parts())
    run = tw.compile(speech(), threads=1, specialize="never")
    for feed in texts()[:3]:
        run.specialize(feed)
    with pytest.raises(tw.errors.InputError, match="there is no program for"):
        run(texts()[3])


def test_a_saved_model_has_them(tmp_path):
    made = speech()
    run = tw.compile(made, threads=1)
    compared(run, made, texts()[:2])
    run.save(tmp_path / "speech.tw")
    again = tw.load(tmp_path / "speech.tw", threads=1)
    assert compared(again, made, texts()) == [0] * 10
    again.save(tmp_path / "again.tw")
    assert len(list(tw.load(tmp_path / "again.tw", threads=1).open_parts())) == 2


def test_a_loaded_model_makes_them(tmp_path):
    made = speech()
    run = tw.compile(made, threads=1)
    compared(run, made, texts()[:1])
    run.save(tmp_path / "speech.tw")
    assert compared(tw.load(tmp_path / "speech.tw", threads=1), made, texts()) == [0] + [2] * 9


def test_a_profile_is_of_programs_for_its_sizes():
    made = speech()
    run = tw.compile(made, threads=1)
    compared(run, made, texts()[:3])
    assert run.profile(texts()[2], repeats=1).kernels and run.compiled == 4 + 2


# ---- sizes of runs, and what they have in common ----


def test_keys_are_split_in_sizes_and_the_rest():
    f32, i64 = np.dtype(np.float32), np.dtype(np.int64)
    shape = np.array([4, 7])
    key = (frozenset({"n"}), (f32, (1, 7), None), (i64, (2,), shape.tobytes()), EmbeddedConstant(np.array([9])), None)
    same, numbers = split(key)
    assert numbers == (1, 7, 4, 7, 9)
    assert same == (frozenset({"n"}), ("array", f32, 2), ("value", i64, (2,)), ("const", i64, (1,)), None)
    other = (f32, (), np.array(0.5, np.float32).tobytes())  # no number of that kind is a size
    assert split((frozenset(), other)) == ((frozenset(), other), ())


def test_sizes_that_grow_alike_are_related_where_that_is_asked_for():
    runs = [(8, 5, 6, 10), (8, 7, 8, 14)]
    assert SizePattern.of(runs).terms == (8, Term(0), Term(1), Term(2))
    related = SizePattern.of(runs, related=True)
    assert related.terms == (8, Term(0), Term(0, 1, 1), Term(0, 2)) and related.dims == (Dim("d0", 1, 112),)
    assert related.sizes((8, 9, 10, 18)) == {"d0": 9}
    for numbers in ((8, 9, 11, 18), (7, 9, 10, 18), (8, 9, 10, 19), (8, 113, 114, 226)):
        assert related.sizes(numbers) is None
    assert SizePattern.of([*runs, (8, 9, 11, 18)], related=True).terms == (8, Term(0), Term(1), Term(0, 2))
    assert SizePattern.of([(5, 2), (7, 4)], related=True).dims == (Dim("d0", 4, 112),), "the other one is a size too"


def test_ranges_begin_near_what_was_seen_where_that_is_asked_for():
    assert SizePattern.of([(12, 3), (40, 3)], near=True).dims == (Dim("d0", 8, 640),)
    assert SizePattern.of([(3, 3), (3, 3)]) is None
    assert SizePattern.of([(0, 3), (5, 3)]) is None
