"""The argument `dynamic_shapes`: its translation for `torch.export`, and a check of the trace at both ends of ranges.

PyTorch traces a module for sizes of at least 2, and takes it that the program holds for a size of 1 too, where the
range begins there. A module that does something else then (``if x.shape[0] == 1``, or ``x.squeeze(0)``) would be
compiled wrong, silently. So the program is run by PyTorch on examples of such sizes, and has to give what the module
gives, with tensors of the shapes that it says on the way.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ...support.errors import UnsupportedError, UsageError
from ...support.sizes import Dim
from .symbols import Open, formula_of, linear

if TYPE_CHECKING:
    import sympy

#: results may differ by this part of the largest one: operators are computed by parts here, as a whole there
_CLOSE = {torch.float64: 1e-6, torch.float16: 0.05, torch.bfloat16: 0.2}


def for_pytorch(dynamic_shapes: Any) -> tuple[Any, dict[str, Dim]]:
    """`dynamic_shapes` as `torch.export.export` takes it, and the dimensions among it that are ours, by name.

    Ours are `Dim`s, or texts such as ``"seq:1..512"``. UsageError if one name has two ranges.
    """
    ours: dict[str, Dim] = {}
    theirs: dict[str, Any] = {}

    def told(x: Any) -> Any:
        if isinstance(x, str):
            x = Dim.parse(x)
        if isinstance(x, Dim):
            if ours.setdefault(x.name, x) != x:
                raise UsageError(f"dimension {x} is {ours[x.name]} elsewhere", hint="a dimension has one range")
            if x.name not in theirs:
                theirs[x.name] = _dim(x)
            return theirs[x.name]
        if isinstance(x, Mapping):
            return {k: told(v) for k, v in x.items()}
        return type(x)(map(told, x)) if type(x) in (list, tuple) else x

    return told(dynamic_shapes), ours


def _dim(d: Dim) -> Any:
    if not d.name.isidentifier():
        raise UsageError(f"PyTorch calls dimensions by identifiers, not {d.name!r}", stage="import")
    if d.divisor == 1:
        return torch.export.Dim(d.name, min=d.low, max=d.high)
    return d.divisor * torch.export.Dim(f"_{d.name}", min=-(-d.low // d.divisor), max=d.high // d.divisor)


# ---- examples ------------------------------------------------------------------------------------------------------


def enlarged(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Examples in which open dimensions of size 1 are 2, for PyTorch takes a 1 for a size that never changes."""
    larger: dict[int, torch.Tensor] = {}
    for x, dims in _with_dims(module, args, kwargs, dynamic_shapes):
        for axis, d in dims.items():
            now = larger.get(id(x), x)
            if now.shape[axis] == 1 and _opens(d):
                larger[id(x)] = torch.cat([now, now], axis)

    def swap(x: Any) -> Any:
        return larger.get(id(x), x)

    return pytree.tree_map(swap, args), pytree.tree_map(swap, kwargs)


def _with_dims(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> list[tuple[torch.Tensor, dict[int, Any]]]:
    """The tensors among the examples, each with what is said of its dimensions."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError:
        return []  # PyTorch says what does not fit
    given = list(bound.arguments.items())
    if isinstance(dynamic_shapes, Mapping):
        told = [(value, dynamic_shapes.get(name)) for name, value in given]
    else:
        told = list(itertools.zip_longest([v for _, v in given], dynamic_shapes or ()))[: len(given)]
    found: list[tuple[torch.Tensor, dict[int, Any]]] = []
    for value, shapes in told:
        _collect(value, shapes, found)
    return found


def _collect(value: object, shapes: Any, found: list[tuple[torch.Tensor, dict[int, Any]]]) -> None:
    if isinstance(value, torch.Tensor):
        items = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        dims = {axis: d for axis, d in items if isinstance(axis, int) and 0 <= axis < value.dim()}
        found.append((value, dims))
    elif isinstance(value, Mapping) and isinstance(shapes, Mapping):
        for key, v in value.items():
            _collect(v, shapes.get(key), found)
    elif isinstance(value, (list, tuple)) and isinstance(shapes, (list, tuple)):
        for v, s in zip(value, shapes, strict=False):
            _collect(v, s, found)


def hinted(dynamic_shapes: Any) -> Any:
    """`dynamic_shapes` whose named dimensions are hints, of which PyTorch proves nothing. NotImplementedError for
    dimensions that are made of others, or have no end."""
    if isinstance(dynamic_shapes, torch.export.Dim):
        if type(dynamic_shapes).__name__ == "_DerivedDim" or not isinstance(dynamic_shapes.max, int):
            raise NotImplementedError("a dimension that is made of another one, or has no end")
        return torch.export.Dim.DYNAMIC(min=dynamic_shapes.min, max=dynamic_shapes.max)
    if isinstance(dynamic_shapes, Mapping):
        return {k: hinted(v) for k, v in dynamic_shapes.items()}
    if type(dynamic_shapes) in (list, tuple):
        return type(dynamic_shapes)(map(hinted, dynamic_shapes))
    return dynamic_shapes


def places(
    module: torch.nn.Module, program: ExportedProgram, args: tuple[object, ...], kwargs: dict[str, Any], shapes: Any
) -> dict[tuple[str, int], Dim]:
    """The named dimensions of inputs: by placeholder and axis."""
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    flat = pytree.tree_leaves((args, kwargs), is_leaf=lambda x: x is None)
    told = {id(x): dims for x, dims in _with_dims(module, args, kwargs, shapes)}
    return {
        (name, axis): Dim(d.__name__, max(d.min, 1), d.max)
        for name, x in zip(names, flat, strict=True)
        for axis, d in told.get(id(x), {}).items()
        if isinstance(d, torch.export.Dim)
    }


def _opens(dim: object) -> bool:
    """Whether a dimension has to stay open, and can be 2."""
    if dim is None or isinstance(dim, int) or getattr(getattr(dim, "type", None), "name", "") in ("AUTO", "STATIC"):
        return False
    largest = getattr(dim, "max", None)
    return type(dim).__name__ != "_DerivedDim" and not (isinstance(largest, int) and largest < 2)


# ---- the ends of ranges --------------------------------------------------------------------------------------------


def check_ends(
    module: torch.nn.Module,
    program: ExportedProgram,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    opened: Sequence[Open],
    ends: Iterable[Mapping[sympy.Symbol, int]],
) -> None:
    """UnsupportedError unless the program gives what the module does, where symbols are these numbers."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    metas = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    shapes = [metas[n].shape if isinstance(metas[n], torch.Tensor) else None for n in names]
    usual = _symbols(flat, shapes)
    for end in ends:
        sizes = {**usual, **end}
        given = [x if s is None else _cut(x, s, sizes) for x, s in zip(flat, shapes, strict=True)]
        said = {o.dim.name: o.factor * end[o.symbol] + o.more for o in opened if o.symbol in end}
        where = ", ".join(f"{name} is {size}" for name, size in said.items())
        args, kwargs = pytree.tree_unflatten(given, spec)
        want = _results(partial(_quiet, module, *args, **kwargs), where)
        traced = _Traced(program, sizes)
        got = _results(partial(traced.user_results, given), where)
        if traced.other or not _same(want, got):
            raise UnsupportedError(
                f"the module does something else where {where} than for other sizes",
                stage="import",
                hint="leave these sizes out of the range, and compile another program for them",
            )


def _symbols(flat: Sequence[Any], shapes: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """What symbols are in the examples."""
    found: dict[sympy.Symbol, int] = {}
    for x, shape in zip(flat, shapes, strict=True):
        for d, n in zip(shape or (), getattr(x, "shape", ()), strict=False):
            told = linear(formula_of(d))
            if told is not None:
                found.setdefault(told[0], (n - told[2]) // told[1])
    return found


def _cut(x: torch.Tensor, shape: Sequence[Any], sizes: Mapping[sympy.Symbol, int]) -> torch.Tensor:
    """An example of another size: its first elements, or all of them again and again."""
    for axis, d in enumerate(shape):
        size = int(formula_of(d).subs(sizes))
        if size != x.shape[axis]:
            x = x.index_select(axis, torch.arange(size, device=x.device) % x.shape[axis])
    return x


def _quiet(module: torch.nn.Module, *args: object, **kwargs: object) -> Any:
    """What the module gives, which runs on copies of its buffers and of its arguments."""
    args, kwargs = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    return torch.func.functional_call(module, buffers, args, kwargs)


class _Traced(torch.fx.Interpreter):
    """A program as PyTorch runs it for some numbers of symbols; `other` if a tensor has not the shape that it says."""

    def __init__(self, program: ExportedProgram, sizes: Mapping[sympy.Symbol, int]) -> None:
        super().__init__(program.graph_module)
        self.program, self.sizes, self.other = program, sizes, False

    def run_node(self, n: torch.fx.Node) -> Any:
        made, said = super().run_node(n), n.meta.get("val")
        if isinstance(made, torch.Tensor) and isinstance(said, torch.Tensor):
            known = [formula_of(d).subs(self.sizes) for d in said.shape]
            self.other |= any(k.is_number and k != d for k, d in zip(known, made.shape, strict=True))
        return made

    def user_results(self, given: Sequence[Any]) -> list[Any]:
        """The results of the module, from its arguments in a flat order."""
        signature = self.program.graph_signature
        state, own = {**self.program.state_dict, **self.program.constants}, iter(given)
        inputs = [next(own) if s.kind.name == "USER_INPUT" else state.get(s.target) for s in signature.input_specs]
        results = self.run(*inputs, enable_io_processing=False)
        return [r for r, s in zip(results, signature.output_specs, strict=True) if s.kind.name == "USER_OUTPUT"]


def _results(run: Callable[[], Any], where: str) -> list[Any]:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return pytree.tree_leaves(run(), is_leaf=lambda x: x is None)
    except Exception as e:  # whatever the module's own code raises
        raise UnsupportedError(
            f"the module cannot be run where {where}: {type(e).__name__}: {str(e).strip().partition(chr(10))[0]}",
            stage="import",
            hint="leave these sizes out of the range",
        ) from e


def _same(want: Sequence[Any], got: Sequence[Any]) -> bool:
    if len(want) != len(got):
        return False
    for w, g in zip(want, got, strict=True):
        if not isinstance(w, torch.Tensor) or not isinstance(g, torch.Tensor):
            if type(w) is not type(g) or (not isinstance(w, torch.Tensor) and w != g):
                return False
        elif w.shape != g.shape or w.dtype != g.dtype:
            return False
        elif w.numel():
            close = _CLOSE.get(w.dtype, 1e-4 if w.is_floating_point() else 0)
            w, g = w.detach().double(), g.detach().double()
            scale = w[w.isfinite()].abs().max().item() if w.isfinite().any() else 0.0
            if not torch.allclose(w, g, rtol=close, atol=close * scale, equal_nan=True):
                return False
    return True


__all__ = ["check_ends", "enlarged", "for_pytorch", "hinted", "places"]
