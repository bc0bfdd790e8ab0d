"""The pipeline: an ordered list of named stages. `run` runs them; each can be listed, printed, dumped, timed,
stopped after and entered from a file.

    import -> simplify -> layout -> lower -> fuse -> schedule -> emit -> assemble -> package
              (level 2)            (3)              (4)         (5)     (6)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..frontends.open_graph import OpenGraph
from ..frontends.protocol import TracedSource, name_of, open_source, path_of
from ..graph.cut import has_control_flow
from ..ir.graph import Graph
from ..schedule.rules import all_ours
from ..support import internal_errors
from ..support.budget import check_time, limited
from ..support.dims import Dim, open_dims
from ..support.errors import ModelError, TilewrightError, UnsupportedError, UsageError
from ..support.files import make_folder, written
from ..support.garbage import rarely_collected
from ..support.mapped_file import check as check_files
from ..support.progress import Progress
from ..support.sizes import Undecided, current, open_sizes
from ..targets.base import find
from . import external_schedules
from .compile_state import Stage, State
from .device_pins import check_pins
from .journal import Journal
from .narrow_ranges import ROUNDS, narrowed
from .open_program import check_open
from .request import CompileRequest
from .stages import stages
from .states import check_target

if TYPE_CHECKING:
    from ..runtime.dynamic import DynamicExecutable
    from ..runtime.executable import Executable
    from ..runtime.parts import Source


#: compilations that this process has begun
begun = 0


@dataclass
class Snapshot:
    """What a compilation stopped after a stage has: its IR as text, and as files that the pipeline continues from.

    Of ``schedule`` also the traces that lead to the nests.
    """

    stage: Stage
    state: State

    def text(self) -> str:
        return self.stage.show(self.state)

    def save(self, path: str | Path) -> None:
        """Write the IR, with the constants beside it; loop nests also with the graph that calls them."""
        _write_stage(self.stage, self.state, Path(path))

    def traces(self) -> dict[str, str]:
        """The trace of every kernel, as the option ``schedules`` takes them; see `external_schedules.traces`."""
        return external_schedules.traces(self.state)

    @property
    def graph(self) -> Graph:
        return self.state.module


def compile_state(source: Any, **how: Any) -> tuple[State, Any]:
    """`run`, of keyword arguments: fields of `CompileRequest`, and options."""
    return run(CompileRequest.of(source, **how))


def run(request: CompileRequest) -> tuple[State, Any]:
    """What `tilewright.compile` returns, by running the stages, with everything that was made on the way."""
    global begun
    begun += 1
    chosen, target = request.options, find(request.options.target)
    if current() is None and (dims := _open_dims(request)):
        check_open(chosen, dims, target)
        return _run_open(request, dims)
    check_target(chosen, target)
    check_pins(chosen.place, target)
    if chosen.precision == "auto":
        from .auto_precision import compile_auto

        return compile_auto(request)
    pipeline = stages(target)
    _check_stage_names(request, pipeline)
    path = path_of(request.source)
    shown = request.name or (path.name if path is not None else "model")
    progress = Progress(shown, quiet=chosen.time or bool(chosen.print_after))
    journal = Journal.of(chosen, request.observe, progress)
    state = State(request, target, target.describe(), name=request.name, journal=journal)
    state.external_schedules = (
        external_schedules.ExternalSchedules(chosen.schedules, target, state.description) if chosen.schedules else None
    )
    looked_at = chosen.verify or chosen.dump or chosen.print_after or chosen.stop_after or request.start_after
    plain = chosen.precision == "f32" and not looked_at  # else the nests themselves are wanted later
    if not request.keep and chosen.cache and plain and all_ours():
        state.memo = target.memo(state.description)
    todo = list(pipeline)
    if request.start_after is not None:
        _enter(state, request.start_after)
        todo = todo[[s.name for s in pipeline].index(request.start_after) + 1 :]
    with rarely_collected(), limited(chosen.operators, chosen.deadline), progress:
        return state, _run_stages(todo, state, pipeline)


def _open_dims(request: CompileRequest) -> Sequence[Dim]:
    """The open dimensions of the shapes that the options give, or of a program that brings its own."""
    source, inputs = request.source, request.options.inputs
    return source.open_dims() if isinstance(source, TracedSource) and not inputs else open_dims(inputs)


def _run_open(request: CompileRequest, dims: Sequence[Dim]) -> tuple[State, Any]:
    """`run` for all sizes of open dimensions at once; UnsupportedError where the model needs to know one. Ranges that
    nobody gave are narrowed to what the model asks for (`narrow_ranges`)."""
    try:
        rounds = 0
        while True:
            rounds += 1
            try:
                with open_sizes(dims):
                    return run(request)
            except TilewrightError as e:
                given = request.options.inputs
                inputs = narrowed(given, list(dims), e.size_condition) if e.size_condition and given else None
                if inputs is None or rounds == ROUNDS or not (dims := open_dims(inputs)):
                    raise
                request = replace(request, options=replace(request.options, inputs=inputs))
    except Undecided as e:
        raise _not_at_once(dims, e.message, e.stage, e.operator) from e
    except TilewrightError:
        raise
    except Exception as e:  # no reason for another size to fail
        internal_errors.note(e, "sizes are not open")
        raise _not_at_once(dims, f"{type(e).__name__}: {e}", "compile", None) from e


def _not_at_once(dims: Sequence[Dim], why: str, stage: str | None, operator: str | None) -> UnsupportedError:
    named = ", ".join(d.name for d in dims)
    return UnsupportedError(
        f"the model cannot be compiled for all sizes of {named} at once: {why}",
        stage=stage,
        operator=operator,
        hint="fix one of these dimensions, or leave `inputs` out: programs are then made for the sizes of each call",
    )


def _run_stages(todo: Sequence[Stage], state: State, pipeline: Sequence[Stage]) -> Any:
    """What the last of these stages makes: an executable, or the IR where the options say to stop."""
    chosen = state.options
    for stage in todo:
        try:
            _run_stage(stage, state, pipeline)
        except TilewrightError as e:
            if stage.name != "import" or not e.run_time or chosen.stop_after is not None:
                raise
            state.name = name_of(state.request.source)
            return _in_parts(state, open_source(state.request.source, chosen.check_indices), e.message, e.operator)
        if stage.name == "import" and chosen.buckets:
            raise UsageError(
                f"buckets are for open dimensions, and {state.name} has none: its shapes are all known",
                hint="leave out buckets, or the inputs that give all shapes",
            )
        if stage.name == "import" and chosen.stop_after != "import" and has_control_flow(state.module):
            return _in_parts(state, OpenGraph(state.module), "it has loops or branches that depend on data", None)
        if stage.name == "import" and state.request.ahead and chosen.job_count > 1:
            state.target.start(min(chosen.job_count, _work(state.module)))
        if stage.name == chosen.stop_after:
            return state.module if stage.level <= 3 else Snapshot(stage, state)
    return state.package if state.unloaded else _executable(state)


def _in_parts(state: State, source: Source, why: str, operator: str | None) -> DynamicExecutable:
    """The executable of a model that is compiled in parts, at run time; UnsupportedError where the options do not allow
    that."""
    chosen = state.options
    if chosen.stop_after is not None:
        raise UnsupportedError(
            f"the model has no stage {chosen.stop_after!r} as a whole, for it runs in parts: {why}",
            stage="import",
            operator=operator,
            hint="stop after import",
        )
    if chosen.states:
        raise UnsupportedError(
            f"states need fixed shapes, and those of this model are known at run time only: {why}",
            stage="import",
            operator=operator,
            hint="give the shapes of its inputs: inputs={name: shape}",
        ) from None
    if (known := current()) is not None:
        raise UnsupportedError(
            f"no program can serve all sizes of {known.describe()}: {why}",
            stage="import",
            operator=operator,
            hint="leave out the ranges: the model is compiled for the sizes that it is called with",
        ) from None
    from .specialization import compile_dynamic

    return compile_dynamic(source, state.name, chosen)


def _work(graph: Graph) -> int:
    """The most kernels that a graph can become."""
    return sum(op.name not in ("func.return", "tw.constant") for op in graph.operations())


def _executable(state: State) -> Executable:
    assert state.package is not None
    if state.request.share is not None:
        state.request.share(state.package)
    from ..runtime.open_executable import make

    executable = make(state.package, state.options.thread_count)
    if state.options.verify:
        from .verify import verify_kernels

        state.package.report["notes"].append(str(verify_kernels(state, executable)))
    return executable


def _run_stage(stage: Stage, state: State, pipeline: Sequence[Stage]) -> None:
    journal, verify = state.journal, state.options.verify
    check_time(stage.name)
    journal.begin(stage.name)
    if verify and stage.name == "lower":
        _keep_reference(state)
    stage.run(state)
    check_files(state.files, stage.name, ModelError)
    if verify and stage.name == "import":
        _keep_reference(state)
    journal.end()
    if journal.observe is not None and stage.level <= 4:
        journal.observe(stage.name, state.module, "")
    if stage.name != "package" and stage.level < 6:
        # what the package keeps for inspection: the IR of each level's last stage
        last = [s.name for s in pipeline if s.level == stage.level][-1]
        if stage.name == last or stage.name in state.options.print_after:
            journal.texts[stage.name] = stage.show(state)
    if stage.name in state.options.print_after or "all" in state.options.print_after:
        print(f"// ---- after {stage.name} ----\n{stage.show(state)}", file=sys.stderr)
    if state.options.dump:
        folder = make_folder(Path(state.options.dump), "dump")
        number = [s.name for s in pipeline].index(stage.name)
        suffix = ".mlir" if stage.level in (2, 3, 5) else ".txt"
        _write_stage(stage, state, folder / f"{number:02}-{stage.name}{suffix}")


def _keep_reference(state: State) -> None:
    if state.module.level == 2:
        state.journal.references.append(state.module.clone())


def _write_stage(stage: Stage, state: State, path: Path) -> None:
    with written(path, stage.name):
        if stage.level <= 3:
            state.module.save(path)
        else:
            path.write_text(stage.show(state))
            if stage.level == 4:
                state.module.save(external_schedules.graph_file(path))
            if stage.level == 5 and len(state.module.constants):
                state.module.constants.save(path.with_suffix(".constants"))


def _check_stage_names(request: CompileRequest, pipeline: Sequence[Stage]) -> None:
    known, options = [s.name for s in pipeline], request.options
    one = (options.stop_after, request.start_after)
    asked = [*(name.partition("/")[0] for name in options.print_after), *filter(None, one)]
    for name in asked:
        if name not in known and name != "all":
            raise UsageError(f"unknown stage {name!r}", hint=f"stages: {', '.join(known)}; a pass is STAGE/PASS")


def _enter(state: State, after: str) -> None:
    """Load the result of a stage from the file that `dump` wrote."""
    for stage in stages(state.target):
        if stage.name == after:
            break
    source = state.request.source
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"start_after needs the path of a dumped file, not a {type(source).__name__}")
    path = Path(source)
    state.name = path.stem
    if stage.level in (2, 3):
        state.graph = Graph.load(path)
        _check_stage(state.graph, stage, path)
        state.module.verify("import")
    elif stage.name == "schedule":
        external_schedules.enter(state, path)
    elif stage.level == 5:
        state.target.enter(state, path)
    else:
        raise UsageError(f"the pipeline cannot continue from {after}", hint="continue from import ... schedule, emit")


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
