"""A model that was trained here answers over the server with what its weights say."""

from __future__ import annotations

import threading

import pytest
from llm.glossary_model import train

for package, what in {
    "openai": "openai",
    "uvicorn": "uvicorn",
    "transformers": "transformers",
    "torch": "torch",
}.items():
    pytest.importorskip(package, reason=f"needs the package {what}")

import openai  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import uvicorn  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.llm.server.app import make_app  # noqa: E402
from tilewright.llm.server.language import Language  # noqa: E402
from tilewright.llm.server.run import listen  # noqa: E402


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glossary")
    return folder, train(folder)


@pytest.fixture(scope="module")
def client(trained):
    with tw.LLM(trained[0], context=256, sequences=4, threads=1, precision="f32", cache_dtype="f32") as llm:
        app = make_app(Language("glossary", llm.engine, llm.tokenizer, context=256))
        sock = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
        with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as client:
            yield client
        server.should_exit = True
        thread.join(20)


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
