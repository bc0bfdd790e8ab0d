"""Models from files, as the server wants them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...support.errors import UsageError
from .batching import Batcher
from .language import Language
from .reasoning import MARKS, marks_of_template
from .sampling import ServerLimits
from .tool_calls import FORMS, form_of_template


def is_language(path: str) -> bool:
    """Whether a path names a language model: a folder, or a GGUF file. Packages (.tw) are other models."""
    return Path(path).is_dir() or path.endswith(".gguf")


def load_language(
    path: str | os.PathLike[str],
    name: str,
    *,
    queue: int = 256,
    limits: ServerLimits | None = None,
    tools: str | None = None,
    reasoning: str | None = None,
    **options: Any,
) -> Language:
    """A language model with its engine, which the caller closes. `options` are those of `tilewright.LLM`.

    tools, reasoning: names of parsers; None: what the chat template shows ("none" for no reasoning). UsageError for a
    name that is not known.
    """
    from ..llm import LLM

    for what, given, known in (("tool", tools, [*FORMS]), ("reasoning", reasoning, [*MARKS, "none"])):
        if given is not None and given not in known:
            raise UsageError(f"there is no {what} parser {given!r}", hint=f"there are: {', '.join(known)}")
    model = LLM(path, engine={"queue": queue}, **options)
    template = "\n".join(model.tokenizer.templates.values())
    return Language(
        name,
        model.engine,
        model.tokenizer,
        model.runner.limits.context,
        limits or ServerLimits(),
        tools or form_of_template(template),
        marks_of_template(template) if reasoning is None else None if reasoning == "none" else reasoning,
    )


def load_others(
    paths: Mapping[str, str], threads: int | None, most: int, delay: float, queue: int
) -> dict[str, Batcher]:
    """Packages by their names; the entries of one with several are NAME.ENTRY."""
    from ...runtime.load import load
    from ..program import REPORT

    found = {}
    for name, path in paths.items():
        executable = load(path, threads=threads)
        entries: Mapping[str, Any] = getattr(executable, "entries", {"main": executable})
        if any(REPORT in e.package.report for e in entries.values() if hasattr(e, "package")):
            hint = "give the folder of the model, which has its tokenizer too"
            raise UsageError(f"{path!r} is the program of a language model alone", stage="serve", hint=hint)
        for entry, one in entries.items():
            found[name if len(entries) == 1 else f"{name}.{entry}"] = Batcher(one, most, delay, queue)
    return found


def load_app(settings: Mapping[str, Any]) -> tuple[Any, Callable[[], object]]:
    """The application of `tilewright serve`, and what ends its engine. settings: language (a name and a path, or None),
    options of `load_language`, others (what `load_others` takes), limits, api_key, hosts."""
    from .app import make_app

    limits, language = settings["limits"], None
    others = load_others(*settings["others"])
    if settings["language"] is not None:
        name, path = settings["language"]
        language = load_language(path, name, limits=limits, **settings["options"])

    def close() -> None:
        if language is not None:
            language.engine.close(1.0)

    return make_app(
        language, others, api_key=settings["api_key"], hosts=settings["hosts"], limits=limits, on_close=close
    ), close


__all__ = ["is_language", "load_app", "load_language", "load_others"]
