"""A language model as a program: two entries, for few tokens and for many, over one copy of the weights and one cache.

runner = load_model("SmolLM2-135M", threads=2)
result = runner.step(batch)         # see `batch.Batch`
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.package_cache import deciding, keeps
from ..program.package import load_entries, open_package, save_entries
from ..runtime.entries import MultiExecutable
from ..runtime.load import load
from ..support.aligned import aligned_copy
from ..support.errors import InputError, PackageError, UsageError
from ..support.files import own_folder, trusted
from ..support.lru_folder import trim, used
from ..support.options import DEFAULT_TARGET, Options, get
from ..targets import base
from .batch import Batch, ModelLimits, StepResult
from .plan import DECODE_TOKENS, REPORT, Hook, ModelPlan, ModelSource

if TYPE_CHECKING:
    from ..program.package import Package
    from .config import DecoderModel

#: part of every key of the cache; another one for another form of the programs
FORM = "language model 1"


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
        self.limits = ModelLimits(**found["limits"])
        self._snapshots = frozenset(found["snapshots"])
        self._decode, self._prefill = entries["decode"], entries["prefill"]
        self._names = [t.name for t in self._decode.inputs]
        self._on_device = base.recorded(self._decode.package.target).shares == "device"

    def step(self, batch: Batch) -> StepResult:
        """Run the model. InputError for arrays that do not fit together, or numbers that lead outside of the cache."""
        _check(batch, self.limits)
        entry = self._decode if len(batch.tokens) <= DECODE_TOKENS else self._prefill
        if self._on_device:  # which records its commands for each size: there are few widths of the table
            batch = replace(batch, table=_widened(batch.table, -(-self.limits.context // self.limits.page_length)))
        logits, hidden = entry(*[getattr(batch, n) for n in self._names])
        return StepResult(logits, hidden)

    def begun(self) -> CompiledRunner:
        """Itself, with weights and kernels on its device, if it has one, whose driver compiles them now: steps are run
        that write nothing."""
        for count in (1, min(DECODE_TOKENS + 1, self.limits.context)) if self._on_device else ():
            first, none, some = np.zeros(1, np.int32), np.full(count, -1, np.int32), np.arange(count, dtype=np.int32)
            table, size = np.zeros((1, -(-count // self.limits.page_length)), np.int32), first + np.int32(count)
            starts = np.concatenate([first, size])
            self.step(Batch(0 * some, some, none, starts, size, table, first, none[:1], none))
        return self

    def copy(self, pages: Sequence[tuple[int, int]], snapshots: Sequence[tuple[int, int]] = ()) -> None:
        """Copy pages, and snapshots, of all layers: pairs of from and to, one after the other."""
        for name, pairs in self._pools(pages, snapshots):
            self.executable.states.move(name, pairs)

    def read(self, pages: Sequence[int], snapshots: Sequence[int] = ()) -> dict[str, np.ndarray]:
        """Copies of pages and snapshots, by the name of the state."""
        return {name: self.executable.states.rows(name, at) for name, at in self._pools(pages, snapshots)}

    def write(self, values: dict[str, np.ndarray], pages: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        """The inverse of `read`, to other pages and snapshots."""
        for name, at in self._pools(pages, snapshots):
            if len(at):
                self.executable.states.put(name, at, values[name])

    def _pools(self, pages: Sequence[Any], snapshots: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
        for name in self.executable.states:
            yield name, snapshots if name in self._snapshots else pages

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights and the form of the cache: states that were saved fit a model with the same one."""
        states = [s.tensor for s in self._decode.package.program.states]
        found = hashlib.sha256(repr([(t.name, t.numpy_dtype, t.shape[1:]) for t in states]).encode())
        for array in self._decode.package.constants:
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
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


def _widened(table: np.ndarray, most: int) -> np.ndarray:
    """A table with zeros behind its columns: a power of two of them, at most `most`."""
    columns = min(1 << (table.shape[1] - 1).bit_length(), most)
    return np.pad(table, ((0, 0), (0, max(columns - table.shape[1], 0))))


def _check(batch: Batch, limits: ModelLimits) -> None:
    """InputError for what would lead outside of memory, or makes no sense."""
    tokens, rows = len(batch.tokens), len(batch.rows)
    if batch.table.ndim != 2:
        raise InputError(f"the table of a step is [B, N], got {list(batch.table.shape)}", stage="run")
    sequences, pages = batch.table.shape
    room = min(limits.context, pages * limits.page_length)
    arrays = (
        ("tokens", batch.tokens, tokens, 0, limits.vocabulary),
        ("positions", batch.positions, tokens, 0, limits.context),
        ("slots", batch.slots, tokens, -1, limits.pages * limits.page_length),
        ("starts", batch.starts, sequences + 1, 0, tokens + 1),
        ("lengths", batch.lengths, sequences, 1, room + 1),
        ("rows", batch.rows, rows, 0, tokens),
        ("initial", batch.initial, sequences, -1, limits.snapshots),
        ("keep", batch.keep, tokens, -1, limits.snapshots),
        ("table", batch.table, sequences, 0, limits.pages),
    )
    if not (1 <= tokens <= limits.tokens and 1 <= sequences <= limits.sequences and rows):
        raise InputError(
            f"a step takes 1 to {limits.tokens} tokens of 1 to {limits.sequences} sequences, and rows of them: got "
            f"{tokens}, {sequences} and {rows} rows",
            stage="run",
        )
    for name, values, count, low, high in arrays:
        if values is None:
            if limits.snapshots:
                raise InputError(f"a model with recurrent layers needs {name}", stage="run")
            continue
        if values.dtype != np.int32 or len(values) != count or values.ndim != 1 + (name == "table"):
            raise InputError(
                f"{name} of a step are i32 [{count}], got {values.dtype} {list(values.shape)}", stage="run"
            )
        # as numbers without a sign, what is below is far above
        if values.size and int((values - low if low else values).view(np.uint32).max()) >= high - low:
            raise InputError(f"{name} of a step are {low} to {high - 1}, got {values.tolist()}", stage="run")
    new = batch.starts[1:] - batch.starts[:-1]
    if batch.starts[0] or batch.starts[-1] != tokens or new.min() < 1 or (batch.lengths - new).min() < 0:
        raise InputError(
            f"{tokens} tokens of sequences of lengths {batch.lengths.tolist()} do not begin at {batch.starts.tolist()}",
            stage="run",
        )


def compilations() -> int:
    """How many compilations this process has begun: a server that serves begins none."""
    compiler = sys.modules.get(f"{__package__.rpartition('.')[0]}.driver.compiler")
    return 0 if compiler is None else int(compiler.begun)


def compile_model(
    model: DecoderModel, weights: Mapping[str, Any], plan: ModelPlan, options: Options, progress: Hook | None = None
) -> CompiledRunner:
    """A model with weights by the names of `config.DecoderModel`, compiled. ModelError for weights that are missing,
    UnsupportedError for weights that nothing reads."""
    from .decoder import compiled

    return CompiledRunner(MultiExecutable(compiled(model, weights, plan, options, progress), options.thread_count))


def load_model(
    path: str | os.PathLike[str],
    *,
    target: str = DEFAULT_TARGET,
    threads: int | None = None,
    context: int = 4096,
    sequences: int = 16,
    cache_tokens: int | None = None,
    cache_dtype: str = "bf16",
    precision: str = "auto",
    tokens: int = 512,
    page_length: int = 16,
    snapshots: int = 64,
    cache: bool = True,
    progress: Hook | None = None,
) -> CompiledRunner:
    """The model in a folder of Hugging Face (config.json, safetensors), in a GGUF file (the first of its parts), or in
    a package that `save` wrote.

    context: most positions of a sequence. sequences, tokens: most of one step. cache_tokens: positions of all pages
    together; None: all sequences at full length, as memory is taken when it is written (of a GPU it is taken at once).
    cache: keep the compiled program on disk, so that a second start loads it. progress: is called with what is done now
    and how far that is, 0 to 1.

    ModelError, UnsupportedError: a checkpoint that is damaged, or asks for what is not known. A package has limits and
    a target of its own: those given here have no meaning for it. TilewrightError if its device is not here.
    """
    report = progress or (lambda stage, part: None)
    report("looking at the files", 0.0)
    source = source_of(path)
    if source is None:
        executable = load(path, threads=threads)
        if not isinstance(executable, MultiExecutable):
            raise PackageError(f"{path} is no language model", stage="load")
        return CompiledRunner(executable).begun()
    pages = -(-(cache_tokens or sequences * context) // page_length)
    plan = ModelPlan(context, sequences, tokens, page_length, pages, snapshots, cache_dtype, precision)
    options = Options.of(target=target, threads=threads, cache=cache)
    place = _place(source, plan, options) if keeps(options) else None
    if place is not None and (found := _kept(place, threads)) is not None:
        found.begun()
        report("ready", 1.0)
        return found
    model, weights = source.read()
    if place is None:
        runner = compile_model(model, weights, plan, options, progress)
    else:
        from .decoder import compiled

        packages = compiled(model, weights, plan, options, progress, unloaded=True)
        report("keeping the program", 0.95)
        runner = _keep(packages, place, options)
    runner.begun()
    report("ready", 1.0)
    return runner


def source_of(path: str | os.PathLike[str]) -> ModelSource | None:
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


def _place(source: ModelSource, plan: ModelPlan, options: Options) -> Path:
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


def _keep(packages: dict[str, Package], place: Path, options: Options) -> CompiledRunner:
    """The program from the file where it is kept from now on, whose weights are mapped; in memory where nothing can be
    written. The packages' weights are computed as they are written (`entry_packages`)."""
    with suppress(OSError, UsageError, PackageError):
        if own_folder(place.parent, get("TILEWRIGHT_CACHE")):
            save_entries(packages, place)
            trim(place.parent, 1, max(get("TILEWRIGHT_PACKAGES_SIZE"), 2 * place.stat().st_size))
            written = load_entries(open_package(place), base.check, written=True)
            return CompiledRunner(MultiExecutable(written, options.thread_count))
    stored = {id(c): c for p in packages.values() for c in p.constants}
    made = {key: aligned_copy(c) for key, c in stored.items()}
    for package in packages.values():
        package.constants[:] = [made[id(c)] for c in package.constants]
    return CompiledRunner(MultiExecutable(packages, options.thread_count))


__all__ = ["CompiledRunner", "ModelPlan", "ModelSource", "compilations", "compile_model", "load_model", "source_of"]
