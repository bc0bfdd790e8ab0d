"""The pass protocol: how a pass is declared, found by name, given options, and run.

A pass is a frozen dataclass. Its fields are its options, so the command line, the documentation and the tuner agree:

    @register("fold")
    @dataclass(frozen=True)
    class Fold:
        '''Evaluate operators whose operands are all constant.'''

        max_elements: int = 1 << 20

        def run(self, graph: Graph) -> PassReport | None:
            ...

`run` edits the graph in place and returns a few counts of what it did (or None). One file a pass, in any package of
`PACKAGES`: the file is found by discovery. See docs/add_a_pass.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import time
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, runtime_checkable

from ..ir.context import context, run_passes
from ..ir.graph import Graph
from ..support.budget import check_time
from ..support.errors import CompileError, TilewrightError, UsageError

log = logging.getLogger("tilewright")

#: what a pass did: a few counts by name, for logs and tests
PassReport = dict[str, int]

#: packages whose modules are searched for passes: level 2, level 3
PACKAGES = ("tilewright.graph", "tilewright.tensor")

T = TypeVar("T")

_PASSES: dict[str, type[Pass]] = {}


@runtime_checkable
class Pass(Protocol):
    """What `run_pipeline` needs of a pass."""

    def run(self, graph: Graph) -> PassReport | None: ...


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: make a pass available under `name`."""

    def add(cls: type[T]) -> type[T]:
        if _PASSES.get(name, cls).__qualname__ != cls.__qualname__:
            raise TypeError(f"pass {name} is defined twice")
        cls.name = name  # type: ignore[attr-defined]
        _PASSES[name] = cls  # type: ignore[assignment]
        return cls

    return add


_LOADED: set[str] = set()


def load() -> None:
    """Import every module of `PACKAGES`, so that all passes are registered.

    Several threads may do so at once: each waits for modules that another one imports, and what is loaded is said last.
    """
    for package in PACKAGES:
        if package in _LOADED:
            continue
        spec = importlib.util.find_spec(package)
        locations = spec.submodule_search_locations if spec is not None else None
        for module in pkgutil.iter_modules(locations or ()):
            importlib.import_module(f"{package}.{module.name}")
        _LOADED.add(package)


def available() -> dict[str, str]:
    """Every pass of ours, name -> first line of its docstring.

    >>> "fold" in available()
    True
    """
    load()
    return {name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in sorted(_PASSES.items())}


def options(name: str) -> dict[str, tuple[Any, object]]:
    """The options of a pass: name -> (type, default); UsageError if there is no such pass.

    >>> options("layout")["mode"][1]
    'auto'
    """
    cls = _find(name)
    hints = _hints(cls)
    return {f.name: (hints[f.name], _default(f)) for f in dataclasses.fields(cls)}


@lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    """The types of a pass's options; they are text in the source, which takes long to evaluate."""
    return typing.get_type_hints(cls)


def _default(f: dataclasses.Field[object]) -> object:
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return None if f.default is dataclasses.MISSING else f.default


def _find(name: str) -> Any:
    load()
    if name not in _PASSES:
        raise UsageError(f"unknown pass {name!r}", stage="passes", hint=f"known passes: {', '.join(sorted(_PASSES))}")
    return _PASSES[name]


@dataclass(frozen=True)
class MlirPass:
    """One of MLIR's own passes, or a nested pipeline of them (``func.func(cse)``), as `PassManager` writes it."""

    pipeline: str

    @property
    def name(self) -> str:
        return self.pipeline

    def run(self, graph: Graph) -> PassReport | None:
        run_passes(graph.module, f"builtin.module({self.pipeline})", stage=self.pipeline)
        return None


# ---- pipelines as text ---------------------------------------------------------------------------------------------


def parse_pipeline(text: str) -> list[Pass]:
    """The passes of a comma-separated list, each with its options in braces: ``name{option=value other=value}``.

    A name that is not one of ours is taken as one of MLIR's own passes; ``mlir:cse`` means MLIR's in any case.
    Raises UsageError that lists the known passes, or the options of the pass, if something is not known.

    >>> parse_pipeline("fold{max_elements=64},mlir:cse")
    [Fold(max_elements=64, growth=1.1, most_bytes=67108864), MlirPass(pipeline='cse')]
    """
    return [_parse_pass(item) for item in _split(text, ",") if item]


def _split(text: str, separators: str) -> list[str]:
    """Pieces of text between separators that are outside of any bracket."""
    pieces, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "({[") - (c in ")}]")
        if depth < 0:
            break
        if depth == 0 and c in separators:
            pieces.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise UsageError(f"unbalanced brackets in pass pipeline {text!r}", stage="passes")
    return [*pieces, text[start:].strip()]


def _parse_pass(item: str) -> Pass:
    load()
    name, brace, rest = item.partition("{")
    name = name.strip()
    if name not in _PASSES:
        return _mlir_pass(item.removeprefix("mlir:"))
    if brace and not rest.endswith("}"):
        raise UsageError(f"unexpected text after the options in {item!r}", stage="passes")
    given: dict[str, str] = {}
    for part in _split(rest[:-1].replace(",", " ") if brace else "", " "):
        if part:
            key, equals, value = part.partition("=")
            given[key] = value if equals else "true"
    return make(name, **given)


def _mlir_pass(pipeline: str) -> Pass:
    from torch_mlir.passmanager import PassManager

    with context():
        try:
            PassManager.parse(f"builtin.module({pipeline})")
        except ValueError as e:
            known = ", ".join(sorted(_PASSES))
            raise UsageError(
                f"unknown pass or pipeline {pipeline!r}",
                stage="passes",
                hint=f"known passes: {known}; or any pass of MLIR ({str(e).strip()})",
            ) from None
    return MlirPass(pipeline)


def make(name: str, **values: object) -> Pass:
    """A pass by name; option values may be text, which is converted to the option's type.

    >>> make("fold", max_elements="64")
    Fold(max_elements=64, growth=1.1, most_bytes=67108864)
    """
    cls, known = _find(name), options(name)
    for key in values:
        if key not in known:
            listing = ", ".join(f"{k} ({_describe(t)}, default {d!r})" for k, (t, d) in known.items()) or "none"
            raise UsageError(f"pass {name} has no option {key!r}", stage="passes", hint=f"its options: {listing}")
    return cls(**{k: convert(v, known[k][0], f"{name}{{{k}}}") if isinstance(v, str) else v for k, v in values.items()})


def convert(text: str, kind: Any, option: str) -> Any:
    """Option text -> a value of type `kind`; UsageError names `option` if it does not fit.

    Known: int, float, bool, str, ``Literal``, ``X | None`` (text ``none``), ``tuple[X, ...]`` (``1x2x3`` or ``1:2:3``),
    ``dict[str, X]`` and records (``a:1x2;b:3``; what has a default may be left out).

    >>> convert("ids:1x128;mask:1x128", dict[str, tuple[int, ...]], "shapes")
    {'ids': (1, 128), 'mask': (1, 128)}
    """
    try:
        return _convert(text.strip(), kind)
    except ValueError:
        raise UsageError(f"option {option}: {text!r} is not {_describe(kind)}", stage="passes") from None


def _convert(text: str, kind: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        if text not in args:
            raise ValueError
        return text
    if origin is Union or type(kind).__name__ == "UnionType":
        if text.lower() == "none":
            return None
        return _convert(text, next(a for a in args if a is not type(None)))
    if origin is tuple:
        return tuple(_convert(t, args[0]) for t in text.replace("x", ":").split(":") if t)
    if origin in (dict, typing.get_origin(typing.Mapping[str, int])):
        pairs = [t.partition(":") for t in text.split(";") if t]
        return {k.strip(): _convert(v, args[1]) for k, _, v in pairs}
    if dataclasses.is_dataclass(kind):
        named = _convert(text, dict[str, str])
        kinds = typing.get_type_hints(kind)
        needed = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
        if not needed <= named.keys() <= kinds.keys():
            raise ValueError
        return kind(**{k: _convert(v, kinds[k]) for k, v in named.items()})  # type: ignore[operator]
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError
        return text.lower() in ("true", "1")
    return kind(text)


def _describe(kind: object) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


# ---- running -------------------------------------------------------------------------------------------------------


#: what is told of every pass that ran: the pass, and the seconds it took with its verification
After = Callable[[Pass, float], None]


def run_pipeline(
    graph: Graph, passes: Iterable[Pass], verify: bool = True, *, stage: str = "", after: After | None = None
) -> list[tuple[str, PassReport]]:
    """Run passes in order on the graph, in place, verifying after each if `verify`; returns what each reported.

    An error names the pass that it arose in, or after which the graph is no longer valid: as ``stage/pass`` where the
    `stage` of the pipeline is given. CompileError for any exception of a pass that is not raised on purpose. `after` is
    called after each pass.
    """
    reports = []
    for p in passes:
        name = name_of(p)
        begin = time.perf_counter()
        with named_pass(name, stage):
            check_time(name)
            with context():
                report = p.run(graph) or {}
            if verify:
                graph.verify(stage=name)
        if log.isEnabledFor(logging.DEBUG):
            did = ", ".join(f"{count} {what}" for what, count in report.items() if count) or "nothing to tell"
            log.debug("%s: %s", f"{stage}/{name}" if stage else name, did)
        reports.append((name, report))
        if after is not None:
            after(p, time.perf_counter() - begin)
    return reports


def name_of(p: Pass) -> str:
    return str(getattr(p, "name", type(p).__name__))


@contextmanager
def named_pass(name: str, stage: str = "") -> Iterator[None]:
    """Errors raised in here name the pass (see `run_pipeline`)."""
    place = f"{stage}/{name}" if stage else name
    try:
        yield
    except TilewrightError as e:
        if e.stage in (None, name):
            e.stage = place
        elif stage and e.stage != place:
            e.stage = f"{place} ({e.stage})"
        raise
    except (MemoryError, RecursionError):  # of the model's size, not of the pass
        raise
    except Exception as e:
        raise CompileError(
            f"pass {name} failed: {type(e).__name__}: {' '.join(str(e).split())}",
            stage=place,
            hint="this is a bug in the pass: add --debug for the traceback",
        ) from e


def pass_text(p: Pass) -> str:
    """A pass as `parse_pipeline` reads it, with the options that are not the default ones.

    >>> pass_text(make("fold", max_elements=64)), pass_text(make("cse"))
    ('fold{max_elements=64}', 'cse')
    """
    name = name_of(p)
    if name not in _PASSES:
        return name
    chosen = [f"{k}={_plain(getattr(p, k))}" for k, (_, default) in options(name).items() if getattr(p, k) != default]
    return f"{name}{{{' '.join(chosen)}}}" if chosen else name


def _plain(value: object) -> str:
    """An option's value as `convert` reads it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        every = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value)}
        value = {k: v for k, (v, default) in every.items() if v != default}
    if isinstance(value, dict):
        return ";".join(f"{k}:{_plain(v)}" for k, v in value.items())
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
