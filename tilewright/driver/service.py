"""`tilewright.compile`, and the one way from a request to what runs.

compile, entries, all sizes -> serve -> obtain -> the cache (`package_cache`)
compile_graph -----------------------> obtain  -> the process that compiles model files (`out_of_process`)
                                               -> the pipeline in this process (`compiler.run`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from ..frontends import protocol
from ..runtime.executable import Executable
from ..runtime.open_executable import make
from ..support.errors import UsageError
from ..support.options import Options, with_options
from ..support.sizes import current
from ..targets import base
from .package_cache import CacheEntry, ModelFiles
from .request import CompileRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..ir.graph import Graph
    from ..runtime.dynamic import DynamicExecutable
    from ..runtime.entries import MultiExecutable
    from ..support.options import OptionsDict
    from .compiler import Snapshot


@overload
def compile(source: Mapping[str, Any], **options: Unpack[OptionsDict]) -> MultiExecutable: ...


@overload
def compile(
    source: Any,
    example_inputs: None = None,
    *,
    start_after: str | None = None,
    stop_after: None = None,
    **options: Unpack[OptionsDict],
) -> Executable | DynamicExecutable: ...


@overload
def compile(
    source: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    start_after: str | None = None,
    stop_after: str,
    **options: Unpack[OptionsDict],
) -> Graph | Snapshot: ...


@overload
def compile(
    source: Any, example_inputs: Any, *, dynamic_shapes: Any = None, **options: Unpack[OptionsDict]
) -> Callable[..., Any]: ...


@with_options
def compile(
    source: Any,
    example_inputs: Any = None,
    *,
    dynamic_shapes: Any = None,
    start_after: str | None = None,
    **options: Any,
) -> Any:
    """Compile a model for a machine, or several that share weights and states.

    `source`: anything that a front end takes (`frontends.protocol`): a file, its bytes or text, an object; or a dict of
    such by the names of entries, which gives a `MultiExecutable`. The keyword arguments are the fields of
    `tilewright.support.options.Options`: target, inputs (shapes of dynamic inputs), precision, tolerance, threads,
    verify, cache, print_after, stop_after, dump, time. With `start_after` the source is what ``dump`` wrote after that
    stage, and the pipeline goes on from there.

    `example_inputs` are for modules of PyTorch: a tuple of positional arguments, or a dict of named ones; the result is
    then called as the module is, on tensors (docs/torch.md).

    Returns an `Executable`, or a `DynamicExecutable` that compiles for the shapes it is called with where the model
    leaves them open; with `stop_after` the IR of that stage (a `Graph` up to level 3, otherwise a `Snapshot`).
    A model file with fixed shapes that was compiled before is loaded from the cache, unless ``cache=False``.
    Raises TilewrightError subclasses that say stage, operator and what to do.

        model = tw.compile("model.onnx", threads=2)
        y, = model.run({"x": x})
    """
    chosen = Options.of(**options)
    if isinstance(source, Mapping):
        from .entries import compile_entries

        if start_after is not None:
            raise UsageError("start_after continues with one model: there are several entries")
        return compile_entries(source, chosen)
    if start_after is None and isinstance(front_end := protocol.front_end_of(source), protocol.Tracing):
        traced = front_end.trace(source, example_inputs, dynamic_shapes)
        made = serve(CompileRequest(traced, chosen, keep=False))
        return traced.wrap(made) if callable(made) else made
    if example_inputs is not None or dynamic_shapes is not None:
        what = "example_inputs" if example_inputs is not None else "dynamic_shapes"
        raise UsageError(f"{what} has no meaning for this source", stage="import", hint="inputs={name: shape}")
    return serve(CompileRequest(source, chosen, start_after, keep=False))


def serve(request: CompileRequest) -> Any:
    """What `tilewright.compile` returns for one model; with open shapes it also gets its programs for all sizes, and in
    the background those for sizes that recur."""
    source, chosen = request.source, request.options
    made, files = obtain(request, CacheEntry.of(source, chosen) if request.start_after is None else None)
    if chosen.specialize in ("open", "background") and not isinstance(made, Executable) and not chosen.looks:
        from .unbounded_shapes import open_all

        open_all(made, source, chosen)
    if chosen.specialize == "background":
        from .background import in_background

        in_background(made, source, chosen, files)
    return made


def obtain(request: CompileRequest, entry: CacheEntry | None) -> tuple[Any, Callable[[], ModelFiles | None]]:
    """What runs a model, or the IR where the request says to stop; and a function that says what its files were.
    `entry`: its place in the cache."""
    package = entry.load() if entry is not None else None
    if entry is not None and package is None and entry.model is not None:
        from .out_of_process import compile_apart

        package = compile_apart(entry, request)
    if entry is not None and package is not None:
        files: Callable[[], ModelFiles | None] = partial(ModelFiles, entry.digest, package.report["files"])
        return make(package, request.options.thread_count), files
    from .compiler import run

    state, made = run(request)
    if entry is not None and isinstance(made, Executable):
        entry.keep(made.package, state.files)
    return made, partial(ModelFiles.of, state.files)


def compile_graph(graph: Graph, options: Options) -> Executable:
    """The executable of a level-2 graph whose sizes are known, or those of the open dimensions of this compilation
    (`support.sizes.open_sizes`). TilewrightError as `tilewright.compile`.

    The graph stays as it is.
    """
    if (known := current()) is not None:
        from .open_program import check_open

        check_open(options, known.dims, base.find(options.target))
    made, _ = obtain(CompileRequest(graph, options, keep=False), CacheEntry.of_graph(graph, options))
    if not isinstance(made, Executable):
        raise UsageError("a graph is compiled whole here", stage="compile", hint="leave out stop_after")
    return made
