"""A language model as a program: two entries, for few tokens and for many, over one copy of the weights and one cache.

runner = load_model("SmolLM2-135M", threads=2)
result = runner.step(batch)         # see `batch.Batch`
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..driver.package_cache import deciding, keeps
from ..runtime.entries import MultiExecutable
from ..runtime.load import load
from ..support.dims import Dim
from ..support.errors import InputError, PackageError, UsageError
from ..support.files import own_folder, trusted
from ..support.lru_folder import trim, used
from ..support.options import Options, get
from .batch import Batch, Limits, Result
from .config import Pool

if TYPE_CHECKING:
    from .config import Model

#: steps of at most so many tokens are the entry "decode", of more "prefill"
DECODE_TOKENS = 16
#: part of every key of the cache; another one for another form of the programs
FORM = "language model 1"
#: what a package says of itself, in the report of its entry "decode"
REPORT = "language_model"
#: says how far loading is: what is done now, and which part of all, 0 to 1
Hook = Callable[[str, float], None]


class Source(Protocol):
    """A model that can be compiled. `digest` says all that it is made of; reading it is put off until `read`."""

    def digest(self) -> str: ...

    def read(self) -> tuple[Model, Mapping[str, Any]]: ...


@dataclass(frozen=True)
class Plan:
    """What a program is made for: see `Limits`; `context` and `tokens` as there, `dtype` of the cache, `precision` of
    products ("f32", or "bf16" for activations too)."""

    context: int = 4096
    sequences: int = 16
    tokens: int = 512
    page_length: int = 16
    pages: int = 1024
    snapshots: int = 64
    dtype: str = "bf16"
    precision: str = "f32"

    def __post_init__(self) -> None:
        for name in ("context", "sequences", "page_length", "pages"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.tokens <= DECODE_TOKENS:
            raise UsageError(f"a step takes more than {DECODE_TOKENS} tokens, not {self.tokens}")
        for name, allowed in (("dtype", ("f32", "bf16", "f16")), ("precision", ("f32", "bf16"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} is {' or '.join(allowed)}, not {getattr(self, name)!r}")

    @property
    def pool(self) -> Pool:
        """The memory of the model."""
        return Pool(self.pages, self.page_length, self.snapshots, self.dtype)

    def dims(self) -> dict[str, dict[str, Dim]]:
        """The open dimensions of each entry."""
        table = -(-self.context // self.page_length)
        # decode first, as weights are packed as the first entry packs them (measured: it is good for prefill too)
        ranges = {"decode": (1, DECODE_TOKENS), "prefill": (DECODE_TOKENS + 1, self.tokens)}
        return {
            entry: {
                "T": Dim("T", low, high),
                "B": Dim("B", 1, min(self.sequences, high)),
                "N": Dim("N", 1, table),
                "R": Dim("R", 1, high),
            }
            for entry, (low, high) in ranges.items()
        }


class CompiledRunner:
    """A compiled model with its cache: `batch.Runner`. `executable` has the entries "decode" and "prefill", which share
    weights and states."""

    def __init__(self, executable: MultiExecutable) -> None:
        """PackageError for an executable that is no language model."""
        self.executable = executable
        entries = executable.entries
        found = entries["decode"].package.report.get(REPORT) if {*entries} == {"decode", "prefill"} else None
        if found is None:
            raise PackageError("the package is no language model", stage="load", hint="see tilewright.llm.load_model")
        self.architecture: str = found["architecture"]
        self.limits = Limits(**found["limits"])
        self._snapshots = frozenset(found["snapshots"])
        self._decode, self._prefill = entries["decode"], entries["prefill"]
        self._names = [t.name for t in self._decode.inputs]

    def step(self, batch: Batch) -> Result:
        """Run the model. InputError for arrays that do not fit together, or numbers that lead outside of the cache."""
        _check(batch, self.limits)
        entry = self._decode if len(batch.tokens) <= DECODE_TOKENS else self._prefill
        logits, hidden = entry(*[getattr(batch, n) for n in self._names])
        return Result(logits, hidden)

    def copy(self, pages: Sequence[tuple[int, int]], snapshots: Sequence[tuple[int, int]] = ()) -> None:
        """Copy pages, and snapshots, of all layers: pairs of from and to, one after the other."""
        for _, values, pairs in self._pools(pages, snapshots):
            for old, new in pairs:
                values[new] = values[old]

    def read(self, pages: Sequence[int], snapshots: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Copies of pages and snapshots, by the name of the state."""
        return {name: values[np.asarray(at, np.intp)] for name, values, at in self._pools(pages, snapshots)}

    def write(self, values: dict[str, np.ndarray], pages: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        """The inverse of `read`, to other pages and snapshots."""
        for name, mine, at in self._pools(pages, snapshots):
            if len(at):
                mine[np.asarray(at, np.intp)] = values[name]

    def _pools(self, pages: Sequence[Any], snapshots: Sequence[Any]) -> Iterator[tuple[str, np.ndarray, Sequence[Any]]]:
        states = self.executable.states
        for name in states:
            yield name, states[name], snapshots if name in self._snapshots else pages

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights and the form of the cache: states that were saved fit a model with the same one."""
        found = hashlib.sha256(repr([(n, s.dtype, s.shape[1:]) for n, s in self.executable.states.items()]).encode())
        for array in self._decode.package.constants:
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        return found.hexdigest()

    def reset(self) -> None:
        """All pages and snapshots are zeros again."""
        self.executable.reset()

    def close(self) -> None:
        """End the threads."""
        self.executable.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a package that `load_model` reads."""
        self.executable.save(path)


def _check(batch: Batch, limits: Limits) -> None:
    tokens, (sequences, pages) = len(batch.tokens), batch.table.shape
    checks = (
        (1 <= tokens <= limits.tokens, f"{tokens} tokens, a step takes 1 to {limits.tokens}"),
        (1 <= sequences <= limits.sequences, f"{sequences} sequences, a step takes 1 to {limits.sequences}"),
        (
            batch.positions.shape == batch.slots.shape == (tokens,) and batch.starts.shape == (sequences + 1,)
            and batch.lengths.shape == (sequences,) and batch.rows.ndim == 1,
            "arrays of sizes that do not fit together",
        ),
    )  # fmt: skip
    for right, text in checks:
        if not right:
            raise InputError(f"a step of {text}", stage="run")
    starts, lengths, rows = batch.starts, batch.lengths, batch.rows
    new = starts[1:] - starts[:-1]
    inside = (
        ("tokens", batch.tokens, 0, limits.vocabulary),
        ("slots", batch.slots, -1, limits.pages * limits.page_length),
        ("table", batch.table, 0, limits.pages),
        ("rows", rows, 0, tokens),
        ("lengths", lengths, 1, min(limits.context, pages * limits.page_length) + 1),
        *((("initial", batch.initial, -1, limits.snapshots),) if batch.initial is not None else ()),
        *((("keep", batch.keep, -1, limits.snapshots),) if batch.keep is not None else ()),
    )
    for name, values, low, high in inside:
        if values.size and not (low <= values.min() and values.max() < high):
            raise InputError(f"{name} of a step are {low} to {high - 1}, got {values.tolist()}", stage="run")
    if starts[0] != 0 or starts[-1] != tokens or new.min() < 1 or (new > lengths).any():
        raise InputError(
            f"starts {starts.tolist()} do not divide {tokens} tokens of lengths {lengths.tolist()}", stage="run"
        )


def compilations() -> int:
    """How many compilations this process has begun: a server that serves begins none."""
    compiler = sys.modules.get(f"{__package__.rpartition('.')[0]}.driver.compiler")
    return 0 if compiler is None else int(compiler.begun)


def compile_model(
    model: Model, weights: Mapping[str, Any], plan: Plan, options: Options, progress: Hook | None = None
) -> CompiledRunner:
    """A model with weights by the names of `config.Model`, compiled. ModelError for weights that are missing,
    UnsupportedError for weights that nothing reads."""
    from .decoder import compiled

    return CompiledRunner(compiled(model, weights, plan, options, progress))


def load_model(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    context: int = 4096,
    sequences: int = 16,
    cache_tokens: int | None = None,
    cache_dtype: str = "bf16",
    precision: str = "f32",
    tokens: int = 512,
    page_length: int = 16,
    snapshots: int = 64,
    cache: bool = True,
    progress: Hook | None = None,
) -> CompiledRunner:
    """The model in a folder of Hugging Face (config.json, safetensors), in a GGUF file (the first of its parts), or in
    a package that `save` wrote.

    context: most positions of a sequence. sequences, tokens: most of one step. cache_tokens: positions of all pages
    together; None: four sequences of full length. cache: keep the compiled program on disk, so that a second start
    loads it. progress: is called with what is done now and how far that is, 0 to 1.

    ModelError, UnsupportedError: a checkpoint that is damaged, or asks for what is not known. A package has limits of
    its own: those given here have no meaning for it.
    """
    report = progress or (lambda stage, part: None)
    report("looking at the files", 0.0)
    source = source_of(path)
    if source is None:
        executable = load(path, threads=threads)
        if not isinstance(executable, MultiExecutable):
            raise PackageError(f"{path} is no language model", stage="load")
        return CompiledRunner(executable)
    pages = -(-(cache_tokens or 4 * context) // page_length)
    plan = Plan(context, sequences, tokens, page_length, pages, snapshots, cache_dtype, precision)
    options = Options.of(threads=threads, cache=cache)
    place = _place(source, plan, options) if keeps(options) else None
    if place is not None and (found := _kept(place, threads)) is not None:
        report("ready", 1.0)
        return found
    model, weights = source.read()
    runner = compile_model(model, weights, plan, options, progress)
    if place is not None:
        report("keeping the program", 0.95)
        runner = _keep(runner, place, threads)
    report("ready", 1.0)
    return runner


def source_of(path: str | os.PathLike[str]) -> Source | None:
    """What is at a path; None for a package. UsageError for what is neither."""
    from .checkpoint import FolderSource

    where = Path(path)
    if where.is_dir():
        return FolderSource(where)
    if not where.is_file():
        raise UsageError(
            f"there is no model at {path}", hint="a folder of Hugging Face, a GGUF file, or a package (.tw)"
        )
    if where.suffix == ".gguf":
        from .gguf.model import GgufSource

        return GgufSource(where)
    return None


# ---- the cache of programs -----------------------------------------------------------------------------------------


def _place(source: Source, plan: Plan, options: Options) -> Path:
    parts = [FORM, source.digest(), json.dumps(asdict(plan)), *deciding(options)]
    key = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()
    return Path(get("TILEWRIGHT_CACHE")) / "models" / f"{key}.tw"


def _kept(place: Path, threads: int | None) -> CompiledRunner | None:
    """The program that was kept there; None if there is none. A damaged one is deleted."""
    try:
        if not place.is_file() or not trusted(place, get("TILEWRIGHT_CACHE")):
            return None
        executable = load(place, threads=threads)
    except PackageError:
        with suppress(OSError):
            place.unlink()
        return None
    except OSError:
        return None
    used(place)
    return CompiledRunner(executable) if isinstance(executable, MultiExecutable) else None


def _keep(runner: CompiledRunner, place: Path, threads: int | None) -> CompiledRunner:
    """The program from the file where it is kept from now on, whose weights are mapped; as it is where nothing can be
    written."""
    with suppress(OSError, UsageError):
        if own_folder(place.parent, get("TILEWRIGHT_CACHE")):
            runner.save(place)
            trim(place.parent, 1, max(get("TILEWRIGHT_PACKAGES_SIZE"), 2 * place.stat().st_size))
            if (kept := _kept(place, threads)) is not None:
                runner.close()
                return kept
    return runner


__all__ = ["CompiledRunner", "Plan", "Source", "compilations", "compile_model", "load_model", "source_of"]
