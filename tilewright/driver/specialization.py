"""Compiling models that are specialized at run time: the sources of parts, and how parts are compiled.

`compiler.compile` comes here when the import finds that shapes, branches or sizes are known at run time only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ..frontends.protocol import restore, shapes_of
from ..ir.graph import Graph
from ..program.package import Package
from ..runtime.constant_pool import ConstantPool
from ..runtime.dynamic import DynamicExecutable
from ..runtime.executable import Executable
from ..runtime.parts import DynamicInfo, Source
from ..support.errors import TilewrightError, UsageError
from ..support.options import Options
from ..targets.base import find
from .open_program import check_open
from .request import CompileRequest


def compile_dynamic(made: Source, name: str, options: Options) -> DynamicExecutable:
    """The executable of a model that cannot be one static program. With ``options.inputs`` it specializes ahead.

    Raises UsageError for a level-3 module with open dimensions and for ``options.schedules`` and ``place``, InputError
    for `inputs` that do not fit.
    """
    if options.schedules or options.place:
        option = "schedules" if options.schedules else "place"
        raise UsageError(
            f"the model leaves shapes open, so it has no kernels yet that option {option!r} could name",
            hint="give the shapes with inputs",
        )
    inputs, outputs = made.signature()
    shapes = _shapes(options.inputs, inputs)
    sizes = _sizes(inputs, shapes)
    inputs = [dataclasses.replace(t, shape=shapes.get(t.name, _filled(t, sizes))) for t in inputs]
    outputs = [dataclasses.replace(t, shape=_filled(t, sizes)) for t in outputs]
    executable = DynamicExecutable(
        lambda: made,
        builder(options, name),
        inputs,
        outputs,
        made.store,
        name=name,
        options=options,
    )
    executable.staged.files = lambda: made.files
    executable.staged.opens = lambda: can_open(options)
    if shapes and all(
        t.kind == "tensor" and t.shape is not None and all(isinstance(d, int) for d in t.shape) for t in inputs
    ):
        executable.specialize({t.name: t.shape for t in inputs if t.shape is not None})  # type: ignore[misc]
    return executable


def can_open(options: Options) -> bool:
    """Whether parts of a model may be compiled for all sizes at once; not where calls compile nothing anyway."""
    if options.specialize == "never":
        return False
    try:
        check_open(dataclasses.replace(options, buckets=None), (), find(options.target))
    except TilewrightError:
        return False
    return True


def builder(options: Options, name: str, pool: ConstantPool | None = None) -> Callable[[Graph, str], Executable]:
    """A function from a graph and the name of its body to an executable; all share their constants."""
    from .compiler import run

    pool = pool or ConstantPool()
    static = dataclasses.replace(  # the others are those that the model was opened with
        options, inputs=None, stop_after=None, buckets=None, pad=None, check_indices=False
    )

    def share(package: Package) -> None:
        for i, (info, array) in enumerate(zip(package.program.constants, package.constants, strict=True)):
            package.constants[i] = pool.share(info.name, array)

    def build(graph: Graph, body: str) -> Executable:
        called = name if body == "main" else f"{name} {body}"
        made: Executable = run(CompileRequest(graph, static, name=called, keep=False, share=share))[1]
        return made

    return build


def _sizes(inputs: list[DynamicInfo], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of named dimensions that the given shapes of inputs tell."""
    dims = [pair for t in inputs if t.shape is not None for pair in zip(t.shape, shapes.get(t.name, ()), strict=False)]
    return {d: n for d, n in dims if isinstance(d, str)}


def _filled(info: DynamicInfo, sizes: Mapping[str, int]) -> tuple[int | str | None, ...] | None:
    return None if info.shape is None else tuple(sizes.get(d, d) if isinstance(d, str) else d for d in info.shape)


def _shapes(given: Mapping[str, object] | None, inputs: list[DynamicInfo]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, as `inputs` gives them (or arrays with those shapes)."""
    shapes = shapes_of(given)
    known = {t.name: t for t in inputs}
    for name in shapes:
        if name not in known:
            raise UsageError(
                f"the model has no input named {name!r}", stage="import", hint=f"its inputs are {', '.join(known)}"
            )
    return shapes


__all__ = ["builder", "can_open", "compile_dynamic", "restore"]
