"""A model that was trained here answers over the server with what its weights say."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from llm.glossary_model import train
from llm.local_server import client_of

for package, what in {
    "openai": "openai",
    "uvicorn": "uvicorn",
    "transformers": "transformers",
    "torch": "torch",
}.items():
    pytest.importorskip(package, reason=f"needs the package {what}")

import torch  # noqa: E402
import transformers  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.llm.request import Sampling  # noqa: E402
from tilewright.llm.server.app import make_app  # noqa: E402
from tilewright.llm.server.language import Language  # noqa: E402
from tilewright.llm.tokenizer import load_tokenizer  # noqa: E402
from tilewright.support.errors import UsageError  # noqa: E402
from tilewright.targets.linker import linker  # noqa: E402


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glossary")
    return folder, train(folder)


@pytest.fixture(scope="module")
def client(trained):
    llm = tw.LLM(trained[0], context=256, sequences=4, threads=1, precision="f32", cache_dtype="f32")
    language = Language("glossary", llm.engine, llm.tokenizer, context=256)
    with llm, client_of(make_app(language)) as client:
        yield client


def test_it_answers_as_hugging_face_does(trained, client):
    folder, pairs = trained
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    right = 0
    for question, meaning in pairs[::3]:
        messages = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model="glossary", messages=messages, temperature=0, max_tokens=80)
        given = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            tokens = model.generate(**given, max_new_tokens=80, do_sample=False)[0][given["input_ids"].shape[1] :]
        assert answer.choices[0].message.content == tokenizer.decode(tokens, skip_special_tokens=True)
        right += answer.choices[0].message.content == meaning
    assert right > len(pairs[::3]) // 2, "it has learnt the glossary"


@pytest.fixture(scope="module")
def site(trained, tmp_path_factory):
    """A page of the model."""
    from tilewright.cli import main

    try:
        linker("wasm-ld", "this test", "test", 0)
    except UsageError as e:
        pytest.skip(str(e))
    site = tmp_path_factory.mktemp("page") / "site"
    given = [str(trained[0]), "--target", "web", "-o", str(site), "--context", "256", "--bits", "32", "-q"]
    assert main(["export", *given]) == 0
    return site


def test_a_page_in_a_browser(trained, site):
    """It answers, begins anew while it answers, and says when a question does not fit."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt install chromium")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    idle = "!document.getElementById('send').disabled"
    question, meaning = trained[1][0]
    with playwright.sync_playwright() as p:
        page = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.wait_for_selector("#form:not([hidden])")
        assert page.title() == trained[0].name
        page.fill("#temperature", "0")
        for text in ("word " * 40, "word " * 300, question):
            page.fill("#question", text)
            page.press("#question", "Enter")
            if text == question:
                page.wait_for_function(idle)
                assert page.inner_text("#talk .assistant") == meaning
            else:
                page.click("#fresh")
                page.wait_for_function("document.getElementById('talk').childElementCount == 0")
    server.shutdown()


def test_a_page_says_the_same(trained, site):
    """What the command exports, in Node: tokens of any text, and a conversation of two questions."""
    if not shutil.which("node"):
        pytest.skip("node is not installed: apt install nodejs")
    folder, pairs = trained
    (site / "package.json").write_text('{"type": "module"}')
    rng = np.random.default_rng(0)
    letters = [chr(c) for c in (*range(32, 127), 0xE4, 0x3B1, 0x4E2D, 0x1F600, 0x301, 0xA0, 9, 10)]
    texts = ["".join(rng.choice(letters, 30)) for _ in range(40)] + ["I'll say: 3 cats, don't you?", ""]
    questions = [q for q, _ in pairs[:2]]
    command = ["node", str(Path(__file__).with_name("chat_page.mjs")), str(site)]
    given = json.dumps({"texts": texts, "questions": questions})
    done = subprocess.run([*command, given], capture_output=True, text=True, timeout=120, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    tokenizer = load_tokenizer(folder)
    assert found[: len(texts)] == [tokenizer.encode(t) for t in texts]
    messages, options = [], {"threads": 1, "precision": "f32", "cache_dtype": "f32", "show": False}
    with tw.LLM(folder, context=256, sequences=4, **options) as llm:
        for question, answer in zip(questions, found[len(texts) :], strict=True):
            messages.append({"role": "user", "content": question})
            want = llm.chat(messages, Sampling(max_tokens=60, temperature=0)).text
            assert answer == want
            messages.append({"role": "assistant", "content": want})


def test_many_at_a_time(trained, client):
    """Requests that are served together say what each says alone."""
    questions = [q for q, _ in trained[1]][:6]

    def ask(question: str) -> str:
        messages = [{"role": "user", "content": question}]
        stream = client.chat.completions.create(
            model="glossary", messages=messages, temperature=0, max_tokens=60, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    alone = [ask(q) for q in questions]
    together: dict[str, str] = {}
    threads = [threading.Thread(target=lambda q=q: together.update({q: ask(q)})) for q in questions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [together[q] for q in questions] == alone
