"""The command `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..support.errors import UsageError
from ..support.options import DEFAULT_TARGET, get
from .app import app
from .common import Debug, Quiet, Target, Verbose, note, set_debug, set_loudness
from .language import CacheDtype, Context, Draft, Template, Threads, need, template_text


@app.command()
def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|NAME=MODEL...",
            help="A language model (a folder of Hugging Face, a .gguf file), and packages (.tw) of other models.",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is reached from other machines.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help="The key clients must send; default: TILEWRIGHT_API_KEY."),
    ] = None,
    target: Target = DEFAULT_TARGET,
    threads: Threads = None,
    context: Context = 4096,
    sequences: Annotated[int, typer.Option(min=1, metavar="N", help="Most requests that run at a time.")] = 16,
    cache_tokens: Annotated[
        int | None,
        typer.Option("--cache-tokens", min=16, metavar="N", help="Tokens of all requests that the cache holds."),
    ] = None,
    cache_dtype: CacheDtype = "bf16",
    draft: Draft = None,
    chat_template: Template = None,
    queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests that may wait; more are answered 429.")
    ] = 256,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, metavar="N", help="Most tokens of an answer.")
    ] = None,
    max_n: Annotated[int, typer.Option("--max-n", min=1, metavar="N", help="Most choices of a request.")] = 16,
    body_limit: Annotated[
        int, typer.Option("--body-limit", min=1, metavar="MB", help="Most megabytes that a request may have.")
    ] = 16,
    request_limit: Annotated[
        float, typer.Option("--request-limit", min=0.1, metavar="S", help="Seconds after which a request is ended.")
    ] = 600.0,
    shutdown_limit: Annotated[
        float, typer.Option("--shutdown-limit", min=0.5, metavar="S", help="Seconds that running requests have to end.")
    ] = 10.0,
    tool_parser: Annotated[
        str | None,
        typer.Option(
            "--tool-parser", metavar="NAME", help="How the model calls tools; default: as its template shows."
        ),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option("--reasoning-parser", metavar="NAME", help="How the model marks what it thinks, or none."),
    ] = None,
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=1, metavar="N", help="Rows of a package's open batch that run together.")
    ] = 32,
    max_delay: Annotated[
        float, typer.Option("--max-delay", min=0, metavar="MS", help="Milliseconds that a batch waits for more rows.")
    ] = 2.0,
    replicas: Annotated[
        int, typer.Option(min=1, metavar="N", help="Copies of the server on a Ray cluster, behind one address.")
    ] = 1,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Serve models over HTTP.

    A language model is served by OpenAI's interface (/v1/chat/completions and others), a package by the Open Inference
    Protocol v2 (/v2/models/NAME/infer). See docs/serving.md.

    \b
      tilewright serve Qwen3-0.6B/
      tilewright serve model-Q4_K_M.gguf --port 8080 --context 8192
      tilewright serve classifier=resnet18.tw --max-batch 16
      TILEWRIGHT_API_KEY=... tilewright serve model.gguf --host 0.0.0.0
    """
    set_debug(debug)
    set_loudness(verbose, quiet)
    need("starlette", "uvicorn", "prometheus_client")
    from ..llm.server.loading import is_language, load_app
    from ..llm.server.run import is_local, listen
    from ..llm.server.run import serve as serve_app
    from ..llm.server.sampling import ServerLimits

    names = named(models)
    languages = {n: p for n, p in names.items() if is_language(p)}
    others = {n: p for n, p in names.items() if n not in languages}
    if len(languages) > 1:
        raise UsageError(f"{', '.join(languages)}: only one language model can be served", stage="command line")
    for path in others.values():
        if not path.endswith(".tw"):
            hint = "a folder of Hugging Face, a .gguf file, or a package: tilewright compile MODEL -o model.tw"
            raise UsageError(f"{path!r} is no model that can be served", stage="command line", hint=hint)
    key = api_key or get("TILEWRIGHT_API_KEY")
    limits = ServerLimits(body=body_limit << 20, max_tokens=max_tokens, n=max_n, seconds=request_limit)
    settings: dict[str, Any] = {
        "language": next(iter(languages.items()), None),
        "options": {
            "target": target,
            "threads": threads,
            "context": context,
            "sequences": sequences,
            "cache_tokens": cache_tokens,
            "cache_dtype": cache_dtype,
            "draft": draft,
            "chat_template": template_text(chat_template),
            "queue": queue,
            "tools": tool_parser,
            "reasoning": reasoning_parser,
        },
        "others": (others, threads, max_batch, max_delay / 1000, queue),
        "limits": limits,
        "api_key": key,
        "hosts": ("127.0.0.1", "localhost", "[::1]", host.lower()) if is_local(host) and not key else (),
    }
    if not is_local(host) and not key:
        note(f"warning: whoever reaches {host} can use this server: give it an --api-key", wanted=True)

    def say(shown: int) -> None:
        address = f"[{host}]" if ":" in host else host
        note(f"serving {', '.join(names)} on http://{address}:{shown} (Ctrl-C ends)", wanted=True)

    if replicas > 1:
        from ..llm.server.replicas import serve_replicas

        serve_replicas(settings, replicas, host, port, shutdown_limit, lambda: say(port))
        return
    sock = listen(host, port)
    made, close = load_app(settings)
    say(sock.getsockname()[1])
    serve_app(made, sock, shutdown_limit, close)


def named(models: list[str]) -> dict[str, str]:
    """Models by name: NAME=MODEL, or by the name of the file; UsageError for a name that is there twice."""
    found: dict[str, str] = {}
    for text in models:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).resolve().stem if Path(text).is_file() else Path(text).resolve().name, text
        if not name or name in found or not Path(path).exists():
            why = "is not there" if not Path(path).exists() else "needs a name of its own: NAME=MODEL"
            raise UsageError(f"{text!r} {why}", stage="command line")
        found[name] = path
    return found
