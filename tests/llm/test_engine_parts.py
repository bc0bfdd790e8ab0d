"""What the engine does beside choosing tokens: grammars, stop strings, drafts, errors, saved prompts, order."""

import gc
import json
import threading

import numpy as np
import pytest
from llm.fake_runner import ByteTokenizer, FakeRunner

from tilewright.llm.engine.drafts import DraftModel, PromptLookup, SharedText, SuffixAutomaton
from tilewright.llm.engine.engine import LLMEngine
from tilewright.llm.engine.grammar import Grammars
from tilewright.llm.engine.speculation import AcceptanceRate, CostCurve, lengths
from tilewright.llm.engine.text import Text
from tilewright.llm.llm import LLM
from tilewright.llm.request import GenerationRequest, Grammar, Sampling
from tilewright.support.errors import PackageError, TilewrightError, UsageError

GREEDY = Sampling(max_tokens=20, temperature=0)


def joined(stream):
    pieces = list(stream)
    return "".join(p.text for p in pieces), [t for p in pieces for t in p.tokens], pieces[-1]


def free(engine):
    """All pages and snapshots are free once the tree is emptied."""
    engine.call(lambda: (engine.cache.clear(), engine.cache.check()))
    return len(engine.cache.free) == engine.limits.pages and not engine.metrics()["running"]


def submit_all(engine, requests):
    """In one go, so that the first step has them all."""
    held, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: engine.call(lambda: (held.set(), go.wait(10))))
    thread.start()
    held.wait(10)
    streams = [engine.submit(r) for r in requests]
    go.set()
    thread.join()
    return streams


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("choice", '["yes", "no \\u00e9"]', lambda t: t in ("yes", "no é")),
        ("regex", "[0-9]{3}-[a-c]+x", lambda t: t[:3].isdigit() and t[3] == "-"),
        ("json_schema", '{"type": "object", "properties": {"ab": {"enum": [17, 25]}}, "required": ["ab"], '
         '"additionalProperties": false}', lambda t: json.loads(t)["ab"] in (17, 25)),
        ("lark", 'start: "a" ("b" | "c")~3', lambda t: t[0] == "a" and len(t) == 4),
    ],
)  # fmt: skip
def test_texts_follow_their_grammar_and_drafts_do_not_matter(kind, text, right):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    runner, tokenizer, texts = FakeRunner(), ByteTokenizer(), []
    for most in (0, 15):
        with LLMEngine(runner, tokenizer, draft_tokens=most) as engine:
            engine._speculator.lengths = lambda cost, tokens, texts, drafts, room: [n for _, n, _ in drafts]
            for temperature in (0, 1.0):
                sampling = Sampling(max_tokens=60, temperature=temperature, seed=3, grammar=Grammar(kind, text))
                found, _, last = joined(engine.submit(GenerationRequest(list(b"tell me"), sampling)))
                assert last.finish_reason == "stop" or (kind == "regex" and last.finish_reason == "length")
                assert right(found)
                texts.append(found)
            assert free(engine)
    assert texts[:2] == texts[2:]


def test_json_has_no_endless_space():
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    grammars = Grammars(ByteTokenizer(), 258)
    for grammar in (Grammar("json_object"), Grammar("json_schema", '{"type": "object"}')):
        for text, more in ((b"{\n", True), (b"{\n  ", True), (b"{\n\n", False), (b"{ ", True), (b"{  ", False)):
            assert (grammars.compile(grammar).allowed(text) == len(text)) == more
        text = json.dumps({"a": [1, {"b": None}]}, indent=4).encode()
        assert grammars.compile(grammar).allowed(text) == len(text)


def test_a_bad_grammar_ends_its_request_only():
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    runner, tokenizer = FakeRunner(), ByteTokenizer()
    bad = [("regex", "(("), ("lark", "start: foo ("), ("json_schema", "{"), ("json_schema", '{"type": "x"}'),
           ("choice", "3"), ("other", ""), ("regex", "a" * 300_000), ("json_schema", '{"$ref": "#/no"}')]  # fmt: skip
    with LLMEngine(runner, tokenizer) as engine:
        good = engine.submit(GenerationRequest([1, 2], GREEDY))
        streams = [engine.submit(GenerationRequest([1], Sampling(grammar=Grammar(*b)))) for b in bad]
        for stream, (kind, text) in zip(streams, bad, strict=True):
            *_, last = stream
            assert last.finish_reason == "error" and "grammar" in last.error, (kind, text[:20])
        assert joined(good)[1] == runner.greedy([1, 2], 20, tokenizer.eos)
        assert engine.metrics()["requests_failed"] == len(bad) and free(engine)


def test_stop_strings_and_tokens():
    runner, tokenizer = FakeRunner(), ByteTokenizer()
    plain = bytes(runner.greedy([5, 6], 20)).decode("latin1")
    stop, token = plain[7:10], ord(plain[6])
    with LLMEngine(runner, tokenizer) as engine:
        sampling = Sampling(max_tokens=20, temperature=0, stop=["never", stop])
        text, tokens, last = joined(engine.submit(GenerationRequest([5, 6], sampling)))
        assert text == plain[: plain.index(stop)] and last.stop == stop and last.finish_reason == "stop"
        assert len(tokens) == plain.index(stop) + 3
        sampling = Sampling(max_tokens=20, temperature=0, stop_tokens=[token])
        text, tokens, last = joined(engine.submit(GenerationRequest([5, 6], sampling)))
        assert text == plain[: plain.index(chr(token))] and last.stop == token == tokens[-1]


def test_special_tokens_are_in_the_text_where_asked_for():
    runner, tokenizer = FakeRunner(), ByteTokenizer()
    plain = runner.greedy([5, 6], 20)
    tokenizer.special = frozenset(plain[4:5])
    with LLMEngine(runner, tokenizer) as engine:
        for skip, want in ((False, plain), (True, [t for t in plain if t != plain[4]])):
            sampling = Sampling(max_tokens=20, temperature=0, skip_special_tokens=skip)
            assert joined(engine.submit(GenerationRequest([5, 6], sampling)))[0] == bytes(want).decode()


def test_no_part_of_a_stop_string_is_shown_and_characters_are_whole():
    text, data = Text(["xyz", "yy"]), "ä€😀 xyxy xyz".encode()
    pieces = [text.push(data[i : i + 1]) for i in range(len(data))]
    assert "".join(pieces) == "ä€😀 xyxy " and text.stopped == "xyz" and "" in pieces
    held = Text(["xyz"])
    assert held.push(b"a xy") == "a " and held.finish() == "xy"


def test_logprobs_of_text_and_prompt():
    runner = FakeRunner(tokens=8)
    prompt = list(range(97, 115))
    with LLMEngine(runner, ByteTokenizer()) as engine:
        for _ in range(2):  # the second time the prompt is in the tree
            sampling = Sampling(max_tokens=3, temperature=0, logprobs=2, prompt_logprobs=0)
            first, *rest = engine.submit(GenerationRequest(prompt, sampling))
            entries = [e for p in (first, *rest) for e in p.logprobs]
            tokens = [t for p in (first, *rest) for t in p.tokens]
            assert [e.token for e in first.prompt_logprobs] == prompt[1:] and not any(p.prompt_logprobs for p in rest)
            for i, entry in enumerate([*first.prompt_logprobs, *entries], 1):
                x = runner.logits([*prompt, *tokens][:i]).astype(np.float64)
                want = x - x.max() - np.log(np.exp(x - x.max()).sum())
                assert abs(entry.logprob - want[entry.token]) < 1e-4
            assert [len(e.top) for e in entries] == [2, 2, 2] and entries[0].top[0][0] == tokens[0]


@pytest.mark.parametrize("snapshots", [0, 20])
def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(snapshots):
    runner, tokenizer = FakeRunner(snapshots=snapshots), ByteTokenizer()
    with LLMEngine(runner, tokenizer) as engine:
        runner.raises.add(3)
        streams = submit_all(engine, [GenerationRequest([i, 2], GREEDY) for i in range(3)])
        assert all(joined(s)[2].finish_reason == "error" for s in streams)
        assert joined(engine.submit(GenerationRequest([1, 2], GREEDY)))[1] == runner.greedy([1, 2], 20, tokenizer.eos)
        assert engine.metrics()["requests_failed"] == 3 and free(engine)


def test_requests_with_one_prompt_compute_it_once():
    for snapshots, cached in ((0, 39), (40, 36)):
        runner = FakeRunner(snapshots=snapshots, tokens=16)
        prompt = list(range(100, 140))
        with LLMEngine(runner, ByteTokenizer(), draft_tokens=0) as engine:
            streams = submit_all(engine, [GenerationRequest(prompt, Sampling(max_tokens=2, temperature=0))] * 4)
            assert [joined(s)[2].cached for s in streams] == [0, cached, cached, cached]
            assert engine.metrics()["step_tokens"] < 40 + 3 * 4 + 4 * 2


def test_what_was_said_before_is_reused_by_the_next_turn():
    for snapshots in (0, 40):
        runner = FakeRunner(snapshots=snapshots)
        with LLMEngine(runner, ByteTokenizer()) as engine:
            prompt = list(b"first question")
            _, answer, _ = joined(engine.submit(GenerationRequest(prompt, GREEDY)))
            turn = [*prompt, *answer, *b"second"]
            last = joined(engine.submit(GenerationRequest(turn, GREEDY)))
            assert last[2].cached == len(prompt) + len(answer) - 1 and last[1] == runner.greedy(turn, 20, {257})


@pytest.mark.parametrize("snapshots", [0, 9])
def test_a_prompt_is_saved_and_restored(tmp_path, snapshots):
    prompt, other = list(b"a long system prompt, "), FakeRunner(snapshots=snapshots, seed=1)
    runner = FakeRunner(snapshots=snapshots)
    with LLM.of(runner, ByteTokenizer()) as llm:
        llm.save_prefix(prompt, tmp_path / "state")
    again = FakeRunner(snapshots=snapshots)
    with LLM.of(again, ByteTokenizer()) as llm:
        assert llm.load_prefix(tmp_path / "state") == prompt
        found = llm.generate([[*prompt, *b"and more"]], GREEDY)[0]
        assert found.cached == len(prompt) and list(found.tokens) == runner.greedy([*prompt, *b"and more"], 20, {257})
        (tmp_path / "cut").write_bytes((tmp_path / "state").read_bytes()[:-100])
        (tmp_path / "text").write_text("text")
        for name in ("cut", "text"):
            with pytest.raises(PackageError):
                llm.load_prefix(tmp_path / name)
        with pytest.raises(UsageError, match="cannot read"):
            llm.load_prefix(tmp_path / "missing")
        assert free(llm.engine)
    with LLM.of(other, ByteTokenizer()) as llm, pytest.raises(PackageError, match="another model"):
        llm.load_prefix(tmp_path / "state")


def test_priorities_go_first_and_nobody_waits_for_ever():
    runner = FakeRunner(sequences=1)
    engine = LLMEngine(runner, ByteTokenizer(), start=False, patience=10.0)
    short = Sampling(max_tokens=2, temperature=0)
    streams = [engine.submit(GenerationRequest([i + 1], short, priority=p)) for i, p in enumerate((2, 1, 0, -1))]
    order: list[int] = []
    for _ in range(20):
        engine._iterate(wait=False)
        order += [i for i, s in enumerate(streams) if s._mailbox.done and i not in order]
    assert order == [3, 2, 1, 0]
    engine.patience = 0.0  # a point of priority is worth no time: who came first goes first
    late = [engine.submit(GenerationRequest([1], short, priority=p)) for p in (5, 0, -5)]
    assert [s.key[1] for s in sorted(engine._inbox, key=lambda s: s.key)] == [4, 5, 6] and late
    engine.close()


def test_cancelling_letting_go_and_closing():
    runner, tokenizer = FakeRunner(context=4000, pages=1000), ByteTokenizer()
    forever = Sampling(max_tokens=3900, temperature=0, ignore_eos=True)
    with LLMEngine(runner, tokenizer) as engine:
        stream = engine.submit(GenerationRequest([1], forever))
        next(stream)
        stream.cancel()
        assert joined(stream)[2].finish_reason == "cancelled"
        stream = engine.submit(GenerationRequest([2], forever))
        next(stream)
        del stream
        gc.collect()
        engine.call(lambda: None)
        engine.call(lambda: None)
        assert engine.metrics()["requests_cancelled"] == 2 and free(engine)
        stream = engine.submit(GenerationRequest([3], forever))
        next(stream)
    assert joined(stream)[2].finish_reason == "cancelled"
    assert not engine._thread.is_alive()
    with pytest.raises(UsageError, match="closed"):
        engine.submit(GenerationRequest([1]))


def test_closing_does_not_wait_for_ever():
    runner, begun, go = FakeRunner(), threading.Event(), threading.Event()
    step = runner.step
    runner.step = lambda batch: (begun.set(), go.wait(10), step(batch))[2]
    engine = LLMEngine(runner, ByteTokenizer())
    stream = engine.submit(GenerationRequest([1], GREEDY))
    assert begun.wait(10)
    with pytest.raises(TilewrightError, match="did not end"):
        engine.close(timeout=0.05)
    go.set()
    assert joined(stream)[2].finish_reason == "cancelled"
    engine.close()


def test_a_fault_of_the_engine_leaves_nobody_waiting(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    engine = LLMEngine(FakeRunner(), ByteTokenizer())
    stream = engine.submit(GenerationRequest([1], Sampling(max_tokens=100, temperature=0, ignore_eos=True)))
    next(stream)
    engine._scheduler.plan = lambda: 1 / 0
    assert "division" in joined(stream)[2].error
    with pytest.raises(UsageError, match="closed"):
        engine.submit(GenerationRequest([1]))


def test_drafts_come_from_what_was_there_before():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4, 300).tolist()
    text = SuffixAutomaton()
    for i, token in enumerate(tokens, 1):
        text.extend(token)
        end, length = text.repeated()
        assert tokens[end - length : end] == tokens[i - length : i] and end < i
        longer = str(tokens[i - length - 1 : i])[1:-1]
        assert i - length < 1 or longer not in str(tokens[: i - 1])  # none longer
    shared = SharedText(limit=50)
    shared.add([1, 2, 3, 4, 5])
    lookup = PromptLookup([9, 2], shared)
    assert lookup.propose([9, 2, 3], 4) == ([4, 5], 2)
    shared.add(list(range(60)))  # begins anew
    assert lookup.propose([9, 2, 3, 7], 2) in (([8, 9], 1), ([], 0))
    assert lookup.propose([9, 2, 3, 7, 20, 21], 2) == ([22, 23], 2)


def test_drafts_are_as_long_as_pays():
    def curve(*known):
        cost = CostCurve()
        for _ in range(3):
            for tokens, ms in known:
                cost.add(tokens, ms)
        return cost

    flat, steep = curve((1, 10.0), (4, 10.5), (8, 20.0), (16, 20.5)), curve((1, 10.0), (2, 20.0), (16, 160.0))
    assert lengths(flat, 1, 1, [(0.8, 15, 0.0)], 15) == [3]
    assert lengths(flat, 1, 1, [(0.97, 15, 0.0)], 15) == [15]
    assert lengths(flat, 1, 1, [(0.2, 15, 0.0)], 15)[0] <= 3
    assert lengths(flat, 1, 1, [(0.01, 15, 0.0)], 15) == [0]
    assert lengths(steep, 1, 1, [(0.95, 15, 0.0)], 15) == [0]
    assert lengths(flat, 1, 1, [(0.8, 15, 1.0)], 15) == [0]  # the drafter is as slow as the model
    assert lengths(curve((2, 10.0), (4, 10.5), (16, 90.0)), 2, 2, [(0.9, 9, 0.0), (0.3, 9, 0.0)], 14) == [2, 0]
    slow = CostCurve()  # a size that was measured once, in a bad moment
    for tokens, ms in ((1, 10.0), (1, 10.0), (2, 900.0), *[(1, 10.0)] * 40):
        slow.add(tokens, ms)
    assert slow(2) < 1.5 and lengths(slow, 1, 1, [(0.95, 15, 0.0)], 15)[0] > 0
    rate = AcceptanceRate()
    for _ in range(100):
        rate.add(0, 1)
    assert rate() < 0.1
    for _ in range(600):
        rate.forget()
    assert rate() > 0.25  # tried again some day


def test_a_draft_model_that_agrees_is_mostly_right_and_changes_nothing():
    runner, small = FakeRunner(habit=0.5), FakeRunner(habit=0.5)  # the same model: every draft is right
    other = FakeRunner(habit=0.5, seed=1)
    sampling = [Sampling(max_tokens=40, temperature=t, seed=7, ignore_eos=True) for t in (0, 1.0)]
    found = {}
    for name, model in (("none", None), ("same", small), ("other", other)):
        drafter = None if model is None else DraftModel(model)
        with LLMEngine(runner, ByteTokenizer(), lookup=False, drafter=drafter) as engine:
            engine._speculator.lengths = lambda cost, tokens, texts, drafts, room: [min(n, 4) for _, n, _ in drafts]
            tokens = [joined(s)[1] for s in [engine.submit(GenerationRequest([1, 2, 3], s)) for s in sampling]]
            metrics = engine.metrics()
        found[name] = tokens, metrics["draft_tokens"], metrics["draft_tokens_accepted"]
    assert found["none"][0] == found["same"][0] == found["other"][0]
    assert found["same"][1] == found["same"][2] > 50 and 0 < found["other"][2] < found["other"][1]
    with pytest.raises(UsageError, match="recurrent"):
        DraftModel(FakeRunner(snapshots=3))


def test_a_drafter_that_fails_is_left_out_and_one_for_hidden_states_gets_them():
    seen = []

    class Heads:
        hidden = True

        def propose(self, asked):
            seen.extend(a.hidden for a in asked)
            if len(seen) > 5:
                raise RuntimeError("no more")
            return [[97] * a.count for a in asked]

        def forget(self, sequence):
            pass

    runner = FakeRunner()
    with LLMEngine(runner, ByteTokenizer(), lookup=False, drafter=Heads()) as engine:
        engine._speculator.lengths = lambda cost, tokens, texts, drafts, room: [min(n, 2) for _, n, _ in drafts]
        with pytest.warns(RuntimeWarning, match="no more"):
            assert joined(engine.submit(GenerationRequest([1], GREEDY)))[1] == runner.greedy([1], 20, {257})
    assert seen[0] is None and all(h.shape[1] == 4 for h in seen[1:]) and engine.drafter is None


def test_text_of_python():
    runner, tokenizer = FakeRunner(), ByteTokenizer()
    with LLM.of(runner, tokenizer, queue=2) as llm:
        one = llm.generate("one", GREEDY)
        assert str(one) == bytes(runner.greedy(tokenizer.encode("one", True), 20, {257})).decode() and one.prompt == 4
        many = llm.generate([f"text {i}" for i in range(12)], GREEDY)  # more than may wait
        assert many[3].text == llm.generate("text 3", GREEDY).text
        said = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
        assert said.text == "".join(p.text for p in llm.stream([{"role": "user", "content": "hi"}], GREEDY))
        a = llm.embed("one")
        b = llm.embed(["one", "other"])
        assert b.shape == (2, 4) and np.array_equal(a, b[0]) and not np.array_equal(b[0], b[1])
        runner.raises.add(runner.steps)
        with pytest.raises(TilewrightError, match="fails"):
            llm.generate("x", GREEDY)


def simulated(habit, ms, most, sequences):
    """Milliseconds of 300 tokens for each of some requests on a machine where a step of t tokens takes ms(t), give or
    take a tenth."""
    runner = FakeRunner(habit=habit, context=512, pages=400, page_length=16, tokens=64)
    engine = LLMEngine(runner, ByteTokenizer(), draft_tokens=most, start=False)
    rng, spent, add = np.random.default_rng(0), [], engine._speculator.cost.add

    def measured(tokens, _):
        spent.append(ms(tokens) * rng.uniform(0.95, 1.15))
        add(tokens, spent[-1])

    engine._speculator.cost.add = measured
    sampling = Sampling(max_tokens=300, temperature=0, ignore_eos=True)
    streams = [engine.submit(GenerationRequest([i, 1, 2, 3], sampling)) for i in range(sequences)]
    while engine._inbox or engine._busy():
        engine._iterate(wait=False)
    assert engine.metrics()["generated_tokens"] == 300 * len(streams)
    engine.close()
    return sum(spent)


@pytest.mark.parametrize("sequences", [1, 4])
def test_speculation_pays_or_is_left_out(sequences):
    """Text that repeats itself: at least 1.8 times as fast where four rows cost 1.3 times one. Text that does not, and
    machines on which rows cost what they bring: never below 0.97."""
    curves = {
        "memory": lambda t: 10 * (1 + 0.1 * (t - 1)) if t <= 16 else 40 + t,
        "compute": lambda t: 10 * t if t <= 16 else 160 + t,
        "steps": lambda t: 10.0 * -(-t // 4) if t <= 16 else 50 + t,
    }
    for name, ms in curves.items():
        plain = [simulated(habit, ms, 0, sequences) for habit in (0, 0.8, 2)]
        random, mixed, repeated = [p / simulated(h, ms, 15, sequences) for h, p in zip((0, 0.8, 2), plain, strict=True)]
        assert min(random, mixed, repeated) > 0.97, (name, random, mixed, repeated)
        if name == "memory" and sequences == 1:
            assert repeated > 1.8
