"""The executable of a model with dynamic shapes: a program for all sizes, and specializations for those called with.

    run = tw.compile("bert.onnx")              # ids: i64[batch, sequence]
    y, = run(np.zeros((1, 128), np.int64))     # runs the program for all sizes
    run.specialize({"ids": (8, 128)})          # compiles a faster one for 8 x 128
    run.save("bert.tw")                        # with both

See docs/dynamic_models.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..program.versions import BOUND, Limits, Versions
from ..support.aligned import address
from ..support.dtypes import DTYPES
from ..support.errors import InputError, UsageError
from ..support.notebook import NotebookText, fragment
from ..support.numbers import size
from . import arrays
from .background import Shapes, shapes_of
from .buckets import Buckets
from .copies import Copyable
from .executable import Executable, MemoryUsage
from .open_executable import OpenExecutable
from .open_parts import OpenPart
from .parts import DynamicInfo, Frame, Source, SpecializedSubgraph, StoredSource, Subgraph
from .staged import RunProfiler, Staged

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..support.options import Options
    from .open_versions import OpenVersions
    from .profile import Profile

log = logging.getLogger("tilewright")
#: programs that an error lists
SHOWN = 16
#: a program that takes the arguments of calls as they are
Version = Callable[..., list[Any] | None]


class DynamicExecutable(Copyable):
    """A model that compiles itself for the shapes it is called with; from `tilewright.compile` and `tilewright.load`.

    Called like an `Executable`, from several threads too. `inputs` and `outputs` are `DynamicInfo`s. Values of small
    integer inputs that decide shapes count as shapes. Of each stage of the model the parts used last are kept, as many
    as the option `specializations` says; None: at least 16, and up to 64 while they take no more than 1 GiB
    (docs/dynamic_models.md).
    """

    def __init__(
        self,
        source: Callable[[], Source],
        build: Callable[[Graph, str], Executable],
        inputs: Sequence[DynamicInfo],
        outputs: Sequence[DynamicInfo],
        store: Callable[[], StoredSource],
        *,
        name: str = "model",
        options: Options,
    ) -> None:
        """`build` compiles a graph for the body of that name, with the same `options`."""
        self.inputs, self.outputs, self.store = list(inputs), list(outputs), store
        #: those that a file keeps
        self.options = options.kept()
        self.name, self.threads = name, options.thread_count
        self.staged = Staged(source, build, options.specializations, self._made)
        self.staged.operators, self.staged.deadline = options.operators, options.deadline
        #: None without the option
        self.buckets = Buckets.of(options, self.inputs, self.outputs)
        if self.buckets is not None:
            self.staged.reserved = max(self.staged.reserved, len(self.buckets))
        if options.specialize == "never":
            self.staged.refuse = self._refused
        self.compiled = 0
        self._warned = False
        #: what calls with inputs of some shapes go straight to, as long as no version is made or dropped
        self._direct: Versions[Shapes, Version, None] = Versions(Limits(BOUND))
        self._last: SpecializedSubgraph | None = None
        #: makes the programs for all sizes, which serve what there is no fixed version for; None where none are made
        self.open_versions: OpenVersions | None = None

    # ---- running ----

    def __call__(
        self, /, *args: object, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None, **named: object
    ) -> list[Any]:
        """Run the model: arrays in the order of `inputs`, by keyword, or as a dict by name; returns a list of outputs.

        A sequence is a list of arrays, an empty optional None (and may be left out of a dict). InputError says what is
        wrong with an argument; CompileError, UnsupportedError and ModelError come from compiling for new shapes.
        """
        args = arrays.with_named(self.inputs, args, named) if named else args
        if self._direct and (version := self._direct.get(shapes_of(self.inputs, args) or ())) is not None:
            try:
                if (found := version(*args, out=out)) is not None:
                    return found
            except InputError:
                pass  # said below, in terms of the model's inputs
        self._last, given = None, self._bind(args)
        results = self._run(given)
        if out is not None:
            return arrays.copy_outputs(out, self.outputs, results, given.values())
        if self.buckets is None and (alone := self._alone(given)) is not None:
            self._direct.keep(tuple([a.shape for a in given.values()]), alone)
        return results

    def _alone(self, given: Mapping[str, Any]) -> Version | None:
        """The fixed version for inputs by name in order, where it is all that they need: no values that decide shapes,
        no operators on the host, no other parts, no inputs that are no arrays. It gives None for other arguments."""
        body, names = self.staged.bodies.get("main"), tuple(given)
        stage = None if body is None else body.first
        if body is None or stage is None or stage.frozen or not all(type(a) is np.ndarray for a in given.values()):
            return None
        part = stage.parts.get(key := stage.key(Frame(dict(given))))
        executable = None if part is None else part.executable
        if part is None or executable is None or part.actions or part.following is not None:
            return None
        results, feeds = [part.results.get(n) for n in body.info.outputs], [n for n in part.feeds if n in names]
        if results != [["out", i] for i in range(len(executable.outputs))] or len(feeds) < len(part.feeds):
            return None
        places, parts, count = tuple(map(names.index, feeds)), stage.parts, len(names)

        def version(
            *args: object, out: Sequence[np.ndarray] | Mapping[str, np.ndarray] | None = None
        ) -> list[np.ndarray] | None:
            if len(args) == 1 and type(args[0]) is dict and len(args[0]) == count:
                args = tuple(map(args[0].get, names))
            if len(args) != count or out is not None:
                return None
            if self._last is not part:
                self._last = part
                parts.used(key)
            part.runs += 1
            return executable(*[args[i] for i in places])

        return version

    def drop(self, program: OpenExecutable) -> None:
        """Calls need this program no more: another one serves all that it does."""
        self._direct.clear()
        program.close()

    def run(self, inputs: object) -> list[Any]:
        """The same with all inputs in one argument: a dict by name, a list in order, or the only input itself."""
        return self(*arrays.spread(inputs))

    def _run(self, given: Mapping[str, Any], times: RunProfiler | None = None) -> list[Any]:
        """The outputs for inputs by name, which are padded and cut where there are buckets."""
        if self.open_versions is not None and times is None and not self.staged.has("main", given):
            program = self.open_versions.program_for(given)
            if program is not None:
                results = program(*given.values())
                self._direct.keep(tuple([a.shape for a in given.values()]), program)
                return results
        if self.buckets is None:
            return self.staged.run("main", dict(given), None, times)
        padded, sizes = self.buckets.pad(given)
        return self.buckets.cut(self.staged.run("main", padded, None, times), sizes)

    def specialize(self, shapes: Mapping[str, Sequence[int] | np.ndarray]) -> None:
        """Compile ahead for these shapes, as far as shapes alone decide; all tensor inputs have to be given. With an
        array for every input the model runs on them once, and everything is compiled that such a run needs.

        >>> # run.specialize({"ids": (8, 128)})
        """
        missing = [t.name for t in self.inputs if t.name not in shapes and not _static(t)]
        if missing:
            raise UsageError(f"specialize needs a shape for {', '.join(map(repr, missing))}", stage="specialize")
        self._direct.clear()
        with self.staged.ahead():
            if all(isinstance(shapes.get(t.name), np.ndarray) for t in self.inputs):
                self._run(self._bind((shapes,)))
                return
            values = {}
            for t in self.inputs:
                given = shapes.get(t.name, t.shape or ())
                shape = tuple(int(d) for d in (given.shape if isinstance(given, np.ndarray) else given))  # type: ignore[arg-type]
                values[t.name] = np.broadcast_to(np.zeros((), t.numpy_dtype), shape)
            self._bind((values,))
            if self.buckets is not None:
                values, _ = self.buckets.pad(values)
            self.staged.prepare("main", values)

    def specialize_buckets(self, sizes: Mapping[str, int] | None = None) -> None:
        """Compile ahead for every combination of buckets; `sizes` are those of named dimensions without buckets.
        UsageError if there are no buckets, or dimensions stay open.

        >>> # run.specialize_buckets({"batch": 1})
        """
        if self.buckets is None:
            raise UsageError("the model was compiled without buckets", stage="specialize", hint="buckets={name: sizes}")
        for shapes in self.buckets.combinations(sizes or {}):
            self.specialize(shapes)

    def profile(self, inputs: Mapping[str, object] | Sequence[object], repeats: int = 20) -> Profile:
        """Where the time of a run goes, as for an `Executable`: what a call with these inputs runs is measured. That is
        the program for all sizes, or the native parts, one after the other, and the operators on the host between them
        (``host.NonZero``, measured once), without a timeline."""
        from .profile import check_repeats, joined

        check_repeats(repeats)
        times = RunProfiler(repeats)
        given = self._bind(arrays.spread(inputs))
        if self.open_versions is not None and not self.staged.has("main", given):
            program = self.open_versions.program_for(given)
            if program is not None:
                return program.profile([given[t.name] for t in self.inputs], repeats)
        with self.staged.ahead():  # programs for these sizes are measured
            self._run(given)  # what is compiled for these shapes is no part of the run
            self._run(given, times)
        return joined(times.parts, self.name, self.options["target"], self.threads, repeats)

    # ---- arguments ----

    def _bind(self, args: tuple[object, ...]) -> dict[str, Any]:
        if len(args) == 1 and isinstance(args[0], Mapping):
            absent = {t.name: None for t in self.inputs if t.kind == "optional" and t.name not in args[0]}
            args = ({**args[0], **absent},)
        given = arrays.bind(self.inputs, args)
        symbols: dict[str, tuple[int, str]] = {}
        return {t.name: self._checked(t, value, symbols) for t, value in zip(self.inputs, given, strict=True)}

    def _checked(self, info: DynamicInfo, value: object, symbols: dict[str, tuple[int, str]]) -> Any:
        if info.kind == "optional" and value is None:
            return None
        if info.kind != "tensor" and isinstance(value, (list, tuple)):
            return [self._array(info, item) for item in value]
        if info.kind == "sequence":
            raise InputError(f"input {info.name!r} is a list of arrays, not a {type(value).__name__}", stage="run")
        array = self._array(info, value, info.shape)
        for axis, (d, n) in enumerate(zip(info.shape or (), array.shape, strict=False)):
            known, where = symbols.setdefault(d, (n, info.name)) if isinstance(d, str) else (n, "")
            if known != n:
                raise InputError(
                    f"dimension {axis} of input {info.name!r} ({info}) is {n}, but {d} is {known} in {where!r}",
                    stage="run",
                )
        return array

    def _array(self, info: DynamicInfo, value: object, shape: tuple[int | str | None, ...] | None = None) -> np.ndarray:
        array = value if type(value) is np.ndarray else np.asarray(arrays.imported(value, info, self.inputs))  # type: ignore[arg-type]
        same = array.dtype == info.numpy_dtype
        fits = shape is None or len(shape) == array.ndim
        if not (same and fits) or any(
            type(d) is int and d != n for d, n in zip(shape or (), array.shape, strict=False)
        ):
            cast = f"dtypes are not converted silently: pass x.astype({str(info.numpy_dtype)!r}) if you mean that"
            raise InputError(
                f"input {info.name!r} has {arrays.describe(array)}, the model takes {info}",
                stage="run",
                hint=f"expected inputs: {'; '.join(map(str, self.inputs))}" if same else cast,
            )
        return array

    def _refused(self, stage: Subgraph, frame: Frame) -> InputError:
        """What a call ends in that has no program, where none is made in calls."""
        wanted, *there = [describe_key(stage, key) or "()" for key in (stage.key(frame), *stage.parts)]
        more = f"; {len(there) - SHOWN} more" if len(there) > SHOWN else ""
        shown = f"there are programs for {'; '.join(there[-SHOWN:])}{more}" if there else "there is none"
        return InputError(
            f"there is no program for {wanted}, and specialize='never' compiles none in a call",
            stage="run",
            operator=None if stage.body.info.id == "main" else stage.body.info.id,
            hint=f"{shown}; compile ahead with `specialize` (given arrays, it makes all that such a run needs)",
        )

    # ---- what it is ----

    def _made(self, staged: Staged, stage: Subgraph, part: SpecializedSubgraph, frame: Frame) -> None:
        self.compiled += 1
        self._direct.clear()
        what = f"{self.name}: " if stage.body.info.id == "main" else f"{self.name} {stage.body.info.id}: "
        if part.form:
            form = describe_form(stage, stage.parts.open[0])
            log.info("%scompiled in %.2f s for all sizes of %s", what, part.seconds, form)
            return
        shapes, kept = describe_key(stage, stage.key(frame)) or "()", f"{len(stage.parts)} kept"
        log.info("%sspecialized for %s in %.2f s (%s)", what, shapes, part.seconds, kept)
        if stage.parts.again(stage.key(frame)) and not self._warned:
            self._warned = True
            log.warning(
                "%scompiled again for %s, which had to make room: more sizes are in use than the %d kept (pass "
                "specializations=, or buckets=)",
                what,
                shapes,
                len(stage.parts),
            )

    def parts(self) -> Iterator[tuple[Subgraph, tuple[object, ...], SpecializedSubgraph]]:
        """All fixed versions of subgraphs there are now, with their subgraph and key."""
        return ((stage, key, part) for stage in self._stages() for key, part in list(stage.parts.items()))

    def open_parts(self) -> Iterator[tuple[Subgraph, OpenPart]]:
        """All open versions of subgraphs there are now."""
        return ((stage, made) for stage in self._stages() for made in reversed(stage.parts.open))

    def _stages(self) -> list[Subgraph]:
        return [stage for body in list(self.staged.bodies.values()) for stage in list(body.stages.values())]

    def _executables(self) -> list[Executable]:
        parts = [p for _, _, p in self.parts()] + [made.part for _, made in self.open_parts()]
        return [*(p.executable for p in parts if p.executable is not None), *self.programs]

    @property
    def programs(self) -> list[OpenExecutable]:
        """The programs for all sizes, the latest first."""
        return self.open_versions.programs if self.open_versions is not None else []

    @property
    def arguments(self) -> list[Any]:
        """What a call takes: where one program serves all sizes, with sizes in the middle of its ranges."""
        programs, names = self.programs, {t.name for t in self.inputs}
        return [t for t in programs[0].arguments if t.name in names] if programs else self.inputs

    @property
    def memory(self) -> MemoryUsage:
        """Of all parts there are now; weights that parts share count once."""
        parts = self._executables()
        weights = {address(a): a.nbytes for e in parts for a in e.package.constants}
        every = [e.memory for e in parts]
        return MemoryUsage(
            sum(weights.values()),
            *(sum(getattr(m, f) for m in every) for f in ("arena", "arena_bound", "scratch", "code")),
        )

    def explain(self) -> NotebookText:
        """Inputs and outputs, and every part with what it was made for, its kernels and its steps on the host."""
        lines = [
            f"model: {self.name} (specializes itself)",
            f"target: {self.options['target']}, {self.threads} threads",
        ]
        lines += [f"input  {t}" for t in self.inputs] + [f"output {t}" for t in self.outputs]
        lines += [f"buckets {self.buckets}"] if self.buckets is not None else []
        parts = list(self.parts())
        memory = self.memory
        lines += ["", f"{len(parts)} parts, {self.compiled} compiled in this process"]
        lines += [f"weights {size(memory.weights)} (shared), code {size(memory.code)}, arenas {size(memory.arena)}"]
        every = [(s, describe_key(s, key), p, f"run {p.runs} times") for s, key, p in parts]
        every += [(s, describe_form(s, v), v.part, f"for {v.served} sizes so far") for s, v in self.open_parts()]
        for stage, sizes, part, use in every:
            calls = part.executable.package.program.calls if part.executable is not None else ()
            lines += ["", f"{stage.body.info.id}, {len(stage.todo)} nodes to do, for {sizes}"]
            lines += [f"  {len(calls)} kernel calls, made in {part.seconds:.2f} s, {use}"]
            lines += [f"  then {a.kind} {a.name}" for a in part.actions]
            lines += [] if part.following is None else [f"  then {len(part.following.todo)} nodes"]
        lines += self.open_versions.describe() if self.open_versions is not None else []
        return NotebookText("\n".join(lines))

    def facts(self) -> dict[str, Any]:
        """What `explain` says, as JSON data: ``model target threads inputs outputs memory programs``. Each of
        `programs` is what `Executable.facts` says of one, those for all sizes first."""
        programs, memory = self.programs, self.memory
        return {
            "model": self.name,
            "target": self.options["target"],
            "threads": self.threads,
            "inputs": [str(t) for t in self.inputs],
            "outputs": [str(t) for t in self.outputs],
            "memory": {n: getattr(memory, n) for n in ("weights", "arena", "arena_bound", "scratch", "code")},
            "programs": [e.facts() for e in (*programs, *(e for e in self._executables() if e not in programs))],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model and the parts made so far to one file that `tilewright.load` reads."""
        from .dynamic_package import save

        save(self, path)

    def export(self, folder: str | os.PathLike[str], **settings: Any) -> list[Path]:
        """As `Executable.export`, of the program for all sizes; UsageError where there is none."""
        return self._whole("exported").export(folder, **settings)

    def emulate(self, *args: object) -> Any:
        """As `Executable.emulate`, of the program for all sizes; UsageError where there is none."""
        return self._whole("emulated").emulate(*args)

    def _whole(self, what: str) -> Executable:
        """The program for all sizes, which has no parts on the host."""
        programs = self.programs
        if len(programs) != 1:
            why = (
                "is compiled for each size in its call" if not programs else "has several programs, each for some sizes"
            )
            raise UsageError(
                f"the model cannot be {what}: it {why}",
                stage="export",
                hint="give the sizes, or ranges for which it is one program: inputs={name: shape}, --shape NAME=SHAPE",
            )
        return programs[0]

    def close(self) -> None:
        """End the threads of all parts; the executable can still be called."""
        for executable in self._executables():
            executable.close()

    def _repr_html_(self) -> str:
        """For notebooks: what it takes and gives; the parts unfold."""
        rows = [(kind, str(t)) for kind, infos in (("input", self.inputs), ("output", self.outputs)) for t in infos]
        return fragment(f"{self.name}: {self.options['target']}", rows, self.explain(), "explain")

    def __repr__(self) -> str:
        inputs, outputs = ("; ".join(map(str, infos)) for infos in (self.inputs, self.outputs))
        return f"<DynamicExecutable ({inputs}) -> ({outputs}), {self.options['target']}, {self.threads} threads>"


def _static(info: DynamicInfo) -> bool:
    return info.kind == "tensor" and info.shape is not None and all(isinstance(d, int) for d in info.shape)


def describe_form(stage: Subgraph, made: OpenPart) -> str:
    """``ids i64[1, d0], n i64[] = [d1] with d0:1..128, d1:1..512``"""
    terms = map(made.form.text, made.form.terms)
    said = []
    for name, kind in zip(stage.reads, made.signature[1:], strict=True):
        if isinstance(kind, tuple) and kind[0] in ("array", "value", "const"):
            what, dtype, shape = kind
            dims = list(islice(terms, shape)) if what == "array" else shape
            text = f"{name} {DTYPES.get(dtype, dtype)}[{', '.join(map(str, dims))}]"
            said.append(text if what == "array" else f"{text} = [{', '.join(islice(terms, prod(shape)))}]")
    return f"{', '.join(said)} with {', '.join(map(str, made.form.dims))}"


def describe_key(stage: Subgraph, key: tuple[object, ...]) -> str:
    """``ids i64[1, 128], shape i64[2] = [3, 4]``"""
    said = []
    for name, entry in zip(stage.reads, key[1:], strict=True):
        if not isinstance(entry, tuple) or entry[0] == "list":
            continue
        dtype, shape, value = entry
        text = f"{name} {DTYPES.get(dtype, dtype)}{list(shape)}"
        if value is not None:
            numbers = np.frombuffer(value, dtype)
            shown = numbers[:8].tolist() if prod(shape) <= 8 else f"{numbers[:8].tolist()[:-1]} ..."
            text += f" = {shown}"
        said.append(text)
    return ", ".join(said)
