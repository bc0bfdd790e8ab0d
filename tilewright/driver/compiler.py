"""The pipeline: an ordered list of named stages. `compile_state` runs them; each can be listed, printed, dumped, timed,
stopped after and entered from a file.

    import -> simplify -> layout -> lower -> fuse -> schedule -> emit -> assemble -> package
              (level 2)            (3)              (4)         (5)     (6)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..frontends.protocol import TracedSource
from ..ir.graph import Graph
from ..program.package import Package
from ..runtime.executable import Executable
from ..runtime.open_executable import make
from ..schedule.rules import all_ours
from ..support import internal_errors
from ..support.budget import check_time, limited
from ..support.dims import Dim, open_dims
from ..support.errors import ModelError, TilewrightError, UnsupportedError, UsageError
from ..support.files import make_folder, written
from ..support.mapped_file import check as check_files
from ..support.options import Options
from ..support.progress import Progress
from ..support.sizes import Undecided, current, open_sizes
from ..targets.base import Enterable, Remembering, Warmable, find
from . import external_schedules
from .compile_state import Stage, State
from .device_pins import check_pins
from .narrow_ranges import ROUNDS, narrowed
from .open_program import check_open
from .pass_instrumentation import Observer, PassInstrumentation
from .stages import stages
from .states import check_target


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


def compile_state(
    source: Any,
    *,
    start_after: str | None = None,
    keep: bool = True,
    ahead: bool = False,
    unloaded: bool = False,
    algorithms: Mapping[str, str] | None = None,
    observe: Observer | None = None,
    **options: Any,
) -> tuple[State, Any]:
    """Runs the pipeline: the state of the compilation, and what `tilewright.compile` returns.

    Without `keep` constants go when they have been packed. With `ahead` the processes that compile kernels start when
    the model has been read, as many as it may have work for. With `unloaded` the package itself comes, to be
    written (`State.unloaded`), in place of an executable, unless that is to be verified. `algorithms` are those of the
    pass `winograd`, in place of what the tuning database says. `observe` sees the graph after every pass, and after
    every stage up to `schedule`.
    """
    chosen = Options.of(**options)
    if current() is None and (dims := _open_dims(source, chosen)):
        check_open(chosen, dims, find(chosen.target))
        how = {"start_after": start_after, "keep": keep, "ahead": ahead, "algorithms": algorithms, "observe": observe}
        return _compile_open(source, dims, {**how, "unloaded": unloaded, **options})
    check_target(chosen, find(chosen.target))
    check_pins(chosen.place, find(chosen.target))
    if chosen.precision == "auto":
        from .auto_precision import compile_auto

        return compile_auto(source, chosen, start_after, compile_state)
    target = find(chosen.target)
    pipeline = stages(target)
    _check_stage_names(chosen, pipeline, start_after)
    # a caller's graph, and the references of `verify`, share their constants with ours
    consume = not keep and not isinstance(source, Graph) and not chosen.verify
    state = State(chosen, target, target.describe(), source=source, consume=consume, algorithms=algorithms, ahead=ahead)
    state.unloaded = unloaded and not chosen.verify
    state.instrumentation = PassInstrumentation.of(chosen, observe)
    state.external_schedules = (
        external_schedules.ExternalSchedules(chosen.schedules, target, state.description) if chosen.schedules else None
    )
    looked_at = chosen.verify or chosen.dump or chosen.print_after or chosen.stop_after or start_after
    plain = chosen.precision == "f32" and not looked_at  # else the nests themselves are wanted later
    if not keep and chosen.cache and plain and isinstance(target, Remembering) and all_ours():
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


def _open_dims(source: Any, options: Options) -> Sequence[Dim]:
    """The open dimensions of the shapes that the options give, or of a program that brings its own."""
    own = isinstance(source, TracedSource) and not options.inputs
    return source.open_dims() if own else open_dims(options.inputs)


def _compile_open(source: Any, dims: Sequence[Dim], arguments: dict[str, Any]) -> tuple[State, Any]:
    """`compile_state` for all sizes of open dimensions at once; UnsupportedError where the model needs to know one.
    Default ranges are narrowed to what the model supports (`narrow_ranges`)."""
    try:
        rounds = 0
        while True:
            rounds += 1
            try:
                with open_sizes(dims):
                    return compile_state(source, **arguments)
            except TilewrightError as e:
                inputs = (
                    narrowed(arguments["inputs"], list(dims), e.size_condition)
                    if e.size_condition and arguments.get("inputs")
                    else None
                )
                if inputs is None or rounds == ROUNDS or not (dims := open_dims(inputs)):
                    raise
                arguments = {**arguments, "inputs": inputs}
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
            if chosen.states:
                raise UnsupportedError(
                    f"states need fixed shapes, and those of this model are known at run time only: {e.message}",
                    stage=stage.name,
                    operator=e.operator,
                    hint="give the shapes of its inputs: inputs={name: shape}",
                ) from None
            if (known := current()) is not None:
                raise UnsupportedError(
                    f"no program can serve all sizes of {known.describe()}: {e.message}",
                    stage=stage.name,
                    operator=e.operator,
                    hint="leave out the ranges: the model is compiled for the sizes that it is called with",
                ) from None
            from .specialization import compile_dynamic

            return compile_dynamic(state.source, chosen)
        if stage.name == "import" and chosen.buckets:
            raise UsageError(
                f"buckets are for open dimensions, and {state.name} has none: its shapes are all known",
                hint="leave out buckets, or the inputs that give all shapes",
            )
        if stage.name == "import" and state.ahead and isinstance(state.target, Warmable) and chosen.job_count > 1:
            state.target.start(min(chosen.job_count, _work(state.module)))
        if stage.name == chosen.stop_after:
            return state.module if stage.level <= 3 else Snapshot(stage, state)
    return state.package if state.unloaded else _executable(state)


def _work(graph: Graph) -> int:
    """The most kernels that a graph can become."""
    return sum(op.name not in ("func.return", "tw.constant") for op in graph.operations())


def build(graph: Graph, name: str, options: Options, share: Callable[[Package], None]) -> Executable:
    """Compile an imported graph: the stages after the import. `share` may replace constants of the package by equal
    ones.
    """
    target = find(options.target)
    state = State(
        options, target, target.describe(), graph=graph, name=name, instrumentation=PassInstrumentation.of(options)
    )
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
    executable = make(state.package, state.options.thread_count)
    if state.options.verify:
        from .verify import verify_kernels

        state.package.report["notes"].append(str(verify_kernels(state, executable, compile_state)))
    return executable


def _run_stage(stage: Stage, state: State, pipeline: Sequence[Stage]) -> None:
    start = time.perf_counter()
    if state.progress is not None:
        state.progress.stage(stage.name)
    if state.options.verify and stage.name == "lower":
        _keep_reference(state)
    check_time(stage.name)
    state.stage, look = stage.name, state.instrumentation
    if look is not None:
        look.begin(stage.name)
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
    if look is not None:
        look.end()
        if look.observe is not None and stage.level <= 4:
            look.observe(stage.name, state.module, "")
    if stage.name != "package" and stage.level < 6:
        # what the package keeps for inspection: the IR of each level's last stage
        last = [s.name for s in pipeline if s.level == stage.level][-1]
        if stage.name == last or stage.name in state.options.print_after:
            state.texts[stage.name] = stage.show(state)
    if stage.name in state.options.print_after or "all" in state.options.print_after:
        print(f"// ---- after {stage.name} ----\n{stage.show(state)}", file=sys.stderr)
    if state.options.dump:
        folder = make_folder(Path(state.options.dump), "dump")
        number = [s.name for s in pipeline].index(stage.name)
        suffix = ".mlir" if stage.level in (2, 3, 5) else ".txt"
        _write_stage(stage, state, folder / f"{number:02}-{stage.name}{suffix}")


def _keep_reference(state: State) -> None:
    if state.module.level == 2:
        state.references.append(state.module.clone())


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


def _check_stage_names(options: Options, pipeline: Sequence[Stage], start_after: str | None) -> None:
    known = [s.name for s in pipeline]
    asked = [
        *(name.partition("/")[0] for name in options.print_after),
        *([options.stop_after] if options.stop_after else []),
        *([start_after] if start_after else []),
    ]
    for name in asked:
        if name not in known and name != "all":
            raise UsageError(f"unknown stage {name!r}", hint=f"stages: {', '.join(known)}; a pass is STAGE/PASS")


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
    elif stage.name == "schedule":
        external_schedules.enter(state, path)
    elif stage.level == 5:
        if not isinstance(state.target, Enterable):
            raise UsageError(f"target {state.target.name} cannot continue from {after}")
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
