"""``torch.compile(model, backend="tilewright")``: the backend, its options and modes.

    model = torch.compile(model, backend="tilewright")
    model = torch.compile(model, backend="tilewright", options={"threads": 2, "freeze": True})

The name is an entry point of the group ``torch_dynamo_backends``; where the package is not installed, the function
`backend` is given itself. See docs/torch.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..driver.service import compile_graph
from ..frontends.torch.fx_graph import FxGraph
from ..frontends.torch.fx_sizes import give_symbols, hints_of, symbols_of
from ..frontends.torch.node import ImportFailure, report
from ..frontends.torch.partition import Trial, cut, random_operator, trial
from ..frontends.torch.program import training_decompositions
from ..frontends.torch.rng_state import without_rng_state
from ..runtime.executable import Executable
from ..support.errors import UnsupportedError, UsageError
from ..support.options import Options
from ..support.sizes import current
from .torch_calls import Call, FrozenCall, boxed, call_of
from .torch_dynamic_shapes import DynamicShapesUnsupported, GraphVersions
from .torch_recurrent import keep_whole, take_in

if TYPE_CHECKING:
    import sympy

#: what the modes of `torch.compile` mean here
MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"freeze": True},
    "max-autotune-no-cudagraphs": {"freeze": True},
}
#: options of `tilewright.compile` that have no meaning for a graph of `torch.compile`
REFUSED = (
    *("inputs", "states", "specialize", "buckets", "pad", "specializations", "schedules", "check_indices"),
    "stop_after",
)
RANDOM = ("tilewright", "torch")
_reported: set[str] = set()


@dataclass(frozen=True)
class Settings:
    """The options of the backend: those of `tilewright.compile`, and its own.

    `fallback`: whether operators that cannot be imported are left to PyTorch; each is reported once by name. False:
    they are an UnsupportedError that lists them. `freeze`: in inference, parameters and buffers are constants, packed
    ahead; when one of them changes, the graph is compiled once more with them as inputs. None: unless the graph writes
    to a parameter, or they take more than an eighth of the machine's memory. `random`: who draws random
    numbers, tilewright (fast, other numbers than eager PyTorch's, the same after the same `torch.manual_seed`) or
    torch.
    """

    options: Options
    fallback: bool = True
    freeze: bool | None = None
    random: str = "tilewright"

    @staticmethod
    def of(mode: str | None, given: Mapping[str, Any] | None) -> Settings:
        """UsageError for an option or a mode that is not known, or a value that it cannot have."""
        if (mode or "default") not in MODES:
            raise UsageError(f"unknown mode {mode!r}", hint=f"modes: {', '.join(MODES)}")
        chosen = {**MODES[mode or "default"], **(given or {})}
        own = {f.name: chosen.pop(f.name) for f in fields(Settings) if f.name != "options" and f.name in chosen}
        for name in ("fallback", "freeze"):
            if not isinstance(own.get(name, True), bool) and (name, own[name]) != ("freeze", None):
                raise UsageError(f"option {name!r} is True or False, not {own[name]!r}")
        if own.get("random", RANDOM[0]) not in RANDOM:
            raise UsageError(f"option 'random' is {' or '.join(RANDOM)}, not {own['random']!r}")
        for name in REFUSED:
            if name in chosen:
                raise UsageError(f"option {name!r} has no meaning for a graph of torch.compile")
        options = Options.of(**chosen)
        if options.threads is None:
            options = replace(options, threads=torch.get_num_threads())
        return Settings(options, **own)


def backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend ``tilewright`` of `torch.compile`: a graph of TorchDynamo becomes native code, forward and backward.

    `mode` is one of `MODES`; `options` are those of `tilewright.compile`, and `fallback`, `freeze` and `random`
    (`Settings`). UsageError for others, UnsupportedError for operators that cannot be imported if they may not fall
    back, and whatever `tilewright.compile` raises.

        model = torch.compile(model, backend="tilewright", options={"threads": 2})
    """
    from functorch.compile import min_cut_rematerialization_partition

    settings = Settings.of(mode, options)
    keep_whole(module)
    compiler = Compiler(settings)
    aot = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=partial(_inference, settings, list(example_inputs)),
        decompositions=training_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    made: Callable[..., Any] = aot(module, example_inputs)
    return made


take_in(backend)


def _inference(
    settings: Settings, given: Sequence[object], module: torch.fx.GraphModule, example_inputs: Sequence[object]
) -> Call:
    compiler = Compiler(settings)
    frozen = _constants(module, given, settings.freeze is True) if settings.freeze is not False else {}
    if not frozen or (settings.freeze is None and sum(t.nbytes for t in frozen.values()) > _room()):
        return compiler(module, example_inputs)
    call = Compiler(settings, frozen)(module, example_inputs)
    return FrozenCall(call, frozen, lambda: compiler(module, example_inputs))


def _room() -> int:
    """The bytes of parameters that are built in without having been asked for."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (AttributeError, OSError, ValueError):
        return 1 << 30


def _constants(module: torch.fx.GraphModule, given: Sequence[object], asked: bool) -> dict[int, torch.Tensor]:
    """Parameters and buffers among the arguments of a graph by number, but for those that the graph writes to; none
    where it writes to a parameter, unless that is `asked` for.

    The graph gets the parts of a tensor made of others (torchao's quantized weights) one by one."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    context = TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    parts = [(i, part) for i, t in enumerate(given) for part in _parts(t)]
    if meta is None or len(placeholders) != len(parts):
        return {}
    written = set(meta.mutated_inp_runtime_indices)
    if not asked and any(isinstance(given[i], torch.nn.Parameter) for i in written):
        return {}  # a step of training
    static = {i for i, t in enumerate(given) if isinstance(t, torch.nn.Parameter)}
    if len(parts) == len(given):  # else PyTorch's numbers may be those of parts
        static |= set(meta.static_input_indices)
    found = {}
    for i, (owner, t) in enumerate(parts):
        plain = type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type == "cpu" and t.layout == torch.strided
        if owner in static and owner not in written and plain and not t.is_inference():
            found[i] = t
    return found


def _parts(t: Any) -> list[Any]:
    """The plain tensors that a tensor is made of, in PyTorch's order; anything else alone."""
    if not is_traceable_wrapper_subclass(t):
        return [t]
    names, _ = t.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(t, name))]


class Compiler:
    """From a graph of ATen operators to a call of its program; `frozen` are tensors that are built in, by number."""

    def __init__(self, settings: Settings, frozen: Mapping[int, torch.Tensor] | None = None) -> None:
        self.settings, self.frozen = settings, frozen or {}

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Sequence[object]) -> Call:
        without_rng_state(module)
        with unset_fake_temporarily():  # constants are read as they are
            return self._compile(module)

    def _compile(self, module: torch.fx.GraphModule) -> Call:
        hints = hints_of(module)
        leave = random_operator if self.settings.random == "torch" else None
        graph = FxGraph(module, hints, self.frozen)
        made, walk = graph.graph(trial(leave))
        assert isinstance(walk, Trial)
        if walk.failed:
            self._judge(walk.failures)
            return self._in_parts(module, walk.failed)
        if not symbols_of(module):
            return call_of(graph.layout, None if made is None else compile_graph(made, self.settings.options))
        call = GraphVersions(module, partial(self._program, module), self._judge_open)
        call.prepare(hints)  # so that errors are raised here
        return call

    def _program(
        self, module: torch.fx.GraphModule, sizes: Mapping[sympy.Symbol, int | sympy.Expr]
    ) -> tuple[FxGraph, Executable | None]:
        """A graph and its program, of sizes that are known, or open in this compilation."""
        graph = FxGraph(module, sizes, self.frozen)
        with unset_fake_temporarily():
            made, walk = graph.graph()
        if walk.failures:
            raise DynamicShapesUnsupported(walk.failures) if current() is not None else report(walk.failures)
        return graph, None if made is None else compile_graph(made, self.settings.options)

    def _judge_open(self, failures: Sequence[ImportFailure], error: Exception | None) -> None:
        """Report operators for which there is no program for all sizes, each once; UnsupportedError if that may not
        be."""
        lines = [f"{f.operator}{f' ({f.place})' if f.place else ''}: {f.reason}" for f in failures]
        if not self.settings.fallback:
            raise UnsupportedError(
                f"the graph cannot be compiled for all sizes at once: {'; '.join(lines)}",
                stage="compile",
                hint="torch.compile(dynamic=False), or options={'fallback': True}: programs for the sizes of calls",
            ) from error
        for f, line in zip(failures, lines, strict=True):
            text = "tilewright has no program for all sizes at once, and makes one for the sizes of each call"
            _warn_once(f"{f.operator} of all sizes", f"{text}, because of {line}")

    def _judge(self, failures: Sequence[ImportFailure]) -> None:
        """Report operators that PyTorch runs, each once; UnsupportedError if they may not."""
        if failures and not self.settings.fallback:
            raise report(failures)
        for f in failures:
            why, where = f" {f.reason}" if f.reason else "", f" ({f.place})" if f.place else ""
            _warn_once(f.operator, f"{f.operator}{why} is not supported by tilewright and runs in PyTorch{where}")

    def _in_parts(self, module: torch.fx.GraphModule, failed: set[torch.fx.Node]) -> Call:
        whole, names = cut(module, failed)
        give_symbols(whole, names)
        tensors = {n.name: self.frozen[i] for i, n in enumerate(_placeholders(module)) if i in self.frozen}
        calls = {n.target: n for n in whole.graph.nodes if n.op == "call_module"}
        for name in names:
            part = whole.get_submodule(name)
            assert isinstance(part, torch.fx.GraphModule)
            given = [getattr(a, "name", None) for a in calls[name].args]
            frozen = {i: tensors[a] for i, a in enumerate(given) if a in tensors}
            setattr(whole, name, _Part(Compiler(self.settings, frozen), part))
        return boxed(lambda args: list(whole(*args)))


class _Part(torch.nn.Module):
    """A part of a graph, called with its arguments one by one."""

    def __init__(self, compiler: Compiler, part: torch.fx.GraphModule) -> None:
        super().__init__()
        out = next(n for n in part.graph.nodes if n.op == "output")
        self.single = not isinstance(out.args[0], (list, tuple))
        if self.single:
            out.args = ((out.args[0],),)
        self.call = compiler(part, [])

    def forward(self, *args: object) -> Any:
        made = self.call(list(args))
        return made[0] if self.single else made


def _warn_once(key: str, text: str) -> None:
    if key not in _reported:
        _reported.add(key)
        warnings.warn(f"{text}; options={{'fallback': False}} makes this an error", stacklevel=3)


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


__all__ = ["MODES", "Settings", "backend"]
