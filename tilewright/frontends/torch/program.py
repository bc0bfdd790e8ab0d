"""Programs of `torch.export`: how modules become such, what goes in and out of them, and their graph."""

from __future__ import annotations

import inspect
import os
import re
import threading
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram, default_decompositions
from torch.export import exported_program as pytorch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx.experimental import _config as experimental
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from ...ir.graph import Graph
from ...ir.types import Type
from ...support import internal_errors
from ...support.errors import TilewrightError, UnsupportedError, UsageError
from ...support.sizes import Dim, at_most, current, open_sizes
from . import arrays
from .callable import CallingConvention, TorchExecutable
from .dynamic_shapes import check_ends, enlarged, for_pytorch, hinted, places
from .foreach import foreach_decompositions
from .importer import TorchImporter
from .node import COMPLEX, DTYPES
from .scalar_buffers import export_with_constants
from .symbols import Formula, Known, Open, formula_of, linear, open_dimensions, size_of, undecided
from .tracing import traced, untraced

if TYPE_CHECKING:
    import sympy

#: overloads that stay whole, for there is an operator for each: PyTorch would make several of them
WHOLE = (
    "linear", "matmul", "einsum", "scaled_dot_product_attention", "layer_norm", "group_norm", "rms_norm",
    "instance_norm", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "softmax.int", "log_softmax.int",
    "_safe_softmax", "softplus", "leaky_relu", "elu", "celu", "selu", "hardtanh", "relu6", "prelu", "_prelu_kernel",
    "addmm", "baddbmm", "addcmul", "embedding", "pixel_shuffle", "upsample_nearest1d.vec", "upsample_nearest2d.vec",
    "upsample_nearest3d.vec", "_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec", "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", "grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "im2col", "col2im", "index_add",
    "index_copy", "logsumexp", "linalg_vector_norm", "stack", "roll", "unbind.int", "split.Tensor", "tril", "triu",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "glu",
    "isneginf", "isposinf", "square", "exp2", "signbit", "trunc", "frac", "one_hot", "bucketize.Tensor",
    "searchsorted.Tensor", "cumprod", "take", "any.dims", "all.dims", "_unsafe_index.Tensor",
    "repeat_interleave.self_int", "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input",
)  # fmt: skip


def decompositions() -> Any:
    """PyTorch's table of decompositions without `WHOLE`; with those of operators that a package has registered since
    (torchao)."""
    table = default_decompositions()
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload or "default"), None)
    return table


@lru_cache(maxsize=1)
def training_decompositions() -> Any:
    """The same for the graphs of `torch.compile`, forward and backward."""
    table = {**core_aten_decompositions(), **foreach_decompositions()}
    for name in (*WHOLE, "_scaled_dot_product_flash_attention_for_cpu"):
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload or "default"), None)
    return table


class TorchProgram:
    """A program of `torch.export` after decomposition."""

    def __init__(self, exported: ExportedProgram, name: str, parameters: inspect.Signature | None = None) -> None:
        self.exported, self.name = exported, name
        _drop_unused_numbers(exported.graph)
        signature = exported.graph_signature
        state = {**exported.state_dict, **exported.constants}
        written = {s.target for s in signature.output_specs if s.kind == OutputKind.BUFFER_MUTATION}
        #: arrays (and numbers, None) by placeholder, which the graph has built in
        self.known: dict[str, Any] = {}
        self.call = CallingConvention(exported, name, parameters)
        self.inputs: list[str] = []
        #: the symbols of shapes, and conditions of them that were found to hold where they cannot be proved
        self.open: list[Open] = []
        self.checked: set[Formula] = set()
        for spec in signature.input_specs:
            if isinstance(spec.arg, ConstantArgument):
                self.known[spec.arg.name] = spec.arg.value
            elif spec.kind == InputKind.TOKEN:  # the order of side effects, which have no import function
                self.known[spec.arg.name] = None
            elif not isinstance(spec.arg, TensorArgument):
                raise UnsupportedError(f"input {spec.arg.name!r} is no tensor and no constant", stage="import")
            elif spec.kind == InputKind.USER_INPUT:
                self.inputs.append(spec.arg.name)
            elif spec.target in written:
                self.inputs.append(spec.arg.name)
                self.call.buffers[spec.arg.name] = state[spec.target]
            else:
                self.known[spec.arg.name] = arrays.view(state[spec.target])

    @staticmethod
    def of(source: object, examples: object, dynamic_shapes: object) -> TorchProgram:
        """A program for a module, an exported program, or a program. UnsupportedError if PyTorch cannot export it, or
        if what it exports is not right for all sizes that `dynamic_shapes` lets in.

        One thread after the other: PyTorch traces with modes that all threads share."""
        if isinstance(source, TorchProgram):
            return source
        with _tracing:
            return TorchProgram._of(source, examples, dynamic_shapes)

    @staticmethod
    def _of(source: Any, examples: object, dynamic_shapes: object) -> TorchProgram:
        if isinstance(source, ExportedProgram):
            if dynamic_shapes is not None:
                raise UsageError(
                    "the dimensions of an exported program are what they are",
                    stage="import",
                    hint="leave out dynamic_shapes, or give the module",
                )
            program = _decomposed(source, "ExportedProgram")
            program.find_open({}, {})
            return program
        _warn_of_training(source)
        args, kwargs = _arguments(examples)
        shapes, ours = for_pytorch(dynamic_shapes)
        args, kwargs = enlarged(source, args, kwargs, shapes)
        try:
            exported = traced(source, args, kwargs, shapes)
        except Exception as e:  # whatever the module's own code raises
            unproved = (
                TorchProgram._unproved(source, args, kwargs, shapes) if "Constraints violated" in str(e) else None
            )
            if unproved is not None:
                return unproved
            found = export_with_constants(source, args, kwargs, shapes) if "data-dependent" in str(e) else None
            if found is None:
                raise untraced(e) from e
            exported = found
        program = _decomposed(exported, type(source).__name__, _parameters(source))
        program.find_open(ours, {})
        program.check_ends(source, args, kwargs)
        return program

    @staticmethod
    def _unproved(module: Any, args: tuple[object, ...], kwargs: dict[str, Any], shapes: Any) -> TorchProgram | None:
        """The program where PyTorch does not prove that it holds for all sizes, but we do; None where we do not.

        Its conditions stay with it, and it does not take a size for another one than 1."""
        try:
            with experimental.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
                exported = traced(module, args, kwargs, hinted(shapes))
                program = _decomposed(exported, type(module).__name__, _parameters(module))
            program.find_open({}, places(module, exported, args, kwargs, shapes))
            program.check_ends(module, args, kwargs)
            with open_sizes(program.open_dims()):
                left = undecided(program._guards(), program._known(), ())
            return program if all(guard in program.checked for guard, _ in left) else None
        except Exception as e:  # PyTorch's own words say what is wrong
            internal_errors.note_own(e, "PyTorch's conditions are not proved")
            return None

    # ---- open dimensions ----

    def find_open(self, ours: Mapping[str, Dim], said: Mapping[tuple[str, int], Dim]) -> None:
        """Fill `open`: what the shapes of inputs leave open. `ours` are dimensions whose ranges the user gave by name,
        `said` by place."""
        shapes = {name: self._meta(name).shape for name in self.inputs}
        env = self._shape_env()
        names = {} if env is None else {
            str(env.replace(symbol)): env.source_name_to_debug_name[source.name]
            for symbol, sources in env.var_to_sources.items()
            for source in sources
            if source.name in env.source_name_to_debug_name
        }  # fmt: skip
        self.open = open_dimensions(shapes, self.exported.range_constraints, names, ours, said)

    def open_dims(self) -> tuple[Dim, ...]:
        """The open dimensions, which the graph has unless shapes are given."""
        return tuple(dict.fromkeys(o.dim for o in self.open))

    def check_ends(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Run the program, before it is imported, at sizes for which PyTorch does not prove that it is right."""
        ends: list[dict[sympy.Symbol, int]] = []
        ones = {o.symbol: 1 for o in self.open if o.range[0] == 1}
        if ones:
            ends += [self._together(o, 1) for o in self.open if o.symbol in ones] + [ones]
        with open_sizes(self.open_dims()):
            conditions = undecided(self._guards(), self._known(), self.open)
        for guard, found in conditions:
            for o in found:
                ends += [self._together(o, n) for n in o.range if not bool(guard.subs(o.symbol, n))]
            if found:
                self.checked.add(guard)
        check_ends(module, self.exported, args, kwargs, self.open, [dict(e) for e in {tuple(e.items()) for e in ends}])

    def _together(self, opened: Open, number: int) -> dict[sympy.Symbol, int]:
        """All symbols of a dimension as one number."""
        return {o.symbol: number for o in self.open if o.dim == opened.dim}

    def _shape_env(self) -> Any:
        """PyTorch's record of symbols, None if there are none."""
        for node in self.exported.graph.nodes:
            value = node.meta.get("val")
            for d in value.shape if isinstance(value, torch.Tensor) else (value,):
                if isinstance(d, torch.SymInt):
                    return d.node.shape_env
        return None

    def _guards(self) -> list[Formula]:
        """What PyTorch took to be true while it traced."""
        env = self._shape_env()
        return [] if env is None else list(dict.fromkeys(env.replace(g.expr) for g in env.guards))

    def _meta(self, name: str) -> torch.Tensor:
        found: torch.Tensor = next(n for n in self.exported.graph.nodes if n.name == name).meta["val"]
        return found

    def _known(self) -> dict[sympy.Symbol, int]:
        """The sizes that symbols are in this compilation."""
        space = current()
        if space is None:
            return {}
        sizes = {d.name: s for d, s in zip(space.dims, space.symbols, strict=True)}
        return {o.symbol: o.of(sizes[o.dim.name]) for o in self.open}

    def _given(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[sympy.Symbol, int]:
        """The sizes that symbols are if inputs have these shapes. UsageError where they do not fit."""
        known: dict[sympy.Symbol, int] = {}
        for name, shape in shapes.items():
            if name not in self.inputs or len(self._meta(name).shape) != len(shape):
                raise UsageError(
                    f"the program has no input {name!r} of {len(shape)} dimensions",
                    stage="import",
                    hint="its inputs are "
                    + ", ".join(f"{n}{[str(d) for d in self._meta(n).shape]}" for n in self.inputs),
                )
            for d, size in zip(self._meta(name).shape, shape, strict=True):
                told = linear(formula_of(d))
                if told is not None:
                    known.setdefault(told[0], (size - told[2]) // told[1])
        if missing := [o.dim.name for o in self.open if o.symbol not in known]:
            raise UsageError(f"the shapes do not say what {', '.join(missing)} is", stage="import")
        for name, shape in shapes.items():
            own = tuple(size_of(formula_of(d), known) for d in self._meta(name).shape)
            if own != tuple(shape):
                raise UsageError(f"input {name!r} has shape {own}, not {tuple(shape)}", stage="import")
        for o in self.open:
            low, high = o.range
            if not (at_most(low, known[o.symbol]) and at_most(known[o.symbol], high)):
                raise UsageError(f"the program was exported for {o.dim}, not for all of these sizes", stage="import")
        return known

    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The level-2 graph, with the open dimensions of this compilation, or of inputs of these shapes.
        UnsupportedError lists all operators that cannot be imported."""
        if shapes and not self.open:
            raise UsageError("the shapes of a PyTorch program are those of its examples", stage="import")
        known = self._given(shapes) if shapes else self._known()
        for guard, _ in undecided(self._guards(), known, ()):
            if guard not in self.checked:
                raise UnsupportedError(
                    f"PyTorch's program is for sizes with {self._text(guard)} only",
                    stage="import",
                    hint="give ranges in which this always holds",
                )
        inputs = [(name, _type(name, self._meta(name), known)) for name in self.inputs]
        importer = TorchImporter(inputs, self.known, known)
        results = importer.run(self.exported.graph_module)
        outputs = self.call.outputs(results)
        return importer.finish(outputs)

    def _text(self, formula: Formula) -> str:
        """A condition in the names of dimensions."""
        named = {str(o.symbol): o.dim.name if o.dim.divisor == 1 else f"({o.dim.name}//{o.dim.divisor})"
                 for o in self.open}  # fmt: skip
        return re.sub(r"\w+", lambda m: named.get(m[0], m[0]), str(formula))

    def wrap(self, executable: Any) -> TorchExecutable:
        """What the caller gets: called as the module was, on tensors."""
        return TorchExecutable(executable, self.call)


_tracing = threading.RLock()


def _after_fork() -> None:
    global _tracing
    _tracing = threading.RLock()  # who had it is in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@lru_cache(maxsize=1)
def _split_decompositions(registered: tuple[str, ...]) -> dict[str, dict[Any, Any]]:
    """`decompositions` as PyTorch's own step wants them: of operators that it composes of others, and of the rest."""
    composite, others = pytorch._split_decomp_table_to_cia_and_python_decomp(decompositions().materialize())
    return {"cia_to_decomp": composite, "python_decomp_table": others}


def _run_decompositions(exported: ExportedProgram) -> ExportedProgram:
    """`ExportedProgram.run_decompositions`, which looks through all of PyTorch's operators twice in each call: half of
    its time for a small model. Here that is done when others are registered. Its steps are not public: a PyTorch that
    has others is called as its documentation says."""
    how: dict[str, Any] = {"joint_loss_index": None, "decompose_custom_triton_ops": False}
    try:
        inspect.signature(pytorch._split_decomp_table_to_cia_and_python_decomp).bind({})
        decompose = pytorch._decompose_exported_program
        inspect.signature(decompose).bind(exported, cia_to_decomp={}, python_decomp_table={}, **how)
    except (AttributeError, TypeError):
        return exported.run_decompositions(decompositions())
    registered = tuple(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
    tables = {name: dict(table) for name, table in _split_decompositions(registered).items()}
    with unset_fake_temporarily():
        made: ExportedProgram = decompose(exported, **{**tables, **how})
    return made


def _decomposed(exported: ExportedProgram, name: str, parameters: inspect.Signature | None = None) -> TorchProgram:
    try:
        return TorchProgram(_run_decompositions(exported), name, parameters)
    except TilewrightError:
        raise
    except Exception as e:
        raise UnsupportedError(f"PyTorch cannot decompose this program: {type(e).__name__}: {e}", stage="import") from e


def _drop_unused_numbers(graph: torch.fx.Graph) -> None:
    """Remove dead scalars, and PyTorch's checks of where a slice begins in memory, which means nothing
    here."""
    aten = torch.ops.aten
    of_memory = (aten.sym_storage_offset.default, aten.sym_stride.int)
    for node in reversed(list(graph.nodes)):
        value = node.meta.get("val")
        unused = not node.users and isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        checked = node.args[0] if node.target is aten._assert_scalar.default else None
        if isinstance(checked, torch.fx.Node):
            unused = any(n.target in of_memory for n in checked.all_input_nodes)
        if unused and node.op == "call_function":
            graph.erase_node(node)


def _parameters(module: torch.nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):  # a callable that does not say
        return None


def _warn_of_training(module: torch.nn.Module) -> None:
    """Warn where training mode makes a module compute something else than what is deployed."""
    for name, part in module.named_modules():
        drops = isinstance(part, _DropoutNd) and part.p > 0
        if part.training and (drops or (isinstance(part, _NormBase) and part.track_running_stats)):
            warnings.warn(
                f"{type(module).__name__} is in training mode: {name or type(part).__name__} "
                f"({type(part).__name__}) {'drops values at random' if drops else 'updates its statistics'} in every "
                "call. Call module.eval() before compiling it for inference",
                UserWarning,
                stacklevel=4,
            )
            return


def _arguments(examples: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and named arguments: a tuple or list, a dict by name, one tensor alone."""
    if examples is None:
        raise UsageError("a module needs example inputs", stage="import", hint="tw.compile(module, example_inputs)")
    if isinstance(examples, Mapping):
        return (), dict(examples)
    return (tuple(examples), {}) if isinstance(examples, (tuple, list)) else ((examples,), {})


def _type(name: str, meta: torch.Tensor, known: Known) -> Type:
    shape = tuple(size_of(formula_of(d), known) for d in meta.shape)
    if meta.dtype in COMPLEX:
        return Type((*shape, 2), COMPLEX[meta.dtype])
    if meta.dtype not in DTYPES:
        raise UnsupportedError(f"input {name!r} is a tensor of {meta.dtype}, which is not supported", stage="import")
    return Type(shape, DTYPES[meta.dtype])


__all__ = ["TorchProgram", "decompositions"]
