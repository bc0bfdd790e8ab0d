"""Every option of a compilation and every environment variable: typed, checked and documented here, once."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from .errors import PackageError, UsageError
from .limits import free_memory, usable_cores
from .option_info import (
    Effect,
    Flag,
    OptionInfo,
    bucket_sizes,
    bucket_texts,
    check,
    check_pad,
    devices,
    number_of_bytes,
    numbers,
    option,
    parse_size,
    shapes,
    state_pairs,
    traces,
)
from .sizes import Dim

PRECISIONS = ("f32", "bf16", "f16", "auto")


#: memory that a process needs that compiles kernels
JOB_BYTES = 512 << 20
#: more threads or processes than this are a mistake
MOST = 1024


def default_jobs() -> int:
    """A process a core, as far as memory goes."""
    free = free_memory()
    return usable_cores() if free is None else max(1, min(usable_cores(), free // JOB_BYTES))


# ---- environment variables ----


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _count(text: str) -> int:
    """Of threads or processes."""
    number = _positive(text)
    if number > MOST:
        raise ValueError(f"must be at most {MOST}")
    return number


def _compile_mode(text: str) -> str:
    if text not in ("workers", "inprocess"):
        raise ValueError("must be 'workers' or 'inprocess'")
    return text


#: how much the logger "tilewright" tells: what each pass did, what is out of the ordinary (-v), what may be wrong
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def _log_level(text: str) -> int:
    if text not in LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
    return LOG_LEVELS[text]


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("must be 0 or 1")
    return text == "1"


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as e:
        raise ValueError(str(e)) from None


@dataclass(frozen=True)
class Variable:
    """An environment variable: its parser, its default (computed when it is not set) and what it does."""

    name: str
    parse: Callable[[str], Any]
    default: Callable[[], Any]
    doc: str

    def get(self) -> Any:
        """The value now; UsageError if what is set does not parse."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as e:
            raise UsageError(f"environment variable {self.name}={text!r} is not valid: {e}", hint=self.doc) from None


def user_cache_folder() -> Path:
    """The folder for caches of this user, by the habits of the operating system."""
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a name and without HOME, as in containers
        import tempfile

        return Path(tempfile.gettempdir()) / f"tilewright-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
    return Path(base) / "tilewright"


ENVIRONMENT = {
    v.name: v
    for v in (
        Variable("TILEWRIGHT_CACHE", _path, user_cache_folder, "folder of compiled kernels and of saved reproducers"),
        Variable(
            "TILEWRIGHT_CACHE_SIZE", parse_size, lambda: 1 << 30, "bytes the kernel cache may take (500M, 2G ...)"
        ),
        Variable(
            "TILEWRIGHT_PACKAGES_SIZE",
            parse_size,
            lambda: 4 << 30,
            "bytes the packages of compiled model files may take in the cache (500M, 2G ...); 0: none are kept",
        ),
        Variable(
            "TILEWRIGHT_DB", _path, lambda: get("TILEWRIGHT_CACHE") / "tuning.sqlite", "file of the tuning database"
        ),
        Variable("TILEWRIGHT_THREADS", _count, usable_cores, "threads of a model when the call does not say"),
        Variable("TILEWRIGHT_JOBS", _count, default_jobs, "most processes that compile kernels at the same time"),
        Variable(
            "TILEWRIGHT_COMPILE",
            _compile_mode,
            lambda: "workers",
            "'workers' compiles model files and kernels in other processes, 'inprocess' in this one (to debug it)",
        ),
        Variable(
            "TILEWRIGHT_RUNNER_KEY", str, lambda: None, "the key that `tilewright runner` and who uses it both have"
        ),
        Variable("TILEWRIGHT_API_KEY", str, lambda: None, "the key that clients of `tilewright serve` must send"),
        Variable(
            "TILEWRIGHT_PROGRESS", _switch, lambda: True, "0: no line on the terminal while a long compilation works"
        ),
        Variable(
            "TILEWRIGHT_LOG",
            _log_level,
            lambda: None,
            "log of the commands on stderr: debug (what each pass did), info (as -v), warning or error",
        ),
        Variable(
            "TILEWRIGHT_MACHINE",
            _path,
            lambda: None,
            "JSON file with what to take this CPU for: features (those it does not have are left out), l1_bytes, "
            "l2_bytes, l3_bytes, cores",
        ),
        Variable(
            "TILEWRIGHT_STRICT",
            _switch,
            lambda: False,
            "1: the graph is verified after every pass, not only after stages, and a bug in the compiler is an error "
            "even where something slower would do (tests run so)",
        ),
        Variable("TILEWRIGHT_TIMEOUT", _positive, lambda: 600, "seconds after which compiling one kernel is given up"),
    )
}


def get(name: str) -> Any:
    """The value of one of the variables in ENVIRONMENT.

    >>> os.environ["TILEWRIGHT_THREADS"] = "3"
    >>> get("TILEWRIGHT_THREADS")
    3
    >>> del os.environ["TILEWRIGHT_THREADS"]
    """
    return ENVIRONMENT[name].get()


# ---- options of one compilation ----


def _given_shapes(options: Options) -> dict[str, list[Any]]:
    """The shapes that `inputs` gives, of arrays too."""
    given: Mapping[str, Any] = options.inputs or {}
    shapes = {n: v if isinstance(v, (tuple, list)) else getattr(v, "shape", ()) for n, v in given.items()}
    return {n: [str(d) if isinstance(d, Dim) else d for d in shape] for n, shape in shapes.items()}


#: the target where none is named, which every computer has
DEFAULT_TARGET = "cpu"


@dataclass(frozen=True)
class Options:
    """What a caller can choose for one compilation; the fields are the keyword arguments of `tilewright.compile`.

    A field says everything about its option (`option_info.OptionInfo`): the command line, the key of the package cache
    and what a saved model keeps follow from it.

    >>> Options(threads=2).threads
    2
    >>> Options.of(treads=2)
    Traceback (most recent call last):
        ...
    tilewright.support.errors.UsageError: unknown option 'treads'
      hint: did you mean 'threads'?
    """

    target: str = option(
        DEFAULT_TARGET, "name of the target; `tilewright targets` lists them", effect=Effect.RESULT, kept=True
    )
    precision: str = option(
        "f32",
        "what contractions multiply (sums are f32): f32, bf16, f16 weights, or auto, the fastest within `tolerance`",
        effect=Effect.RESULT,
        kept=True,
        choices=PRECISIONS,
    )
    tolerance: float | None = option(
        None,
        "with precision auto: the largest error it may cost, relative to the largest value of the output",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(metavar="1e-2"),
    )
    threads: int | None = option(
        None,
        "threads that run the model; None: TILEWRIGHT_THREADS, else all usable cores",
        effect=Effect.RESULT,
        kept=True,  # `tilewright.load` may say another number
        most=MOST,
        counts=lambda options: options.thread_count,
    )
    jobs: int | None = option(
        None,
        "most processes that compile kernels; None: TILEWRIGHT_JOBS, else one a usable core",
        effect=Effect.WORK,
        kept=False,  # a matter of the machine that compiles
        most=MOST,
    )
    inputs: Mapping[str, Any] | None = option(
        None,
        "shapes (or arrays) of inputs by name, for models with dynamic dimensions; a `Dim` in place of a size, or "
        "batch:1..64, stays open",
        effect=Effect.RESULT,
        kept=False,  # the inputs in the file have these shapes
        flag=Flag(
            "shape",
            "NAME=1x3x8x8",
            "Shape of an input with dynamic dimensions; repeat for more. With ranges, NAME=batch:1..64,seq:8..512:8, "
            "one program serves all sizes (here those of seq that 8 divides).",
            repeat=True,
            parse=shapes,
        ),
        counts=_given_shapes,
    )
    states: Mapping[str, Any] | None = option(
        None,
        "inputs that live between calls, with the outputs that are their next value: {'past_key': 'present_key'}",
        effect=Effect.RESULT,
        kept=False,  # a model with open shapes has none
        flag=Flag(
            "state",
            "INPUT=OUTPUT",
            "An input that lives between calls, and the output that is its next value; repeat for more.",
            repeat=True,
            parse=state_pairs,
        ),
        counts=lambda options: dict(options.states or {}),
    )
    arena_limit: int | None = option(
        None,
        "most bytes of working memory the model may need; more is an error",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(
            metavar="128K",
            help="Most bytes of working memory the model may need; more is an error. K, M and G are understood.",
            parse=number_of_bytes,
        ),
    )
    specialize: str = option(
        "open",
        "which programs a model with open shapes gets: open (one for all sizes), background (and some for sizes that "
        "recur, made by another process), now (one for each size, compiled in its call), or never (those made ahead: a "
        "call with other sizes is an error)",
        effect=Effect.WORK,
        kept=True,
        choices=("open", "now", "never", "background"),
    )
    buckets: Mapping[str, Any] | None = option(
        None,
        "sizes that the inputs of a model with open shapes are padded to, by the name of the dimension; outputs are "
        "cut back. The meaning of the model has to allow it",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(
            metavar="NAME=32,64",
            help="Sizes that a named dimension is padded to, the outputs are cut back; repeat for more. The meaning of "
            "the model has to allow it (a mask covers what is padded).",
            repeat=True,
            parse=bucket_texts,
        ),
    )
    pad: Mapping[str, Any] | None = option(
        None,
        "what inputs are padded with where there are buckets: {'ids': 1}; 0 for those that are not named",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(
            metavar="INPUT=0",
            help="With --buckets: what an input is padded with, if not 0; repeat for more.",
            repeat=True,
            parse=numbers,
        ),
    )
    specializations: int | None = option(
        None,
        "programs kept for each stage of a model with open shapes, one for each combination of shapes; "
        "None: 16 to 64, by their memory",
        effect=Effect.WORK,
        kept=True,
    )
    operators: int | None = option(
        None,
        "most operators that a model may become, with its functions inlined and its loops unrolled; None: 100000",
        effect=Effect.WORK,
        kept=True,
    )
    deadline: float | None = option(
        None,
        "seconds a compilation may take, or making a new part of a model with open shapes; None: 7200",
        effect=Effect.WORK,
        kept=True,
        flag=Flag(metavar="SECONDS"),
    )
    fast_math: bool = option(
        False,
        "rewrites that change numbers: constants in a row become one, functions that overflow become ones that do not "
        "(docs/semantics.md)",
        effect=Effect.RESULT,
        kept=True,
    )
    winograd: bool = option(
        True,
        "3x3 convolutions by Winograd's method where it is faster; costs about 1e-6 of the largest result each",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(help="3x3 convolutions by the direct method only."),
    )
    stream: bool = option(
        True,
        "on small targets run layers row by row where that lowers the working memory",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(help="Small targets: run no layers row by row, whatever memory that would save."),
    )
    verify: bool = option(
        False, "check every kernel against its reference after compiling", effect=Effect.LOOK, kept=True
    )
    cache: bool = option(
        True,
        "use the caches of kernels and of packages on disk",
        effect=Effect.WORK,
        kept=True,
        flag=Flag(help="Compile every kernel anew."),
    )
    tuned: bool = option(
        True,
        "use schedules that `tilewright tune` found, from the tuning database",
        effect=Effect.RESULT,
        kept=True,
        flag=Flag(help="Use default schedules, not those that `tune` found."),
    )
    schedules: Mapping[str, Any] | None = option(
        None,
        "traces (text) by the name of a kernel, or by how its name begins: what is scheduled so, not by the rules",
        effect=Effect.RESULT,
        kept=False,  # a model with open shapes has no kernels yet that it could name
        flag=Flag(
            "schedule",
            "KERNEL=FILE",
            "Schedule a kernel, or all whose names begin so, by this trace.",
            repeat=True,
            parse=traces,
        ),
        counts=lambda options: dict(options.schedules or {}),
    )
    place: Mapping[str, Any] | None = option(
        None,
        "on a target of several devices (opencl+cpu): the device by the name of a node, an operator or a kernel, or "
        "'*' for all others",
        effect=Effect.RESULT,
        kept=False,  # as with schedules
        flag=Flag(
            "place",
            "NAME=DEVICE",
            "On a target of several devices: run a node, an operator or a kernel there, '*' for all others; repeat for "
            "more.",
            repeat=True,
            parse=devices,
        ),
        counts=lambda options: dict(options.place or {}),
    )
    check_indices: bool = option(
        False,
        "a gather's or scatter's index out of range ends the run in an InputError; False: it is clamped",
        effect=Effect.RESULT,
        kept=True,
    )
    print_after: tuple[str, ...] = option(
        (),
        "stages, or passes (simplify/fold), after which the IR is printed to stderr; 'all' for every stage",
        effect=Effect.LOOK,
        kept=False,
        flag=Flag(
            metavar="STAGE|STAGE/PASS|all",
            help="Stages, or passes (simplify/fold), after which the IR is printed to stderr; 'all' for every stage. "
            "May be repeated.",
            repeat=True,
        ),
    )
    stop_after: str | None = option(
        None,
        "stage after which the compilation ends",
        effect=Effect.LOOK,
        kept=False,
        flag=Flag(metavar="STAGE", help="Stop after this stage and print its IR instead of going on."),
    )
    dump: str | os.PathLike[str] | None = option(  # noqa: RUF009  # makes a field, like the others
        None,
        "folder that gets one numbered file of IR a stage",
        effect=Effect.LOOK,
        kept=False,
        flag=Flag(metavar="DIR", parse=lambda _, text: str(Path(text))),
    )
    time: bool = option(
        False, "print the time of every stage, and of each of its passes, to stderr", effect=Effect.LOOK, kept=False
    )

    def __post_init__(self) -> None:
        if isinstance(self.print_after, str):
            object.__setattr__(self, "print_after", (self.print_after,))
        for f in fields(self):
            check(f, getattr(self, f.name))
        if self.buckets is not None:
            object.__setattr__(self, "buckets", bucket_sizes(self.buckets))
        check_pad(self.pad or {}, self.buckets)
        if (self.precision == "auto") != (self.tolerance is not None):
            given = f"precision {self.precision!r}" + ("" if self.tolerance is None else " takes no tolerance")
            raise UsageError(
                given if self.tolerance is not None else f"{given} needs a tolerance",
                hint="give precision='auto' and a tolerance such as 1e-2, or another precision and none",
            )

    @classmethod
    def of(cls, **chosen: Any) -> Options:
        """Options from keyword arguments; UsageError names an unknown one and the nearest known."""
        known = [f.name for f in fields(cls)]
        for name in chosen:
            if name not in known:
                import difflib

                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
                raise UsageError(f"unknown option {name!r}", hint=hint)
        return cls(**chosen)

    @classmethod
    def restore(cls, kept: Mapping[str, Any]) -> Options:
        """Options from what `kept` gave to a file; what an older file lacks has its default. PackageError for an option
        that this version does not know, or a value that cannot be.

        >>> Options.restore(Options(winograd=False).kept()).winograd
        False
        """
        try:
            return cls.of(**kept)
        except UsageError as e:
            raise PackageError(
                f"the model was saved with options of another version: {e.message}",
                stage="load",
                hint="compile the model again with this version",
            ) from None

    def kept(self) -> dict[str, Any]:
        """What the file of a model with open shapes keeps, by name: what the programs that it makes after loading are
        made with. JSON can hold it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if OptionInfo.of(f).kept}

    def key(self) -> dict[str, Any]:
        """What decides the result of a compilation, by name, for the key of the package cache."""
        found = {}
        for f in fields(self):
            info = OptionInfo.of(f)
            if info.effect is Effect.RESULT:
                found[f.name] = info.counts(self) if info.counts is not None else getattr(self, f.name)
        return found

    @property
    def looks(self) -> bool:
        """Whether the stages are wanted for themselves, so that they have to run."""
        return any(getattr(self, f.name) for f in fields(self) if OptionInfo.of(f).effect is Effect.LOOK)

    @property
    def thread_count(self) -> int:
        return self.threads if self.threads is not None else get("TILEWRIGHT_THREADS")

    @property
    def job_count(self) -> int:
        return self.jobs if self.jobs is not None else get("TILEWRIGHT_JOBS")


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose ``**options`` interpreters and notebooks know by name, type and default.

    >>> import tilewright, inspect
    >>> inspect.signature(tilewright.compile).parameters["precision"].default
    'f32'
    """
    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(Options)
        if f.name not in own.parameters
    ]
    function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    return function


class OptionsDict(TypedDict, total=False):
    """The fields of `Options` as keyword arguments, for editors and type checkers; `stop_after` stands apart, because
    it decides what `tilewright.compile` returns. A test compares the two."""

    target: str
    precision: str
    tolerance: float | None
    threads: int | None
    jobs: int | None
    inputs: Mapping[str, Any] | None
    states: Mapping[str, Any] | None
    arena_limit: int | None
    specialize: str
    buckets: Mapping[str, Any] | None
    pad: Mapping[str, Any] | None
    specializations: int | None
    operators: int | None
    deadline: float | None
    fast_math: bool
    winograd: bool
    stream: bool
    verify: bool
    cache: bool
    tuned: bool
    schedules: Mapping[str, Any] | None
    place: Mapping[str, Any] | None
    check_indices: bool
    print_after: tuple[str, ...] | list[str] | str
    dump: str | os.PathLike[str] | None
    time: bool
