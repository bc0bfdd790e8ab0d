"""Calling a compiled program as the module it was made of is called: nested arguments, tensors in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from ...support.errors import InputError, UnsupportedError
from ...support.formulas import evaluate, formula
from ...support.sizes import Size
from . import arrays
from .node import Tensor, is_complex


class Call:
    """What goes in and out of a program, and how it is nested."""

    def __init__(self, exported: ExportedProgram) -> None:
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
        #: what the graph returns: its nodes, or constants
        self.returned = list(next(n for n in exported.graph.nodes if n.op == "output").args[0])

    def outputs(self, results: Sequence[Any]) -> list[tuple[str, Any]]:
        """Names and values of what the graph returns; `results` are `Tensor`s (or nodes that stand for them), or what
        the program returns as it is."""
        made: list[tuple[str, Any]] = []
        self.results = []
        for spec, value, returned in zip(self.specs, results, self.returned, strict=True):
            if spec.kind == OutputKind.TOKEN:  # the order of side effects
                continue
            meta = returned.meta.get("val") if isinstance(returned, torch.fx.Node) else returned
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
                buffer = spec.kind == OutputKind.BUFFER_MUTATION
                target = self.by_target[spec.target] if buffer else spec.target
                self.results.append(("buffer" if buffer else "argument", len(made), target))
            elif spec.kind != OutputKind.USER_OUTPUT:
                raise UnsupportedError(f"results of kind {spec.kind.name} are not supported", stage="import")
            elif isinstance(value, (Tensor, torch.fx.Node)):
                kind = "complex" if is_complex(meta) else "output" if isinstance(meta, torch.Tensor) else "number"
                self.results.append((kind, len(made)))
            else:
                self.results.append(("size", formula(value)) if isinstance(value, Size) else ("value", value))
                continue
            changed = spec.kind != OutputKind.USER_OUTPUT
            made.append((f"next.{target}" if changed else f"output{len(made)}", value))
        return made


class TorchExecutable:
    """An executable that is called like the module: ``run(*args, **kwargs)``.

    It takes tensors in the structure of the example inputs and returns tensors in the structure of the module's result,
    without copies. Buffers that the module updates are updated. `executable` is what runs (`tilewright.Executable`), on
    arrays in a flat order.

    InputError for arguments of another structure, shape or dtype.
    """

    def __init__(self, executable: Any, call: Call) -> None:
        self.executable, self.call = executable, call
        self._names = [i.name for i in executable.inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._given(args, kwargs)
        tensors = {**given, **self.call.buffers}
        given_arrays = [arrays.view(tensors[name]) for name in self._names]
        results = self.executable(*given_arrays)
        flat: list[Any] = []
        for kind, *what in self.call.results:
            if kind == "value":
                flat.append(what[0])
            elif kind == "size":
                known = self.executable.sizes
                sizes = known.sizes([a.shape for a in given_arrays], self._names)
                flat.append(evaluate((what[0],), known.values(sizes))[0])
            elif kind in ("output", "complex"):
                flat.append(arrays.tensor(results[what[0]], pairs=kind == "complex"))
            elif kind == "number":
                flat.append(results[what[0]].item())
            else:
                with torch.no_grad():
                    changed = tensors[what[1]]
                    changed.copy_(arrays.tensor(results[what[0]], pairs=changed.is_complex()))
        return pytree.tree_unflatten(flat, self.call.out_spec)

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """The tensors of a call by placeholder."""
        names = self.call.in_spec.child(1).context if hasattr(self.call.in_spec, "child") else None
        if names is not None and set(names) == set(kwargs):
            kwargs = {k: kwargs[k] for k in names}
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.call.in_spec:
            raise InputError(
                f"the arguments are {spec}, those of the examples were {self.call.in_spec}",
                stage="run",
                hint="call it with the structure of the example inputs",
            )
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

    def __repr__(self) -> str:
        return f"<TorchExecutable of {self.executable!r}>"


__all__ = ["Call", "TorchExecutable"]
