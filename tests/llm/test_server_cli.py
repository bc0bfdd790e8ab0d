"""The commands around the server: bench-serve against an application, chat over text, and what serve refuses."""

from __future__ import annotations

import asyncio
import io
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from llm.script_runner import ChatTokenizer, ScriptRunner
from onnx import TensorProto, helper

import tilewright as tw

httpx = pytest.importorskip("httpx", reason="needs httpx: tilewright[llm]")
pytest.importorskip("starlette", reason="needs starlette: tilewright[llm]")

from tilewright.cli import main  # noqa: E402
from tilewright.cli import serve as serve_command  # noqa: E402
from tilewright.cli.chat import Chat  # noqa: E402
from tilewright.llm.engine.engine import LLMEngine  # noqa: E402
from tilewright.llm.request import Sampling  # noqa: E402
from tilewright.llm.server import bench, loading  # noqa: E402
from tilewright.llm.server.app import make_app  # noqa: E402
from tilewright.llm.server.language import Language  # noqa: E402
from tilewright.report.serving_html import page  # noqa: E402
from tilewright.support.errors import TilewrightError, UsageError  # noqa: E402


def language(answers=None, queue=256, **more):
    tokenizer = ChatTokenizer()
    engine = LLMEngine(ScriptRunner(answers, **more), tokenizer, queue=queue)
    return Language("tiny", engine, tokenizer, 512, reasoning="think")


def test_schedules_are_seeded_and_keep_to_their_rate():
    plan = bench.schedule("chat", 4.0, 2000, seed=3)
    assert plan == bench.schedule("chat", 4.0, 2000, seed=3) != bench.schedule("chat", 4.0, 2000, seed=4)
    assert 450 < plan[-1].at < 550 and all(4 <= r.prompt <= 2000 and 4 <= r.output <= 800 for r in plan)
    assert 150 < sorted(r.prompt for r in plan)[1000] < 210
    faster = bench.schedule("chat", 8.0, 2000, seed=3)  # the same requests, closer together
    assert [(r.prompt, r.output, r.seed) for r in faster] == [(r.prompt, r.output, r.seed) for r in plan]
    assert faster[-1].at == pytest.approx(plan[-1].at / 2)
    for mix in ("none", "3:", "0:4", "1:2:3"):
        with pytest.raises(UsageError, match="no mix"):
            bench.schedule(mix, 1.0, 1, 0)
    for sla in ("ttft", "ttft=0", "speed=4", "ttft=nan"):
        with pytest.raises(UsageError, match="no bound"):
            bench.parse_sla(sla)


@pytest.mark.parametrize("chat", [False, True])
def test_a_sweep_of_rates(chat):
    model = language()
    app = make_app(model, api_key="k")

    def sweep(**more):
        settings = {"api_key": "k", "chat": chat, "mix": "60:12", "rates": [200.0, 400.0], "count": 12, **more}
        transport = httpx.ASGITransport(app)
        return asyncio.run(bench.sweep("http://here", transport=transport, sla={"ttft": 100.0}, **settings))

    with model.engine:
        found = sweep()
        with pytest.raises(UsageError, match="does not answer"):
            sweep(api_key="wrong")
        with pytest.raises(TilewrightError, match=r"no request was answered: \{'HTTP 400': 12\}"):
            sweep(mix="60:600")
    assert found["ignore_eos"] and found["model"] == "tiny" and [r["rate"] for r in found["runs"]] == [200, 400]
    for run in found["runs"]:
        assert run["completed"] == 12 and not run["errors"] and run["good_share"] == 1
        assert all(r["tokens"] == 12 for r in run["each"])
        assert run["output_tokens_per_second"] == pytest.approx(144 / run["seconds"])
        words = run["prompt_tokens_per_second"] * run["seconds"] / 12  # as many as asked for, whatever a word is
        assert 45 < words < (60 if not chat else 90)
        assert run["ttft"]["p50"] <= run["ttft"]["p99"] <= run["e2e"]["p99"]
    document = page(json.loads(json.dumps(found)))
    for drawing in re.findall(r"<svg.*?</svg>", document, re.S):
        ElementTree.fromstring(drawing)
    assert document.count("<svg") == 2 and "http" not in document.replace("http://here", "")


def test_an_overloaded_server_counts_as_failed():
    model = language(queue=1, seconds=0.01, sequences=1)
    transport = httpx.ASGITransport(make_app(model))
    settings = {"mix": "20:20", "rates": [1000.0], "count": 10, "sla": {"e2e": 100.0}}
    with model.engine:
        (run,) = asyncio.run(bench.sweep("http://here/v1", transport=transport, **settings))["runs"]
    assert run["errors"] == {"HTTP 429": 10 - run["completed"]} and 2 <= run["completed"] < 10
    assert run["good_share"] == run["completed"] / 10


def test_chat_in_a_pipe(monkeypatch, capsys, tmp_path):
    model = language({"more": "Yes.", "hello": "<think>Hm.</think>Hi\x1b[2J!"})
    monkeypatch.setattr(loading, "load_language", lambda *_, **__: model)
    saved = tmp_path / "chat.json"
    lines = [
        "hello",
        "more",
        f"/save {saved}",
        "/system Be brief.",
        "more",
        "/what",
        "x" * 600,
        f"/save {saved}2",
        "/exit",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert main(["chat", str(tmp_path), "--temperature", "0"]) == 0
    out, errors = capsys.readouterr()
    assert out == "Hm.\nHi\\x1b[2J!\nYes.\nYes.\n"  # what a terminal would obey is written out
    assert "no command /what" in errors and "do not fit" in errors
    roles = [m["role"] for m in json.loads(saved.read_text())]
    assert roles == ["user", "assistant"] * 2
    assert [m["content"] for m in json.loads((tmp_path / "chat.json2").read_text())] == ["Be brief.", "more", "Yes."]


def test_an_answer_that_is_stopped_is_kept_and_frees_its_pages():
    model = language(seconds=0.005)
    with model.engine:
        chat = Chat(model, Sampling(max_tokens=300, ignore_eos=True))
        answer = chat.answer("a")
        first = next(answer).text
        answer.close()  # as Ctrl-C does
        assert chat.messages[1]["content"].startswith(first) and len(chat.messages[1]["content"]) < 200
        assert "".join(d.text for d in chat.answer("b"))  # the engine is free for the next
        assert model.engine.metrics()["requests_cancelled"] == 1
        chat.reset()
        assert chat.messages == []


def test_serve_refuses(tmp_path, capsys):
    file = tmp_path / "m.onnx"
    file.write_text("")
    for arguments, said in (
        (["missing.gguf"], "is not there"),
        ([str(file)], "is no model that can be served"),
        ([str(tmp_path), f"b={tmp_path}"], "only one language model"),
        ([str(tmp_path), str(tmp_path)], "needs a name of its own"),
    ):
        assert main(["serve", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert serve_command.named([f"a={file}", str(file)]) == {"a": str(file), "m": str(file)}
    with pytest.raises(UsageError, match="no tool parser 'x'"):
        loading.load_language(tmp_path, "m", tools="x")
    assert main(["bench-serve", "http://127.0.0.1:9", "--rates", "0"]) == 2
    assert main(["bench-serve", "http://127.0.0.1:9"]) == 2


def test_serve_makes_the_application(tmp_path, monkeypatch, capsys):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "m", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    tw.compile(model, inputs={"x": (tw.Dim("b", 1, 8), 4)}, threads=1).save(tmp_path / "m.tw")
    made = []
    monkeypatch.setattr(
        "tilewright.llm.server.run.serve", lambda app, sock, limit, stop: (sock.close(), made.append((app, limit)))
    )
    monkeypatch.setenv("TILEWRIGHT_API_KEY", "")
    for arguments, host, status in (
        (["--host", "0.0.0.0", "--shutdown-limit", "3"], "any.test", 200),
        ([], "any.test", 403),
        (["--api-key", "k"], "any.test", 401),
    ):
        assert main(["serve", f"relu={tmp_path / 'm.tw'}", "--port", "0", *arguments]) == 0
        text = capsys.readouterr().err
        assert "serving relu on http://" in text and ("give it an --api-key" in text) == (status == 200)

        async def ask(app=made[-1][0], host=host):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1, 2, -3, 4]}]}
                return await client.post("/v2/models/relu/infer", json=body)

        answer = asyncio.run(ask())
        assert answer.status_code == status and answer.json().get("error" if status != 200 else "outputs")
    assert answer.headers["www-authenticate"] == "Bearer" and made[0][1] == 3
