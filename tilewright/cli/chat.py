"""The command `chat`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..support.errors import TilewrightError, UsageError, printable
from ..support.options import DEFAULT_TARGET
from .app import app
from .common import Debug, Quiet, Target, Verbose, note, set_debug, set_loudness
from .language import CacheDtype, Context, Draft, Model, Template, Threads, need, template_text

if TYPE_CHECKING:
    from ..llm.server.language import Language
    from ..llm.server.tool_calls import Delta

HELP = "/reset begins again, /system TEXT sets the system's message, /save FILE writes the chat, /exit ends"


@app.command()
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system's message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=5, help="0: the most probable token. Usually the model's own, or 0.7.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.001, max=1, help="Part of the probability; the model's, or 0.95.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=0, metavar="N", help="Most probable tokens; 0: all.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", min=0, max=1, help="Least part of the best probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", min=0.01, max=10, help="Above 1: what was said is less likely."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same answers.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, metavar="N", help="Most tokens of an answer.")
    ] = None,
    target: Target = DEFAULT_TARGET,
    threads: Threads = None,
    context: Context = 4096,
    cache_dtype: CacheDtype = "bf16",
    draft: Draft = None,
    chat_template: Template = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Chat with a language model in the terminal. Ctrl-C stops an answer, Ctrl-D ends.

    \b
      tilewright chat Qwen3-0.6B/
      tilewright chat model-Q4_K_M.gguf --system "Answer in one sentence." --temperature 0
    """
    set_debug(debug)
    set_loudness(verbose, quiet)
    need("tokenizers", "starlette")
    from ..llm.request import Sampling
    from ..llm.server.loading import is_language, load_language

    if not Path(model).exists() or not is_language(model):
        raise UsageError(f"{model!r} is no folder of a language model and no .gguf file", stage="command line")
    name = Path(model).resolve().name
    language = load_language(
        model,
        name,
        target=target,
        threads=threads,
        context=context,
        sequences=1,
        cache_tokens=context,
        cache_dtype=cache_dtype,
        draft=draft,
        chat_template=template_text(chat_template),
        show=not quiet,
    )
    given = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    given = {n: v for n, v in (given | {"repetition_penalty": repetition_penalty}).items() if v is not None}
    chosen: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95, **language.defaults, **given}
    sampling = Sampling(seed=seed, max_tokens=max_tokens, **chosen)
    try:
        Terminal(Chat(language, sampling, system), verbose).run()
    finally:
        with contextlib.suppress(TilewrightError):
            language.engine.close(5.0)


class Chat:
    """Messages, and the model's answers to them."""

    def __init__(self, language: Language, sampling: Any, system: str | None = None) -> None:
        self.language, self.sampling, self.system = language, sampling, system
        self.messages: list[dict[str, Any]] = []
        self.tokens = 0  # of the last answer
        self.reset()

    def reset(self) -> None:
        """Only the system's message is left."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def answer(self, text: str) -> Generator[Delta, None, None]:
        """Say something; what the model answers. An answer that is not read to its end (the iterator is closed, or
        Ctrl-C comes) stops, and what there is of it is kept. UsageError for what does not fit into the context: then
        nothing was said."""
        from ..llm.request import GenerationRequest
        from ..llm.server.language import Answer
        from ..llm.server.reasoning import MARKS, ReasoningParser

        language = self.language
        self.tokens = 0
        prompt = language.tokenizer.chat([*self.messages, {"role": "user", "content": text}])
        stream = language.engine.submit(GenerationRequest(language.tokenizer.encode(prompt), self.sampling))
        made = Answer()
        if language.reasoning is not None:
            inside = prompt.rstrip().endswith(MARKS[language.reasoning][0])
            made.reasoning_parser = ReasoningParser(language.reasoning, inside)
        try:
            for piece in stream:
                if piece.finish_reason == "error":
                    raise TilewrightError(piece.error or "the generation failed", stage="chat")
                yield from made.feed(piece)
        finally:
            stream.cancel()
            self.tokens = made.tokens
            self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": made.text}]


class Terminal:
    """Reads lines and shows answers as they come; without a terminal, plain text in and out."""

    def __init__(self, chat: Chat, verbose: bool = False) -> None:
        self.chat, self._verbose = chat, verbose
        self._interactive = sys.stdin.isatty()
        self._dim = ("\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "")
        if self._interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (`input` gets editing and a history)
            note(f"chat with {chat.language.name}: {HELP}")

    def run(self) -> None:
        """Until the input ends, or /exit."""
        while True:
            try:
                line = input("> " if self._interactive else "")
            except EOFError:
                return
            except KeyboardInterrupt:
                print()
                continue
            if line.strip() == "/exit":
                return
            try:
                if line.startswith("/"):
                    self._command(*line[1:].partition(" ")[::2])
                elif line.strip():
                    self._answer(line)
            except UsageError as error:
                note(f"error: {error.message}{': ' + error.hint if error.hint else ''}", wanted=True)

    def _command(self, name: str, rest: str) -> None:
        commands: dict[str, Callable[[str], None]] = {
            "reset": lambda _: self.chat.reset(),
            "system": self._system,
            "save": self._save,
            "help": lambda _: note(HELP, wanted=True),
        }
        if name not in commands:
            raise UsageError(f"there is no command /{name}", hint=HELP)
        commands[name](rest.strip())

    def _system(self, text: str) -> None:
        self.chat.system = text or None
        self.chat.reset()

    def _save(self, file: str) -> None:
        if not file:
            raise UsageError("/save needs the name of a file")
        try:
            text = json.dumps(self.chat.messages, ensure_ascii=False, indent=1)
            Path(file).expanduser().write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {file!r}: {error}") from None

    def _answer(self, text: str) -> None:
        begin, thinks, some = time.perf_counter(), False, False
        deltas = self.chat.answer(text)
        try:
            for delta in deltas:
                some = True
                if thinks != (delta.kind == "reasoning"):
                    sys.stdout.write(self._dim[thinks] if not thinks else self._dim[1] + "\n")
                    thinks = not thinks
                sys.stdout.write(printable(delta.text))
                sys.stdout.flush()
        except KeyboardInterrupt:  # the answer ends, not the chat
            some = True
        finally:
            deltas.close()
            if some:
                print(self._dim[1] if thinks else "")
        if self._verbose:
            seconds = time.perf_counter() - begin
            note(f"{self.chat.tokens} tokens, {self.chat.tokens / seconds:.1f} a second")
