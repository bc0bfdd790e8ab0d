"""The pipeline: an ordered list of named stages. `compile_state` runs them; each can be listed, printed, dumped, timed,
stopped after and entered from a file.

    import -> simplify -> layout -> lower -> fuse -> schedule -> emit -> assemble -> package
              (level 2)            (3)              (4)         (5)     (6)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .budget import check_time, limited
from .errors import ModelError, TilewrightError, UsageError
from .ir.graph import Graph
from .mapped import MappedFile
from .mapped import check as check_files
from .options import Options, get
from .program.build import KernelInfo, build_program
from .program.memory import check_limit
from .program.package import Package
from .program.program import ALIGN
from .progress import Progress
from .report.facts import about
from .report.precision import precision_notes
from .runtime.executable import Executable
from .schedule.nest import Nest
from .schedule.rules import Scheduled, all_ours, direct_operators, reuses, writes_once
from .schedule.rules import schedule as schedule_kernel
from .schedule.rules.depthwise_chain import worth_joining
from .schedule.split import Divided, split
from .targets.base import Target, find
from .tensor.divide import apply_division, symbol_of
from .tensor.fold_constants import fold_constants
from .tensor.fuse import FusionReport, fuse
from .tensor.kernel import Kernel
from .tensor.lower import lower
from .tensor.read import read_kernel
from .tensor.share_padding import share_padding

#: level-2 passes of the stages "simplify" and "layout", in order
SIMPLIFY = (
    "clip-windows,simplify,fold,cse,dce,match-softmax,match-norm,match-activation,match-gelu,simplify,match-attention,"
    "fold-batch-norm,simplify,fold,cse,dce"
)
LAYOUT = "layout,transposed-conv,clip-windows,simplify,fold,cse,dce"


@dataclass
class State:
    """Everything a compilation has made so far; every stage reads and adds to it."""

    options: Options
    target: Target
    description: Any
    source: Any = None
    name: str = "model"
    graph: Graph | None = None
    fusion: FusionReport | None = None
    kernels: dict[str, Kernel] = field(default_factory=dict)
    schedules: dict[str, Scheduled] = field(default_factory=dict)
    nests: dict[str, Nest] = field(default_factory=dict)
    emitted: dict[str, str] = field(default_factory=dict)
    infos: dict[str, KernelInfo] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    package: Package | None = None
    #: what earlier compilations left (the target's `memo`), None if it is not to be used, and what it gave
    memo: Any = None
    recalled: dict[str, Any] = field(default_factory=dict)
    #: fused kernels that were cut in two -> why
    divided: dict[str, str] = field(default_factory=dict)
    #: level-3 text of the kernels that the memo does not know yet
    unknown: dict[str, str] = field(default_factory=dict)
    #: what the tuning database gave (`tune.lookup.Tuned`)
    tuned: Any = None
    #: the convolutions that may be computed in several ways (`graph.winograd.Layer` -> how many there are), and those
    #: ways where they are given, in place of the database's
    layers: Mapping[Any, int] = field(default_factory=dict)
    ways: Mapping[str, str] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    #: what of an earlier stage's seconds belongs to these, because workers did all of them at once
    ahead_seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    #: whether the graph's constants are not needed once they have been packed
    consume: bool = False
    #: whether the processes that compile kernels start when the model has been read
    ahead: bool = False
    #: files that the constants are mapped from, the model's own first where it is one
    files: tuple[MappedFile, ...] = ()
    #: with `verify`: the first and the last level-2 graph
    references: list[Graph] = field(default_factory=list)

    #: the line that shows how far a compilation is
    progress: Progress | None = None

    def kernel_done(self, done: int, count: int, symbol: str = "") -> None:
        """So many kernels of this stage are done."""
        if self.progress is not None:
            self.progress.kernel(done, count, symbol)

    @property
    def module(self) -> Graph:
        assert self.graph is not None, "no graph has been imported"
        return self.graph


@dataclass(frozen=True)
class Stage:
    """A named step: the level of its result, what it does, `run(state)`, and `show(state)`, the text of its result."""

    name: str
    level: int
    doc: str
    run: Callable[[State], None]
    show: Callable[[State], str]


# ---- the stages ----------------------------------------------------------------------------------------------------


def import_source(state: State) -> None:
    """Source -> level 2 (or 3 for linalg files); see `frontends`."""
    from .frontends import load_source

    lazy = state.options.stop_after is None  # then what is known at run time only is left to `dynamic`
    state.graph, state.name = load_source(state.source, state.options.inputs, lazy, state.options.check_indices)
    state.files = state.graph.constants.files


def _passes(state: State, pipeline: str) -> bool:
    """Run level-2 passes; whether one of them reports a change."""
    from .graph.passes import parse_pipeline, run_pipeline

    return any(any(report.values()) for _, report in run_pipeline(state.module, parse_pipeline(pipeline)))


def simplify(state: State) -> None:
    if state.module.level == 2:
        kept = getattr(state.description, "activations", "i8")  # the 8-bit numbers that the machine multiplies
        changed = _passes(state, f"integers{{activations={kept}}}")
        if changed and state.references:  # integers are defined anew, within a quantum of what floats give
            state.references[-1] = state.module.clone()
        _passes(state, SIMPLIFY)


def layout(state: State) -> None:
    if state.module.level == 2:
        lanes = getattr(state.description, "image_lanes", 0) if state.options.precision == "f32" else 0
        _passes(state, LAYOUT.replace("layout", f"layout{{lanes={lanes}}}", 1))
        if getattr(state.description, "split_windows", False):
            _passes(state, "split-windows,dce")
        # tiles of bf16 multiply more than Winograd's method saves
        tiles = state.options.precision == "bf16" and any(
            t.dtype == "bf16" for t in getattr(state.description, "tiles", ())
        )
        if state.options.winograd and getattr(state.description, "winograd", False) and not tiles:
            _winograd(state)
        if state.options.precision == "f32" and getattr(state.description, "split_sums", False):
            _passes(state, "split-sums,dce")
        if state.options.precision != "f32":
            _passes(state, f"precision{{dtype={state.options.precision}}},cse,dce")


def _winograd(state: State) -> None:
    """3x3 convolutions by Winograd's method: as it was measured, else as it is estimated."""
    from .graph.winograd import layers

    plain = state.options.precision == "f32"
    state.layers = layers(state.module) if plain else {}
    tuned = _open_tuned(state) if state.layers and state.ways is None else None
    found = state.ways or {}
    if tuned is not None:
        found = {str(layer): way for layer in state.layers if (way := tuned.way(layer)) is not None}
    ways = "/".join(f"{layer}:{way}" for layer, way in found.items())
    worth = 0.9 if plain else 0.45  # the direct way takes half the time in bf16
    _passes(state, f"winograd{{worth={worth}{f',ways={ways}' if ways else ''}}},dce")


def _open_tuned(state: State) -> Any:
    """What the tuning database knows, None if it is not to be asked."""
    from .tune.lookup import Tuned

    if state.tuned is None and state.options.tuned:
        state.tuned = Tuned.open(state.target, state.description, state.options.thread_count)
    return state.tuned


def lower_graph(state: State) -> None:
    if state.module.level == 2:
        state.graph = lower(state.module, direct_operators())
        fold_constants(state.module)
        share_padding(state.module)
    state.module.verify("lower")


def fuse_graph(state: State) -> None:
    d = state.description
    joins = partial(worth_joining, machine=d) if getattr(d, "row_chains", False) else None
    state.graph, state.fusion = fuse(state.module, writes_once(), joins, reuses())
    state.module.verify("fuse")


def schedule_kernels(state: State) -> None:
    """Kernels -> loop nests: by the tuning database if it has them, else by the default rules."""
    tuned = _open_tuned(state)
    while parts := _schedule_new(state, tuned):  # some are cut in two: then their parts are new
        for name, divided in parts.items():
            apply_division(state.module, name, divided.module)
            state.divided[name] = divided.why
        state.module.verify("schedule")
        state.texts["fuse"] = _graph_text(state)  # the kernels that there are
    order = [n for f in state.module.functions() if (n := symbol_of(f)) in state.kernels]
    tables: tuple[dict[str, Any], ...] = (state.kernels, state.schedules, state.nests)
    for table in tables:
        table.update([(n, table.pop(n)) for n in order])
    if tuned is not None:
        tuned.close()
    if getattr(state.description, "stream_rows", False) and state.options.stream:
        _stream(state)


def _schedule_new(state: State, tuned: Any) -> dict[str, Divided]:
    """Schedule the kernels that have no nest yet; returns those to be cut into parts instead."""
    functions = [f for f in state.module.functions() if symbol_of(f) not in {*state.nests, *state.recalled}]
    of = {symbol_of(f): f for f in functions}
    todo = _make(state, [k for f in functions if not _recall(state, k := read_kernel(f), f, tuned)])
    for number, kernel in enumerate(todo):
        state.kernel_done(number, len(todo))
        check_time("schedule", kernel.name)
        name = kernel.name
        made = tuned.schedule(kernel, state.description) if tuned else schedule_kernel(kernel, state.description)
        if (tuned is None or name not in tuned.used) and (cut := split(of[name], made, state.description)) is not None:
            if name in state.unknown:
                state.memo.keep(state.unknown.pop(name), cut)
            state.recalled[name] = cut
            continue
        state.kernels[name], state.schedules[name], state.nests[name] = kernel, made, made.nest
    return {name: state.recalled.pop(name) for name in of if isinstance(state.recalled.get(name), Divided)}


def _stream(state: State) -> None:
    """Kernels that run row by row, where that lowers the arena's peak."""
    from .program.stream import stream

    d, limit = state.description, state.options.arena_limit
    for made in stream(state.module, state.kernels, state.nests, d, getattr(d, "arena_align", ALIGN), limit):
        name = made.kernel.name
        state.kernels[name], state.schedules[name], state.nests[name] = made.kernel, made.scheduled, made.nest
    state.module.verify("schedule")
    called = {str(f.attributes["sym_name"]).strip('"') for f in state.module.functions()}
    for table in (state.kernels, state.schedules, state.nests):
        for name in [n for n in table if n not in called]:
            del table[name]


def _recall(state: State, kernel: Kernel, function: Any, tuned: Any) -> bool:
    """Whether an earlier compilation scheduled the same kernel in the default way."""
    if state.memo is None or (tuned is not None and tuned.knows(kernel)):
        return False
    text = function.operation.get_asm(use_local_scope=True)
    known = state.memo.recall(text)
    if known is None:
        state.unknown[kernel.name] = text
        return False
    state.recalled[kernel.name] = known
    return True


def _make(state: State, kernels: list[Kernel]) -> list[Kernel]:
    """Let worker processes take new kernels all the way to object code, if there are several of both; returns those
    that are left."""
    texts = {k.name: state.unknown[k.name] for k in kernels if k.name in state.unknown}
    if len(texts) < 2 or state.options.job_count < 2 or get("TILEWRIGHT_COMPILE") == "inprocess":
        return kernels
    begin = time.perf_counter()
    made, spent = state.memo.make(texts, state.options.job_count, state.kernel_done)
    taken, total = time.perf_counter() - begin, sum(spent.values())
    for stage, seconds in spent.items():  # of the time that passed, the part that stage has of all that workers did
        share = taken * seconds / total if total else 0.0
        state.ahead_seconds[stage] = state.ahead_seconds.get(stage, 0.0) + share
    state.recalled.update(made)
    for name in made:
        del state.unknown[name]
    return [k for k in kernels if k.name not in made]


def make_package(state: State) -> None:
    d = state.description  # a machine with little memory says how its arena is aligned, and that order matters
    align, minimize = getattr(d, "arena_align", ALIGN), getattr(d, "minimize_memory", False)
    program, constants = build_program(state.module, state.infos, align=align, minimize=minimize, consume=state.consume)
    if state.options.arena_limit is not None:
        off = getattr(d, "stream_rows", False) and not state.options.stream
        check_limit(program, state.options.arena_limit, ["layers that run row by row (stream=True)"] if off else [])
    constants = [np.ascontiguousarray(c) for c in constants]
    state.package = Package(
        target=state.target.name,
        description=state.description.to_json(),
        program=program,
        objects=state.target.link(program, state.objects, state.description),
        constants=constants,
        levels=state.texts,
        report=report(state),
    )


def _graph_text(state: State) -> str:
    return state.module.text()


def _nest_text(state: State) -> str:
    texts = [*(str(n) for n in state.nests.values()), *(known.nest for known in state.recalled.values())]
    return "\n\n".join(texts) + "\n"


def _program_text(state: State) -> str:
    return str(state.package.program) + "\n" if state.package else ""


FRONT = (
    Stage("import", 2, "read the model; shapes become static", import_source, _graph_text),
    Stage("simplify", 2, "fold constants, simplify, recognize softmax, norms, GELU, attention", simplify, _graph_text),
    Stage("layout", 2, "choose channels-last for convolutions and carry it through", layout, _graph_text),
    Stage("lower", 3, "operators to linalg on tensors", lower_graph, _graph_text),
    Stage("fuse", 3, "group operations into kernels", fuse_graph, _graph_text),
    Stage("schedule", 4, "kernels to loop nests, default rules or tuned traces", schedule_kernels, _nest_text),
)
BACK = (Stage("package", 6, "memory plan, packed weights, program", make_package, _program_text),)


def stages(target: Target | None = None) -> tuple[Stage, ...]:
    """All stages in order; those between scheduling and packaging are the target's."""
    target = target or find("cpu")
    middle = tuple(Stage(s.name, s.level, s.doc, s.run, s.show) for s in target.stages())
    return (*FRONT, *middle, *BACK)


# ---- the driver ----------------------------------------------------------------------------------------------------


@dataclass
class Snapshot:
    """What a compilation stopped after a stage has: its IR as text, and as files that the pipeline continues from."""

    stage: Stage
    state: State

    def text(self) -> str:
        return self.stage.show(self.state)

    def save(self, path: str | Path) -> None:
        """Write the IR; at levels 2 and 3 with the constants beside it."""
        _write_stage(self.stage, self.state, Path(path))

    @property
    def graph(self) -> Graph:
        return self.state.module


def compile_state(
    source: Any,
    *,
    start_after: str | None = None,
    keep: bool = True,
    ahead: bool = False,
    ways: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[State, Any]:
    """What `tilewright.compile` returns, by running the stages, with everything that was made on the way.

    Without `keep` constants go when they have been packed. With `ahead` the processes that compile kernels start when
    the model has been read, as many as it may have work for. `ways` are those of the pass `winograd`, in place of what
    the tuning database says.
    """
    chosen = Options.of(**options)
    if chosen.precision == "auto":
        from .precision import compile_auto

        return compile_auto(source, chosen, start_after)
    target = find(chosen.target)
    pipeline = stages(target)
    _check_stage_names(chosen, pipeline, start_after)
    # a caller's graph, and the references of `verify`, share their constants with ours
    consume = not keep and not isinstance(source, Graph) and not chosen.verify
    state = State(chosen, target, target.describe(), source=source, consume=consume, ways=ways, ahead=ahead)
    looked_at = chosen.verify or chosen.dump or chosen.print_after or chosen.stop_after or start_after
    plain = chosen.precision == "f32" and not looked_at  # else the nests themselves are wanted later
    if not keep and chosen.cache and plain and hasattr(target, "memo") and all_ours():
        state.memo = target.memo(state.description)
    todo = list(pipeline)
    if start_after is not None:
        _enter(state, start_after)
        todo = todo[[s.name for s in pipeline].index(start_after) + 1 :]
    file = isinstance(source, os.PathLike) or (isinstance(source, str) and "\n" not in source)
    name = Path(source).name if file else "model"
    quiet = chosen.time or bool(chosen.print_after)
    with limited(chosen.operators, chosen.deadline), Progress(name, quiet=quiet) as state.progress:
        return state, _run_stages(todo, state, pipeline)


def _run_stages(todo: Sequence[Stage], state: State, pipeline: Sequence[Stage]) -> Any:
    """What the last of these stages makes: an executable, or the IR where the options say to stop."""
    chosen = state.options
    for stage in todo:
        try:
            _run_stage(stage, state, pipeline)
        except TilewrightError as e:
            if stage.name != "import" or not e.run_time or chosen.stop_after is not None:
                raise
            from .dynamic import compile_dynamic

            return compile_dynamic(state.source, chosen)
        if stage.name == "import" and state.ahead and hasattr(state.target, "start") and chosen.job_count > 1:
            state.target.start(min(chosen.job_count, _work(state.module)))
        if stage.name == chosen.stop_after:
            return state.module if stage.level <= 3 else Snapshot(stage, state)
    return _executable(state)


def _work(graph: Graph) -> int:
    """The most kernels that a graph can become."""
    return sum(op.name not in ("func.return", "tw.constant") for op in graph.operations())


def build(graph: Graph, name: str, options: Options, share: Callable[[Package], None]) -> Executable:
    """Compile an imported graph: the stages after the import. `share` may replace constants of the package by equal
    ones.
    """
    target = find(options.target)
    state = State(options, target, target.describe(), graph=graph, name=name)
    pipeline = stages(target)
    if options.verify:
        _keep_reference(state)
    for stage in pipeline[1:]:
        _run_stage(stage, state, pipeline)
    assert state.package is not None
    share(state.package)
    return _executable(state)


def _executable(state: State) -> Executable:
    assert state.package is not None
    executable = Executable(state.package, state.options.thread_count)
    if state.options.verify:
        from .report.verify import verify_kernels

        state.package.report["notes"].append(str(verify_kernels(state, executable)))
    return executable


def _run_stage(stage: Stage, state: State, pipeline: Sequence[Stage]) -> None:
    start = time.perf_counter()
    if state.progress is not None:
        state.progress.stage(stage.name)
    if state.options.verify and stage.name == "lower":
        _keep_reference(state)
    check_time(stage.name)
    known = sum(state.ahead_seconds.values())
    stage.run(state)
    check_files(state.files, stage.name, ModelError)
    if state.options.verify and stage.name == "import":
        _keep_reference(state)
    ahead = sum(state.ahead_seconds.values()) - known
    own = time.perf_counter() - start - ahead
    state.seconds[stage.name] = own + state.ahead_seconds.pop(stage.name, 0.0)
    if state.options.time:
        print(f"{stage.name:10} {state.seconds[stage.name]:8.3f} s", file=sys.stderr)
    if stage.name != "package" and stage.level < 6:
        # what the package keeps for inspection: the IR of each level's last stage
        last = [s.name for s in pipeline if s.level == stage.level][-1]
        if stage.name == last or stage.name in state.options.print_after:
            state.texts[stage.name] = stage.show(state)
    if stage.name in state.options.print_after or "all" in state.options.print_after:
        print(f"// ---- after {stage.name} ----\n{stage.show(state)}", file=sys.stderr)
    if state.options.dump:
        folder = Path(state.options.dump)
        _make_folder(folder)
        number = [s.name for s in pipeline].index(stage.name)
        suffix = ".mlir" if stage.level in (2, 3, 5) else ".txt"
        _write_stage(stage, state, folder / f"{number:02}-{stage.name}{suffix}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"cannot write {folder}: {e.strerror or e}", stage="dump") from None


def _keep_reference(state: State) -> None:
    if state.module.level == 2:
        state.references.append(state.module.clone())


def _write_stage(stage: Stage, state: State, path: Path) -> None:
    try:
        if stage.level <= 3:
            state.module.save(path)
        else:
            path.write_text(stage.show(state))
            if stage.level == 5 and len(state.module.constants):
                state.module.constants.save(path.with_suffix(".constants"))
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror or e}", stage=stage.name) from None


def _check_stage_names(options: Options, pipeline: Sequence[Stage], start_after: str | None) -> None:
    known = [s.name for s in pipeline]
    asked = [
        *options.print_after,
        *([options.stop_after] if options.stop_after else []),
        *([start_after] if start_after else []),
    ]
    for name in asked:
        if name not in known and name != "all":
            raise UsageError(f"unknown stage {name!r}", hint=f"stages: {', '.join(known)}")


def _enter(state: State, after: str) -> None:
    """Load the result of a stage from the file that `dump` wrote."""
    for stage in stages(state.target):
        if stage.name == after:
            break
    if not isinstance(state.source, (str, os.PathLike)):
        raise UsageError(f"start_after needs the path of a dumped file, not a {type(state.source).__name__}")
    path = Path(state.source)
    state.name = path.stem
    if stage.level in (2, 3):
        state.graph = Graph.load(path)
        state.files = state.graph.constants.files
        _check_stage(state.graph, stage, path)
        state.module.verify("import")
    elif stage.level == 5:
        enter = getattr(state.target, "enter", None)
        if enter is None:
            raise UsageError(f"target {state.target.name} cannot continue from {after}")
        enter(state, path)
    else:
        raise UsageError(
            f"the pipeline cannot continue from {after}", hint="continue from an MLIR level: import ... fuse, emit"
        )


def _check_stage(graph: Graph, stage: Stage, path: Path) -> None:
    """ModelError if the file was dumped at another stage, which the rest of the pipeline would not understand."""
    used = {op.name for op in graph.operations()} - {"func.return", "tw.constant"}
    mark = {"tw": "it is level 2", "linalg": "it is not fused"}
    wrong = {"lower": ("tw",), "fuse": ("tw", "linalg")}.get(stage.name, ())
    if stage.name == "lower" and any(not name.startswith("tw.") for name in used):
        wrong = ()  # operators without a lowering keep their form
    for dialect in wrong:
        if any(name.startswith(f"{dialect}.") for name in used):
            raise ModelError(f"{path} is not what was dumped after {stage.name}: {mark[dialect]}", stage="parse")


# ---- what explain prints -------------------------------------------------------------------------------------------


def report(state: State) -> dict[str, Any]:
    """Levels, kernels and notes for `Executable.explain`."""
    levels = []
    for stage in stages(state.target):
        if stage.name in state.seconds:
            seconds = round(state.seconds[stage.name], 4)
            levels.append({"stage": stage.name, "level": stage.level, "text": stage.doc, "seconds": seconds})
    kernels = [*_kernel_reports(state), *(known.report for known in state.recalled.values())]
    notes = [*precision_notes(state), *([str(state.fusion)] if state.fusion else [])]
    notes += [f"{name} was cut in two. As one kernel, {why}" for name, why in state.divided.items()]
    if state.tuned is not None:
        notes += [state.tuned.problem] if state.tuned.problem else []
        notes += [f"tuned {r.speedup:.2f}x: {layer.described(w)}" for layer, (w, r) in state.tuned.ways.items()]
    precision = state.options.precision
    return {"model": state.name, "precision": precision, "levels": levels, "kernels": kernels, "notes": notes}


def _kernel_reports(state: State) -> Iterator[dict[str, Any]]:
    for name, scheduled in state.schedules.items():
        known = about(state.kernels[name], scheduled, state.stats.get(name, {}))
        _remember(state, name, known)
        result = state.tuned.used.get(name) if state.tuned is not None else None
        yield (
            {**known, "schedule": f"tuned {result.speedup:.2f}x: {_choices(result.decisions)}"}
            if result is not None
            else known
        )


def _remember(state: State, name: str, known: dict[str, Any]) -> None:
    """Leave a kernel that was scheduled in the default way to later compilations."""
    if name in state.unknown:
        text = state.unknown[name]
        state.memo.remember(text, str(state.nests[name]), state.emitted[name], state.infos[name], known)


def _choices(decisions: dict[str, Any]) -> str:
    """Decisions on one line.

    >>> _choices({"tile": [4, 1], "unroll": 2})
    'tile=4x1 unroll=2'
    """
    return " ".join(f"{n}={'x'.join(map(str, v)) if isinstance(v, (list, tuple)) else v}" for n, v in decisions.items())
