"""The stages of the pipeline, in order; those between scheduling and packaging are the target's.

import -> simplify -> layout -> lower -> fuse -> schedule -> emit -> assemble -> package
          (level 2)            (3)              (4)         (5)     (6)
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..ir.graph import Graph
from ..program.memory import check_limit
from ..program.package import Package
from ..schedule.rules import direct_operators, reuses, writes_once
from ..schedule.rules import schedule as schedule_kernel
from ..schedule.rules.convolution.depthwise_chain import worth_joining
from ..schedule.split import Divided, split
from ..support.budget import check_time
from ..support.options import DEFAULT_TARGET, get
from ..support.sizes import current
from ..targets.base import Target, find
from ..targets.compile_state import add
from ..targets.multi_device.stages import on_device
from ..tensor.devices import device_of
from ..tensor.divide import apply_division, symbol_of
from ..tensor.fold_constants import fold_constants
from ..tensor.fuse import fuse
from ..tensor.kernel import Kernel
from ..tensor.lower import lower
from ..tensor.read import read_kernel
from ..tensor.share_padding import share_padding
from .build_program import build_program
from .compile_report import report
from .compile_state import Stage, State
from .device_pins import Pins
from .placement import Fused, devices_in, place
from .states import find_growing, find_states

#: level-2 passes of the stages "simplify" and "layout", in order
SIMPLIFY = (
    "match-block-weights,clip-windows,simplify,fold,cse,dce,match-softmax,match-norm,match-activation,match-gelu,"
    "simplify,match-attention,fold-batch-norm,simplify,fold,cse,dce"
)
LAYOUT = "layout,transposed-conv,clip-windows,simplify,fold,cse,dce"
#: those of them that do more with the option `fast_math`
FAST = re.compile(r"\b(simplify|match-softmax|match-activation|fold-batch-norm)(?=,|$)")


def import_source(state: State) -> None:
    """Source -> level 2 (or 3 for linalg files); see `frontends.protocol`."""
    from ..frontends.protocol import load_source

    lazy = state.options.stop_after is None  # then what is known at run time only is left to `dynamic`
    given = state.options.inputs, lazy, state.options.check_indices
    state.graph, name = load_source(state.request.source, *given)
    state.name = state.request.name or name
    state.growing = find_growing(state.graph, state.options.states)
    find_states(state.graph, state.options.states)  # what does not fit is said at once


def _passes(state: State, pipeline: str) -> bool:
    """Run level-2 passes; whether one of them reports a change."""
    from ..graph.passes import Pass, name_of, parse_pipeline, pass_text, run_pipeline

    graph, journal = state.module, state.journal
    if state.options.fast_math:
        pipeline = FAST.sub(r"\1{fast_math=true}", pipeline)

    def after(p: Pass, seconds: float) -> None:
        journal.after(name_of(p), seconds, graph, pass_text(p))

    look = after if journal.looking else None
    each = get("TILEWRIGHT_STRICT")  # the stage is verified anyhow
    reports = run_pipeline(graph, parse_pipeline(pipeline), each, stage=journal.stage, after=look)
    return any(any(report.values()) for _, report in reports)


def _step(state: State, name: str, run: Callable[[], Any]) -> Any:
    """What a function of a stage gives, which is named, timed and looked at like a pass."""
    from ..graph.passes import named_pass

    begin = time.perf_counter()
    with named_pass(name, state.journal.stage):
        made = run()
    if state.journal.looking:
        state.journal.after(name, time.perf_counter() - begin, made if isinstance(made, Graph) else state.module)
    return made


def simplify(state: State) -> None:
    if state.module.level == 2:
        d = state.description  # it says which 8-bit numbers the machine multiplies, and how it rounds them
        changed = _passes(state, f"integers{{activations={d.activations},halves={d.halves},factors={d.byte_factors}}}")
        references = state.journal.references
        if changed and references:  # integers are defined anew, within a quantum of what floats give
            references[-1] = state.module.clone()
        _passes(state, SIMPLIFY if d.grid_costs is not None else f"gather-pages,{SIMPLIFY}")
        state.module.verify("simplify")


def layout(state: State) -> None:
    from ..graph.passes import make, pass_text

    if state.module.level == 2:
        d = state.description
        lanes = d.image_lanes if state.options.precision == "f32" else 0
        known = {"costs": d.image_costs, "winograd": d.winograd_costs} if lanes else {}
        _passes(state, LAYOUT.replace("layout", pass_text(make("layout", lanes=lanes, **known)), 1))
        if d.split_windows:
            _passes(state, f"{pass_text(make('split-windows', costs=d.split_windows))},dce")
        # tiles of bf16 multiply more than Winograd's method saves
        tiles = state.options.precision == "bf16" and any(t.dtype == "bf16" for t in d.tiles)
        if state.options.winograd and d.winograd and not tiles:
            _winograd(state)
        if state.options.precision == "f32" and d.split_sums:
            _passes(state, f"{pass_text(make('split-sums', tile=d.split_sums))},dce")
        if d.split_scans:
            _passes(state, f"{pass_text(make('split-scans', parts=d.split_scans))},dce")
        if state.options.precision != "f32":
            _passes(state, f"precision{{dtype={state.options.precision}}},cse,dce")
        if d.grid_costs is not None:
            split = [pass_text(make(n, costs=d.grid_costs)) for n in ("split-attention", "split-products")]
            _passes(state, f"match-pages,{','.join(split)},dce")
        threads = d.cores if d.grid_costs is None else d.grid_costs.processors
        if threads > 1:
            _passes(state, pass_text(make("split-ragged-attention", threads=threads)))
        state.module.verify("layout")


def _winograd(state: State) -> None:
    """3x3 convolutions by Winograd's method: as it was measured, else as it is estimated."""
    from ..graph.choose_winograd import WORTH, layers
    from ..graph.passes import make, pass_text

    plain = state.options.precision == "f32"
    state.layers = layers(state.module) if plain else {}
    tuned = _open_tuned(state) if state.layers and state.request.algorithms is None else None
    found = state.request.algorithms or {}
    if tuned is not None:
        found = {str(layer): way for layer in state.layers if (way := tuned.way(layer)) is not None}
    algorithms = "/".join(f"{layer}:{way}" for layer, way in found.items())
    d = state.description
    worth = WORTH * (1.0 if plain else d.reduced_time)
    chosen = make("winograd", worth=worth, algorithms=algorithms, costs=d.winograd_costs)
    _passes(state, f"{pass_text(chosen)},dce")


def _open_tuned(state: State) -> Any:
    """What the tuning database knows, None if it is not to be asked."""
    from .tuned import Tuned

    if state.tuned is None and state.options.tuned:
        state.tuned = Tuned.open(state.target, state.description, state.options.thread_count)
    return state.tuned


def lower_graph(state: State) -> None:
    if state.module.level == 2:
        chip = state.target.coprocessor
        whole = chip.annotate if chip is not None else lambda op: ""
        state.graph = _step(state, "lower", lambda: lower(state.module, direct_operators(), whole))
        _step(state, "fold-constants", lambda: fold_constants(state.module))
        _step(state, "share-padding", lambda: share_padding(state.module))
    state.module.verify("lower")


def fuse_graph(state: State) -> None:
    d = state.description
    joins = partial(worth_joining, machine=d) if d.row_chains else None
    claims = None
    if (chip := state.target.coprocessor) is not None:
        claims, tuned = chip.claims, _open_tuned(state)
        chip.take_plans(tuned.plan if tuned is not None else None)
    fused = partial(fuse, state.module, writes_once(), joins, reuses(), d.row_piece, claims, paired=d.paired_dtypes)
    if state.target.members:
        _step(state, "place", partial(_place, state, state.target, fused))
    else:
        state.graph, joined = fused()
        state.journal.notes.append(str(joined))
    state.module.verify("fuse")


def _place(state: State, target: Target, fused: Fused) -> None:
    """Operations to kernels, and those to devices."""
    o = state.options
    state.graph, joined, state.placement = place(fused, target, o.thread_count, Pins(o.place or {}), o.states)
    state.journal.notes.append(str(joined))


def schedule_kernels(state: State) -> None:
    """Kernels -> loop nests: as the options say, else by the tuning database, else by the default rules. Of several
    devices each schedules its own."""
    if state.target.members:
        _schedule_parts(state, state.target)
    else:
        _schedule_all(state)
    if state.external_schedules is not None:
        state.external_schedules.check([symbol_of(f) for f in state.module.functions()])


def _schedule_parts(state: State, target: Target) -> None:
    """The kernels of each device, as its own target schedules them."""
    devices_in(state.module, target)  # of what was read from a file it is not known
    for member, device in zip(target.members, target.device_names, strict=True):
        if member is not None:
            own: State = on_device(state, member, device)
            _schedule_all(own)
            add(state, own)
            if own.tuned is not None:
                state.tuned = own.tuned if state.tuned is None else state.tuned.joined(own.tuned)


def _schedule_all(state: State) -> None:
    if (known := current()) is not None:
        known.numbers.near = False
    tuned = _open_tuned(state)
    scheduled: dict[str, Any] = {}
    while parts := _schedule_new(state, tuned, scheduled):  # some are cut in two: then their parts are new
        for name, divided in parts.items():
            apply_division(state.module, name, divided.module)
            state.journal.notes.append(f"{name} was cut in two. As one kernel, {divided.why}")
        state.module.verify("schedule")
        state.journal.texts["fuse"] = _graph_text(state)  # the kernels that there are
    if state.request.packed is not None and current() is not None:
        for name, nest in state.nests.items():
            made = {n: (p.splits, p.order) for n, p in nest.packs.items()}
            state.request.packed.layouts.setdefault(name, made)
    order = [n for f in state.module.functions() if (n := symbol_of(f)) in state.kernels]
    tables: tuple[dict[str, Any], ...] = (state.kernels, state.schedules, state.nests)
    for table in tables:
        table.update([(n, table.pop(n)) for n in order])
    if tuned is not None:
        tuned.close()
    if state.description.stream_rows and state.options.stream:
        _stream(state)


def _schedule_new(state: State, tuned: Any, parts: dict[str, Any]) -> dict[str, Divided]:
    """Schedule the kernels that have no nest yet; returns those to be cut into parts instead. `parts`: see `split`."""
    here = [f for f in state.module.functions() if not state.device or device_of(f) == state.device]
    functions = [f for f in here if symbol_of(f) not in {*state.nests, *state.recalled}]
    of = {symbol_of(f): f for f in functions}
    for f in [f for f in functions if "tw.taken" in f.attributes]:
        functions.remove(f)
        _take(state, read_kernel(f))
    todo = _make(state, [k for f in functions if not _recall(state, k := read_kernel(f), f, tuned)])
    if (before := state.request.packed) is not None:
        todo = [replace(k, layouts=before.layouts.get(k.name, {})) for k in todo]
    for number, kernel in enumerate(todo):
        state.kernel_done(number, len(todo))
        check_time("schedule", kernel.name)
        name = kernel.name
        made = state.external_schedules.schedule(kernel) if state.external_schedules else None
        fixed = made is not None
        if made is None and not (tuned and tuned.knows(kernel)):
            made = state.placement.tried.get(name) if state.placement is not None else None
            if made is None and current() is None:  # with sizes that are not known, what is faster decided about parts
                made = parts.get(of[name].operation.get_asm(use_local_scope=True)) if parts else None
        if made is None:
            made = tuned.schedule(kernel, state.description) if tuned else schedule_kernel(kernel, state.description)
            fixed = tuned is not None and name in tuned.used
        if not fixed and (cut := split(of[name], made, state.description, parts)) is not None:
            if name in state.unknown:
                state.memo.keep(state.unknown.pop(name), cut)
            state.recalled[name] = cut
            continue
        state.kernels[name], state.schedules[name], state.nests[name] = kernel, made, made.nest
    return {name: state.recalled.pop(name) for name in of if isinstance(state.recalled.get(name), Divided)}


def _take(state: State, kernel: Kernel) -> None:
    """Schedule a kernel of the processor beside the host."""
    assert state.target.coprocessor is not None
    made = state.target.coprocessor.schedule(
        kernel, state.external_schedules.trace(kernel.name) if state.external_schedules else None
    )
    if state.tuned is not None and made.tuned is not None:
        state.tuned.taken(kernel, made.tuned)
    state.kernels[kernel.name], state.schedules[kernel.name], state.nests[kernel.name] = kernel, made, made.nest


def _stream(state: State) -> None:
    """Kernels that run row by row, where that lowers the arena's peak."""
    from .choose_streaming import stream

    d, limit = state.description, state.options.arena_limit
    for made in stream(state.module, state.kernels, state.nests, d, d.arena_align, limit):
        name = made.kernel.name
        state.kernels[name], state.schedules[name], state.nests[name] = made.kernel, made.scheduled, made.nest
    state.module.verify("schedule")
    called = {str(f.attributes["sym_name"]).strip('"') for f in state.module.functions()}
    for table in (state.kernels, state.schedules, state.nests):
        for name in [n for n in table if n not in called]:
            del table[name]


def _recall(state: State, kernel: Kernel, function: Any, tuned: Any) -> bool:
    """Whether an earlier compilation scheduled the same kernel in the default way."""
    if state.memo is None or current() is not None or (tuned is not None and tuned.knows(kernel)):
        return False
    if state.external_schedules is not None and state.external_schedules.knows(kernel.name):
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
    state.journal.worked_ahead(time.perf_counter() - begin, spent)
    state.recalled.update(made)
    for name in made:
        del state.unknown[name]
    return [k for k in kernels if k.name not in made]


def make_package(state: State) -> None:
    d = state.description  # a machine with little memory says how its arena is aligned, and that order matters
    program, constants = build_program(
        state.module,
        state.infos,
        align=d.arena_align,
        minimize=d.minimize_memory,
        consume=state.consume,
        lazy=state.unloaded,
        before=state.request.packed,
        states=state.options.states,
        devices=devices_in(state.module, state.target),
        growing=state.growing,
        small=2 * d.thread_work if d.cores > 1 else 0,
    )
    if state.options.arena_limit is not None:
        off = d.stream_rows and not state.options.stream
        check_limit(program, state.options.arena_limit, ["layers that run row by row (stream=True)"] if off else [])
    state.package = Package(
        target=state.target.recorded,
        description=state.description.to_json(),
        program=program,
        objects=state.target.link(program, state.objects, state.description),
        constants=constants,
        levels=state.journal.texts,
        report=report(state, stages(state.target)),
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
    target = target or find(DEFAULT_TARGET)
    middle = tuple(Stage(s.name, s.level, s.doc, s.run, s.show) for s in target.stages())
    return (*FRONT, *middle, *BACK)
