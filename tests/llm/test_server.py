"""The server against clients that are wrong, gone, too many or too early, and the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from llm.script_runner import ChatTokenizer, ScriptRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

httpx = pytest.importorskip("httpx", reason="needs httpx: tilewright[llm]")
pytest.importorskip("starlette", reason="needs starlette: tilewright[llm]")

from tilewright.llm.engine.engine import LLMEngine  # noqa: E402
from tilewright.llm.server import responding  # noqa: E402
from tilewright.llm.server.app import make_app  # noqa: E402
from tilewright.llm.server.batching import Batcher, open_batch  # noqa: E402
from tilewright.llm.server.language import Language  # noqa: E402
from tilewright.llm.server.loading import load_others  # noqa: E402
from tilewright.llm.server.run import listen  # noqa: E402
from tilewright.llm.server.sampling import ServerLimits  # noqa: E402


def run(app, work):
    """Call `work` with a client of an application, without a socket."""

    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60) as client:
            return await work(client)

    return asyncio.run(main())


def small(seconds=0.0, queue=256, limits=None, answers=None, **more):
    engine = LLMEngine(ScriptRunner(answers or {}, seconds, **more), ChatTokenizer(), queue=queue)
    limits = limits or ServerLimits(body=20_000)
    return engine, Language("tiny", engine, ChatTokenizer(), 512, limits, tools="hermes")


def all_free(engine):
    for _ in range(500):
        if not engine.metrics()["running"] + engine.metrics()["waiting"]:
            break
        time.sleep(0.01)
    engine.call(engine.cache.clear)
    return len(engine.cache.free) == engine.limits.pages


# ---- malformed requests ----

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
GOOD = {
    "/v1/completions": {
        "model": "tiny", "prompt": "ab", "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "n": 1, "stop": ["q"],
        "logit_bias": {"5": 1}, "seed": 1, "stream": False, "logprobs": 1, "presence_penalty": 0.1,
    },
    "/v1/chat/completions": {
        "model": "tiny", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "max_tokens": 2, "temperature": 0.5, "n": 1, "tools": [TOOL], "tool_choice": "auto", "stream": False,
        "response_format": {"type": "text"}, "top_k": 3, "chat_template_kwargs": {},
    },
    "/v1/responses": {
        "model": "tiny", "input": [{"role": "user", "content": "a"}], "max_output_tokens": 2, "stream": False,
        "instructions": "b", "tools": [{"type": "function", "name": "add", "parameters": {}}], "store": False,
        "text": {"format": {"type": "text"}},
    },
    "/v1/embeddings": {"model": "tiny", "input": ["a"], "encoding_format": "float"},
}  # fmt: skip
JUNK = (
    *(-1, 1e400, float("nan"), 2**70, "", "x" * 3000, True, [], {}, [[]], [None], [-1], [10**9], {"a": {}}, "\ud800"),
    *("\0", 0.5, [1.5], {"type": "image_url"}, [{"type": "image_url", "image_url": {"url": "x"}}], {"role": "user"}),
)


def places(value, path=()):
    """The paths of all values within a body."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def damaged(random_: random.Random, body):
    """A body with one to three values replaced, removed or added."""
    made = json.loads(json.dumps(body))
    for _ in range(random_.randrange(1, 4)):
        path = random_.choice([p for p in places(made) if p])
        holder = made
        for key in path[:-1]:
            holder = holder[key]
        how = random_.randrange(4)
        if how == 0 and isinstance(holder, dict):
            del holder[path[-1]]
        elif how == 1 and isinstance(holder, dict):
            holder["strange"] = copy.deepcopy(random_.choice(JUNK))
        else:
            holder[path[-1]] = copy.deepcopy(random_.choice(JUNK))
        if not made:
            break
    return json.dumps(made)


def broken_text(random_: random.Random, body) -> bytes:
    """Bytes that are no JSON object, or hardly one."""
    text = json.dumps(body).encode()
    cut = random_.randrange(len(text))
    return random_.choice(
        [
            *(text[:cut], b"", b"null", b"[]", b"7", b"\xff\xfe" + text, text + b"}", b"[" * 5000, b'{"a":' * 3000),
            text[:cut] + bytes([random_.randrange(256)]) + text[cut:],
            b'{"prompt": "' + b"x" * 30_000 + b'"}',
            b'{"n": 1' + b"0" * 6000 + b"}",
        ]
    )


def test_malformed_requests_are_client_errors():
    """By seed; whatever is no error is an answer, and no page is lost."""
    random_ = random.Random(1)
    engine, language = small()
    app = make_app(language)

    async def work(client):
        counts: dict[int, int] = {}
        for number in range(1200):
            route = random_.choice(list(GOOD))
            content = damaged(random_, GOOD[route]) if number % 4 else broken_text(random_, GOOD[route])
            headers = {"content-type": "application/json"}
            if number % 50 == 7:
                headers = {"content-type": random_.choice(["text/plain", "multipart/form-data", ""])}
            answer = await client.post(route, content=content, headers=headers)
            counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert error["message"] and error["type"] != "server_error", (content, error)
                assert "Traceback" not in error["message"] and len(error["message"]) < 700
        for route, status in (("/v1/nothing", 404), ("/v1/responses/x", 404), ("/v1/models/x", 404)):
            assert (await client.get(route)).status_code == status
        assert (await client.get("/v1/completions")).status_code == 405
        for route, body in GOOD.items():
            assert (await client.post(route, json=body)).status_code == 200, route
        return counts

    with engine:
        counts = run(app, work)
        assert all_free(engine)
    assert set(counts) <= {200, 400, 404, 413, 415}, counts
    assert sum(n for status, n in counts.items() if status != 200) > 1000, counts


def test_limits_keys_and_ready():
    engine, language = small(limits=ServerLimits(body=200, max_tokens=10, n=2, stops=1))
    app = make_app(language, api_key="s3cret")

    async def work(client):
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        wrong = {"authorization": "Bearer s3cre"}
        assert (await client.get("/metrics", headers=wrong)).headers["www-authenticate"] == "Bearer"
        client.headers["authorization"] = "Bearer s3cret"

        async def status(**body):
            return (await client.post("/v1/completions", json={"prompt": "a", **body})).status_code

        assert await status(max_tokens=10) == 200 and await status(max_tokens=11) == 400
        assert await status(n=3) == 400 and await status(stop=["a", "b"]) == 400
        assert await status(prompt="a" * 300) == 413
        text = (await client.get("/metrics")).text
        assert 'tilewright_http_requests_total{route="/v1/completions",status="200"} 1.0' in text
        assert 'status="401"} 2.0' in text and "tilewright_engine_pages 1024.0" in text
        assert "tilewright_engine_generated_tokens_total 10.0" in text
        assert 'tilewright_engine_time_to_first_token_seconds_bucket{le="+Inf"} 1.0' in text

    with engine:
        run(app, work)


def test_names_of_the_server():
    app = make_app(models={}, hosts=("127.0.0.1", "[::1]"))

    async def work(client):
        for host, status in (
            ("127.0.0.1", 200),
            ("127.0.0.1:80", 200),
            ("[::1]:9", 200),
            ("evil.test", 403),
            ("", 403),
        ):
            assert (await client.get("/health", headers={"host": host})).status_code == status

    run(app, work)


def test_an_error_of_the_model_is_one_answer():
    engine, language = small()
    engine.runner.raises = {1}

    async def work(client):
        ask = {"prompt": "a", "max_tokens": 5}
        failed = await client.post("/v1/completions", json=ask)
        assert failed.status_code == 500 and failed.json()["error"]["code"] == "generation_failed"
        engine.runner.raises = {engine.runner.steps + 1}
        stream = await client.post("/v1/completions", json={**ask, "stream": True})
        events = [json.loads(line[6:]) for line in stream.text.split("\n\n") if line[:7] == "data: {"]
        assert events[-1]["error"]["code"] == "generation_failed" and stream.text.endswith("data: [DONE]\n\n")
        assert (await client.post("/v1/completions", json=ask)).status_code == 200

    with engine:
        run(make_app(language), work)
        assert all_free(engine)


def test_a_full_queue_says_when_to_come_again():
    engine, language = small(seconds=0.01, queue=2, sequences=1)

    async def work(client):
        ask = {"prompt": "a", "max_tokens": 20}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=ask) for _ in range(8)))
        statuses = sorted(a.status_code for a in answers)
        assert set(statuses) == {200, 429} and statuses.count(200) >= 3
        full = next(a for a in answers if a.status_code == 429)
        assert int(full.headers["retry-after"]) >= 1 and full.json()["error"]["code"] == "queue_full"
        several = await client.post("/v1/completions", json={**ask, "n": 8})  # those that fitted are taken back
        assert several.status_code == 429

    with engine:
        run(make_app(language), work)
        assert all_free(engine)


def test_time_is_limited():
    engine, language = small(seconds=0.02, limits=ServerLimits(seconds=0.2, read_seconds=0.1))

    async def work(client):
        ask = {"prompt": "a", "max_tokens": 500, "ignore_eos": True}
        late = await client.post("/v1/completions", json=ask)
        assert late.status_code == 504 and late.json()["error"]["code"] == "timeout"
        stream = await client.post("/v1/completions", json={**ask, "stream": True})
        assert '"code":"timeout"' in stream.text and stream.text.count("data: ") > 3

        async def slow():
            yield b'{"prompt": '
            await asyncio.sleep(1)
            yield b'"a"}'

        headers = {"content-type": "application/json"}
        assert (await client.post("/v1/completions", content=slow(), headers=headers)).status_code == 408

    with engine:
        run(make_app(language), work)
        assert all_free(engine)


def test_a_client_that_stops_reading_ends_its_request(monkeypatch):
    monkeypatch.setattr(responding, "LAST_SECONDS", 0.05)
    ended = []

    async def main():
        stack = AsyncExitStack()
        stack.callback(ended.append, True)

        async def events():
            while True:
                yield b"data: 1\n\n"

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await asyncio.wait_for(responding.Events(stack, events(), 0.05)({}, receive, send), 10)

    asyncio.run(main())
    assert ended


def test_halves_of_pairs_within_arguments():
    """JSON within a text of JSON: what a client sends, and what a model writes."""
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": "\\ud800"}'}}
    said = '<tool_call>{"name": "\\ud800", "arguments": "\\ud800"}</tool_call>'
    engine, language = small(answers={"go": said})

    async def work(client):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
        wrong = await client.post("/v1/chat/completions", json={"messages": messages})
        assert wrong.status_code == 400 and "arguments" in wrong.json()["error"]["param"]
        for route, ask in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "go"}], "tools": [TOOL]}),
            ("/v1/responses", {"input": "go", "tools": [{"type": "function", "name": "add"}]}),
        ):
            for stream in (False, True):
                answer = await client.post(route, json={**ask, "stream": stream})
                assert answer.status_code == 200 and "error" not in answer.text.replace('"error":null', ""), answer.text

    with engine:
        run(make_app(language), work)


# ---- a real socket ----


def test_pieces_are_sent_at_once():
    """Nagle's algorithm is off: with it a piece waits until the one before is acknowledged, 40 ms and more."""
    found = asyncio.Queue()

    async def accepted(_, writer):
        await found.put(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def work():
        server = await asyncio.start_server(accepted, sock=listen("127.0.0.1", 0))
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await found.get()
        writer.close()
        server.close()

    asyncio.run(work())


SERVER = """
import sys
sys.path.insert(0, {tests!r})
from llm.script_runner import ChatTokenizer, ScriptRunner
from tilewright.llm.engine.engine import LLMEngine
from tilewright.llm.server.app import make_app
from tilewright.llm.server.language import Language
from tilewright.llm.server.run import listen, serve

engine = LLMEngine(ScriptRunner(seconds=0.02), ChatTokenizer())
sock = listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
app = make_app(Language("tiny", engine, ChatTokenizer(), 512), on_close=engine.close)
serve(app, sock, limit=3.0, stop=engine.close)
print("steps", engine.runner.steps, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM")
def test_hang_ups_and_the_end_under_load():
    """A client that goes frees its pages; SIGTERM lets short answers finish and ends long ones with an error."""
    tests = str(Path(__file__).resolve().parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(tests=tests)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(tests).parent), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        assert process.stdout is not None
        base = f"http://127.0.0.1:{int(process.stdout.readline())}"

        def number(name: str) -> float:
            lines = httpx.get(base + "/metrics").text.splitlines()
            return float(next(line for line in lines if line.startswith(f"tilewright_engine_{name} ")).split()[1])

        long = {"prompt": "a", "max_tokens": 500, "ignore_eos": True}
        with httpx.stream("POST", base + "/v1/completions", json={**long, "stream": True}, timeout=30) as stream:
            lines = stream.iter_lines()  # a stream that is let go is closed
            next(lines)
            assert number("running") == 1 and number("pages_used") >= 1
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(base + "/v1/completions", json=long, timeout=0.3)
        for _ in range(200):
            if number("requests_cancelled_total") == 2:
                break
            time.sleep(0.02)
        assert number("requests_cancelled_total") == 2 and number("running") == 0
        assert number("pages_used") == 0

        async def load():
            async with httpx.AsyncClient(base_url=base, timeout=30) as client:

                async def one(**more):
                    answer = await client.post("/v1/completions", json={**long, **more})
                    return answer.status_code, answer.text

                tasks = [asyncio.ensure_future(one(**m)) for m in ({}, {"stream": True}, {"max_tokens": 30})]
                await asyncio.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                return await asyncio.gather(*tasks)

        whole, stream_, short = asyncio.run(load())
        assert whole[0] == 503 and "shutting down" in whole[1]
        assert stream_[0] == 200 and "shutting down" in stream_[1]
        assert short[0] == 200 and '"length"' in short[1]
        assert process.wait(10) == 0 and "steps" in process.stdout.read()
    finally:
        process.kill()
        process.wait()


# ---- the Open Inference Protocol ----


def model(batch="b"):
    """y[b, r] = x[b] @ w[:, ids[b, r]]: an index out of range is an error of one request."""
    w = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("GatherElements", ["h", "ids"], ["y"], axis=1),
        ],
        "model",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, 2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), w


@pytest.fixture(scope="module")
def open_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("oip") / "m.tw"
    source, w = model()
    tw.compile(source, inputs={"x": (tw.Dim("b", 1, 64), 4), "ids": ("b", 2)}, threads=1, check_indices=True).save(path)
    return tw.load(path), w


def tensors(x, ids):
    return [
        {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()},
        {"name": "ids", "shape": list(ids.shape), "datatype": "INT64", "data": ids.reshape(-1).tolist()},
    ]


def test_inference_protocol_with_batches(open_model):
    executable, w = open_model
    assert open_batch(executable) == tw.Dim("b", 1, 64)
    batcher = Batcher(executable, most=16, delay=0.05)
    random_ = np.random.default_rng(1)
    cases = [
        (random_.standard_normal((n, 4)).astype(np.float32), random_.integers(0, 3, (n, 2)))
        for n in random_.integers(1, 5, 24)
    ]
    cases[5][1][0, 0] = 9  # out of range: an error of this request alone

    async def work(client):
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        described = (await client.get("/v2/models/m")).json()
        assert described["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
        assert (await client.get("/v2/models/m/ready")).status_code == 200
        assert (await client.get("/v2/models/other")).status_code == 404
        bodies = [{"inputs": tensors(*c), "id": str(i)} for i, c in enumerate(cases)]
        answers = await asyncio.gather(*(client.post("/v2/models/m/infer", json=b) for b in bodies))
        for i, ((x, ids), answer) in enumerate(zip(cases, answers, strict=True)):
            if i == 5:
                assert answer.status_code == 400 and "error" in answer.json()
                continue
            (y,) = answer.json()["outputs"]
            assert answer.json()["id"] == str(i) and y["shape"] == list(ids.shape)
            expected = np.take_along_axis(x @ w, ids, 1)
            np.testing.assert_allclose(np.reshape(y["data"], y["shape"]), expected, rtol=1e-5, atol=1e-6)
        x, ids = cases[0]
        raw = x.tobytes() + ids.tobytes()
        inputs = [
            {"name": n, "shape": list(v.shape), "datatype": t, "parameters": {"binary_data_size": v.nbytes}}
            for n, t, v in (("x", "FP32", x), ("ids", "INT64", ids))
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "content-type": "application/octet-stream"}
        answer = await client.post("/v2/models/m/infer", content=head + raw, headers=headers)
        cut = int(answer.headers["inference-header-content-length"])
        assert json.loads(answer.content[:cut])["outputs"][0]["parameters"] == {"binary_data_size": ids.size * 4}
        y = np.frombuffer(answer.content[cut:], np.float32).reshape(ids.shape)
        np.testing.assert_allclose(y, np.take_along_axis(x @ w, ids, 1), rtol=1e-5, atol=1e-6)
        for body in (
            {},
            {"inputs": []},
            {"inputs": tensors(*cases[0])[:1]},
            {"inputs": tensors(x[:, :3], ids)},
            {"inputs": tensors(x, ids[:, :1])},
            {"inputs": tensors(np.zeros((65, 4), np.float32), np.zeros((65, 2), np.int64))},
            {"inputs": tensors(np.zeros((3, 4), np.float32), np.zeros((2, 2), np.int64))},
            {"inputs": [{**tensors(x, ids)[0], "datatype": "FP64"}, tensors(x, ids)[1]]},
            {"inputs": [{**tensors(x, ids)[0], "data": ["a"] * x.size}, tensors(x, ids)[1]]},
            {"inputs": [{**tensors(x, ids)[0], "data": [[1], [2, 3]]}, tensors(x, ids)[1]]},
            {"inputs": [tensors(x, ids)[0], {**tensors(x, ids)[1], "data": [2**70] * ids.size}]},
            {"inputs": [tensors(x, ids)[0], {**tensors(x, ids)[1], "data": [0.5] * ids.size}]},
            {"inputs": tensors(x, ids), "outputs": [{"name": "z"}]},
            {"inputs": [{**tensors(x, ids)[0], "parameters": {"binary_data_size": 8}}, tensors(x, ids)[1]]},
        ):
            answer = await client.post("/v2/models/m/infer", json=body)
            assert answer.status_code == 400 and answer.json()["error"], body
        inputs[0]["parameters"]["binary_data_size"] = float(x.nbytes)
        head = json.dumps({"inputs": inputs}).encode()
        headers["Inference-Header-Content-Length"] = str(len(head))
        assert (await client.post("/v2/models/m/infer", content=head + raw, headers=headers)).status_code == 400
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 404
        return (await client.get("/metrics")).text

    text = run(make_app(models={"m": batcher}), work)
    rows = sum(len(x) for x, _ in cases)
    assert batcher.requests >= 25 and rows <= batcher.rows
    assert batcher.batches < 20  # 24 requests, and each of one batch alone after the error, and one more
    assert f'tilewright_model_batches_total{{model="m"}} {batcher.batches:.1f}' in text


def test_packages_with_entries(tmp_path):
    source, _ = model(batch=2)
    tw.compile({"one": source, "two": source}, threads=1).save(tmp_path / "m.tw")
    found = load_others({"m": str(tmp_path / "m.tw")}, None, 8, 0.001, 8)
    assert [*found] == ["m.one", "m.two"] and found["m.one"].inputs[0].shape == (2, 4)


def test_fixed_batches_run_one_by_one(open_model):
    source, w = model(batch=3)  # all first dimensions are one number, which is no other dimension
    assert open_batch(tw.compile(source, threads=1)) is None
    source, w = model(batch=2)
    batcher = Batcher(tw.compile(source, threads=1), most=16, delay=0.05)
    assert batcher.batch is None and Batcher(open_model[0], most=1).batch is None
    x, ids = np.ones((2, 4), np.float32), np.zeros((2, 2), np.int64)

    async def work(client):
        ask = {"inputs": tensors(x, ids)}
        answers = await asyncio.gather(*(client.post("/v2/models/m/infer", json=ask) for _ in range(4)))
        assert all(a.status_code == 200 for a in answers) and batcher.batches == 4
        return answers[0].json()

    found = run(make_app(models={"m": batcher}), work)
    expected = np.take_along_axis(x @ w, ids, 1).reshape(-1)
    np.testing.assert_allclose(found["outputs"][0]["data"], expected, rtol=1e-5)
