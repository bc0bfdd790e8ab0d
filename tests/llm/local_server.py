"""A server on a free local port, and the official client for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def client_of(app: Any, key: str = "none") -> Iterator[Any]:
    """The client while the server runs in a thread."""
    import openai
    import uvicorn

    from tilewright.llm.server.run import listen

    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    with openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=120) as client:
        yield client
    server.should_exit = True
    thread.join(20)
