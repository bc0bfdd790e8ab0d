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
from . import arrays
from .node import Tensor


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
        #: what each result is: ("value", constant), ("output", n), ("buffer", n, placeholder), ("argument", n, name)
        self.results: list[tuple[Any, ...]] = []

    def outputs(self, results: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """Names and values of what the graph returns."""
        made: list[tuple[str, Tensor]] = []
        self.results = []
        for spec, value in zip(self.specs, results, strict=True):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
                buffer = spec.kind == OutputKind.BUFFER_MUTATION
                target = self.by_target[spec.target] if buffer else spec.target
                self.results.append(("buffer" if buffer else "argument", len(made), target))
            elif spec.kind != OutputKind.USER_OUTPUT:
                raise UnsupportedError(f"results of kind {spec.kind.name} are not supported", stage="import")
            elif isinstance(value, Tensor):
                self.results.append(("output", len(made)))
            else:
                self.results.append(("value", value))
                continue
            made.append((f"output{len(made)}" if self.results[-1][0] == "output" else f"next.{target}", value))
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
        results = self.executable(*[arrays.view(tensors[name]) for name in self._names])
        flat: list[Any] = []
        for kind, *what in self.call.results:
            if kind == "value":
                flat.append(what[0])
            elif kind == "output":
                flat.append(arrays.tensor(results[what[0]]))
            else:
                with torch.no_grad():
                    tensors[what[1]].copy_(arrays.tensor(results[what[0]]))
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
