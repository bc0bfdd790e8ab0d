"""Calling a compiled program as the module it was made of is called: nested arguments, tensors in and out."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from ...support.errors import InputError, UnsupportedError
from ...support.formulas import evaluate, formula
from ...support.sizes import Size
from . import arrays
from .node import FxTensor, is_complex

_T = TypeVar("_T")


class CallingConvention:
    """What goes in and out of a program, and how it is nested."""

    def __init__(self, exported: ExportedProgram, name: str, parameters: inspect.Signature | None) -> None:
        #: what the caller calls: the module's class, and the parameters of its `forward` (else what is remembered)
        self.name, self.parameters = name, parameters or _remembered(exported)
        signature = exported.graph_signature
        self.in_spec, self.out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
        #: placeholders of what the caller gives, flat: a name for tensors, (None, value) for what must be equal
        self.given = [
            (s.arg.name, getattr(s.arg, "value", None)) for s in signature.input_specs if s.kind.name == "USER_INPUT"
        ]
        self.fixed = {s.arg.name for s in signature.input_specs if hasattr(s.arg, "value")}
        #: tensors that the program writes to, by placeholder
        self.buffers: dict[str, torch.Tensor] = {}
        self.specs = list(signature.output_specs)
        self.by_target = {s.target: s.arg.name for s in signature.input_specs}
        #: what each result is: ("value", constant), ("size", formula), ("output", n), ("complex", n), ("number", n),
        #: ("buffer", n, placeholder), ("argument", n, name)
        self.results: list[tuple[Any, ...]] = []
        #: names of the user's results, in the order in which they leave the graph
        self.result_names = _result_names(self.out_spec)
        #: what the graph returns: its nodes, or constants
        self.returned = list(next(n for n in exported.graph.nodes if n.op == "output").args[0])

    def copied(self, memo: dict[int, object]) -> CallingConvention:
        """The same with buffers of its own."""
        made = copy.copy(self)
        made.buffers = copy.deepcopy(self.buffers, memo)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Without what only the import needs."""
        return {k: v for k, v in self.__dict__.items() if k not in ("specs", "by_target", "returned")}

    def outputs(self, results: Sequence[_T]) -> list[tuple[str, _T]]:
        """Names and values of what the graph returns; `results` are `FxTensor`s (or nodes that stand for them), or what
        the program returns as it is."""
        made: list[tuple[str, _T]] = []
        names = iter(self.result_names)
        self.results = []
        for spec, value, returned in zip(self.specs, results, self.returned, strict=True):
            if spec.kind == OutputKind.TOKEN:  # the order of side effects
                continue
            name = next(names) if spec.kind == OutputKind.USER_OUTPUT else ""
            meta = returned.meta.get("val") if isinstance(returned, torch.fx.Node) else returned
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
                buffer = spec.kind == OutputKind.BUFFER_MUTATION
                target = self.by_target[spec.target] if buffer else spec.target
                self.results.append(("buffer" if buffer else "argument", len(made), target))
            elif spec.kind != OutputKind.USER_OUTPUT:
                raise UnsupportedError(f"results of kind {spec.kind.name} are not supported", stage="import")
            elif isinstance(value, (FxTensor, torch.fx.Node)):
                kind = "complex" if is_complex(meta) else "output" if isinstance(meta, torch.Tensor) else "number"
                self.results.append((kind, len(made)))
            else:
                self.results.append(("size", formula(value)) if isinstance(value, Size) else ("value", value))
                continue
            changed = spec.kind != OutputKind.USER_OUTPUT
            made.append((f"next.{target}" if changed else name, value))
        return made


class TorchExecutable:
    """An executable that is called like the module: ``run(*args, **kwargs)``, bound by the signature of `forward`.

    It takes tensors in the structure of the example inputs and returns tensors in the structure of the module's result,
    without copies. Buffers that the module updates are updated. ``out=`` takes tensors to write the results into, in
    that structure too (unless the module itself has a parameter of that name). `executable` is what runs
    (`tilewright.Executable`), on arrays in a flat order; `copy.deepcopy` and `pickle` copy it with its buffers.

    InputError for arguments of another structure, shape or dtype.
    """

    def __init__(self, executable: Any, call: CallingConvention) -> None:
        self.executable, self.call = executable, call
        self._names = [i.name for i in executable.inputs]
        self._takes_out = "out" not in call.parameters.parameters

    def __call__(self, *args: object, **kwargs: object) -> Any:
        out = kwargs.pop("out", None) if self._takes_out else None
        given = self._given(args, kwargs)
        tensors = {**given, **self.call.buffers}
        given_arrays = [arrays.view(tensors[name]) for name in self._names]
        wanted = None if out is None else self._wanted(out)
        try:
            if wanted is not None and all(kind == "output" for kind, *_ in self.call.results):
                self.executable(*given_arrays, out=[arrays.view(t) for t in wanted])
                return out
            results = self.executable(*given_arrays)
        except InputError as e:
            raise self._in_words_of_torch(e, given) from None
        made = pytree.tree_unflatten(self._results(results, tensors, given_arrays), self.call.out_spec)
        if wanted is None:
            return made
        with torch.no_grad():
            for to, value in zip(wanted, pytree.tree_leaves(made), strict=True):
                to.copy_(value)
        return out

    def _results(
        self, results: list[np.ndarray], tensors: dict[str, torch.Tensor], given: list[np.ndarray]
    ) -> list[Any]:
        """What the module returns, flat; tensors that it changes are changed."""
        flat: list[Any] = []
        for kind, *what in self.call.results:
            if kind == "value":
                flat.append(what[0])
            elif kind == "size":
                known = self.executable.sizes
                sizes = known.sizes([a.shape for a in given], self._names)
                flat.append(evaluate((what[0],), known.values(sizes))[0])
            elif kind in ("output", "complex"):
                flat.append(arrays.tensor(results[what[0]], pairs=kind == "complex"))
            elif kind == "number":
                flat.append(results[what[0]].item())
            else:
                with torch.no_grad():
                    changed = tensors[what[1]]
                    changed.copy_(arrays.tensor(results[what[0]], pairs=changed.is_complex()))
        return flat

    def _given(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors of a call by placeholder."""
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.call.in_spec:
            flat, spec = pytree.tree_flatten(self._as_examples(args, kwargs))
        if spec != self.call.in_spec:
            raise self._other_structure(spec)
        found = {}
        for value, (name, fixed) in zip(flat, self.call.given, strict=True):
            if name not in self.call.fixed:
                if not isinstance(value, (torch.Tensor, np.ndarray)):
                    raise InputError(f"argument {name!r} is a {type(value).__name__}, not a tensor", stage="run")
                found[name] = value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
            elif value is not fixed and value != fixed:
                raise InputError(
                    f"argument {name!r} is {value!r}; the program was made for {fixed!r}",
                    stage="run",
                    hint="compile it again for another value",
                )
        return found

    def _as_examples(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, by position and by name as the example inputs were."""
        try:
            given = self.call.parameters.bind(*args, **kwargs)
        except TypeError as e:
            raise InputError(f"{e}", stage="run", hint=f"it is called as run{self.call.parameters}") from None
        given.apply_defaults()
        positional, named = _children(self.call.in_spec)
        parameters, places = self.call.parameters.parameters, range(len(_children(positional)))
        examples = self.call.parameters.bind(*places, **{name: name for name in named.context}).arguments
        placed: dict[Any, Any] = {}
        for name, value in given.arguments.items():
            place = examples.get(name)
            if isinstance(place, (tuple, dict)) and len(place) == len(value):  # of *args or **kwargs
                pairs = zip(place, value, strict=True) if isinstance(place, tuple) else value.items()
                placed.update(pairs)
            elif name in examples:
                placed[place] = value
            elif value is not parameters[name].default and value not in ((), {}):
                raise InputError(
                    f"argument {name!r} was left out of the example inputs: its default "
                    f"({parameters[name].default!r}) is built into the program",
                    stage="run",
                    hint=f"compile it with an example of {name!r}",
                )
        if not {*places, *named.context} <= set(placed):
            return args, kwargs  # another number of variable arguments
        return tuple(placed[i] for i in places), {name: placed[name] for name in named.context}

    def _other_structure(self, spec: pytree.TreeSpec) -> InputError:
        """The error for arguments that are nested otherwise than the examples."""
        sides = [_structure(s) for s in (spec, self.call.in_spec)]
        return InputError(
            f"the arguments are {sides[0]}, those of the examples were {sides[1]}",
            stage="run",
            hint="call it with the structure of the example inputs; * is a tensor or another value",
        )

    def _wanted(self, out: Any) -> list[torch.Tensor]:
        """The tensors of `out`, flat. InputError where they cannot take the results."""
        flat, spec = pytree.tree_flatten(out)
        if spec != self.call.out_spec or not all(isinstance(t, torch.Tensor) for t in flat):
            raise InputError(
                f"out is {_structure(spec)}, the result is {_structure(self.call.out_spec)} of tensors",
                stage="run",
                hint="give tensors in the structure of the module's result",
            )
        return flat

    def _in_words_of_torch(self, error: InputError, given: dict[str, torch.Tensor]) -> InputError:
        """An error about a dtype as PyTorch's users know dtypes; others as they are."""
        for info in self.executable.inputs:
            wanted = arrays.TORCH.get(info.dtype)
            found = given[info.name].dtype if info.name in given else wanted
            if found != wanted and not (found is not None and found.is_complex):
                return InputError(
                    f"argument {info.name!r} is a tensor of {found}, the program takes {wanted}",
                    stage="run",
                    hint=f"dtypes are not converted silently: pass x.to({wanted}) if that is what you mean",
                )
        return error

    # ---- what it is ----

    @property
    def inputs(self) -> list[Any]:
        """Names, shapes and dtypes of the tensors that go in, in a flat order."""
        return list(self.executable.inputs)

    @property
    def outputs(self) -> list[Any]:
        """The same of what comes out: named by the keys and fields of the module's result."""
        return list(self.executable.outputs)

    def explain(self) -> Any:
        """What was compiled, as text; see `Executable.explain`."""
        return self.executable.explain()

    def profile(self, *args: object, **kwargs: object) -> Any:
        """Where the time of a call with these arguments goes; see `Executable.profile`."""
        tensors = {**self._given(args, kwargs), **self.call.buffers}
        return self.executable.profile([arrays.view(tensors[name]) for name in self._names])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what runs to a file for `tilewright.load`, which gives an executable that takes arrays, not tensors."""
        self.executable.save(path)

    def __deepcopy__(self, memo: dict[int, object]) -> TorchExecutable:
        return TorchExecutable(copy.deepcopy(self.executable, memo), self.call.copied(memo))

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _unpickled, (pickle.dumps((self.executable, self.call)),)

    def _repr_html_(self) -> str:
        return self.executable._repr_html_()

    def __repr__(self) -> str:
        given = ", ".join(str(i) for i in self.inputs if i.name not in self.call.buffers)
        outputs = ", ".join(str(o) for o in self.outputs if not o.name.startswith("next."))
        return f"<TorchExecutable {self.call.name}({given}) -> ({outputs}), {self.executable.threads} threads>"


def _unpickled(data: bytes) -> TorchExecutable:
    with warnings.catch_warnings():  # PyTorch's own, about how Python restores its specifications of structures
        warnings.simplefilter("ignore", FutureWarning)
        return TorchExecutable(*pickle.loads(data))


def _remembered(exported: ExportedProgram) -> inspect.Signature:
    """The parameters that an exported program has names for."""
    positional, named = _children(exported.call_spec.in_spec)
    known = getattr(exported.module_call_graph[0].signature, "forward_arg_names", None) or []
    kinds = inspect.Parameter
    first = [kinds(n, kinds.POSITIONAL_OR_KEYWORD) for n in known[: len(_children(positional))]]
    if len(first) != len(_children(positional)):
        first = [kinds("args", kinds.VAR_POSITIONAL)]
    return inspect.Signature([*first, *(kinds(n, kinds.KEYWORD_ONLY) for n in named.context)])


def _children(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def _structure(spec: pytree.TreeSpec) -> str:
    """A structure on one line: ``(*, {mask: *})``."""
    if spec.is_leaf():
        return "*"
    parts = [_structure(child) for child in _children(spec)]
    if spec.type is dict:
        return "{" + ", ".join(f"{k}: {p}" for k, p in zip(spec.context, parts, strict=True)) + "}"
    if spec.type in (list, tuple):
        return ("[{}]" if spec.type is list else "({})").format(", ".join(parts))
    return f"{spec.type.__name__}({', '.join(parts)})"


def _result_names(spec: pytree.TreeSpec | None) -> list[str]:
    """A name for each value of a result: its keys and fields, or ``output0`` ... where it has only places."""
    if spec is None:
        return []
    places, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    names: list[str] = []
    for n, (path, _) in enumerate(places):
        parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
        named = any(not hasattr(k, "idx") for k in path)
        name = ".".join(parts) if named else f"output{n}"
        names.append(name if name not in names else f"{name}.{n}")
    return names


__all__ = ["CallingConvention", "TorchExecutable"]
