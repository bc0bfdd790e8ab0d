"""Programs of `jax.export`: what goes in and out of them, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.export import Exported

from ...ir.context import parse
from ...support.errors import InputError, UnsupportedError
from ...support.sizes import Dim
from ..mlir.stablehlo.program import StableHloProgram
from ..mlir.text import checked


class JaxProgram:
    """See `protocol.TracedSource`. UnsupportedError for programs of several devices, or with effects."""

    def __init__(self, exported: Exported) -> None:
        if exported.nr_devices != 1:
            raise UnsupportedError(
                f"the program is for {exported.nr_devices} devices", stage="import", hint="export it for one"
            )
        if exported.ordered_effects or exported.unordered_effects:
            raise UnsupportedError(
                "the program has effects (callbacks, printing)", stage="import", hint="export it without them"
            )
        self.exported = exported
        name = exported.fun_name
        platforms = exported.platforms
        platform = platforms.index("cpu") if len(platforms) > 1 and "cpu" in platforms else 0
        text = checked(exported.mlir_module(), name)
        self.program = StableHloProgram(parse(text, name), name, platform if len(platforms) > 1 else None)

    def wrap(self, executable: Any) -> Any:
        return JaxExecutable(executable, self.exported)

    def open_dims(self) -> Sequence[Dim]:
        return ()


class JaxExecutable:
    """An executable that is called like the exported function: ``run(*args, **kwargs)``.

    It takes arrays (of JAX or NumPy, and numbers) in the structure of the function's arguments, and returns NumPy
    arrays in the structure of its result. `executable` is what runs (`tilewright.Executable`), on arrays in a flat
    order.

    InputError for arguments of another structure, shape or dtype.
    """

    def __init__(self, executable: Any, exported: Exported) -> None:
        self.executable = executable
        self._in_tree: Any = exported.in_tree
        self._out_tree: Any = exported.out_tree
        self._kept = [(i, exported.in_avals[i]) for i in exported.module_kept_var_idx]

    def __call__(self, *args: object, **kwargs: object) -> Any:
        tree: Any
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self._in_tree:
            raise InputError(
                f"the arguments are {tree}, those of the exported function {self._in_tree}",
                stage="run",
                hint="call it with the structure that it was exported for",
            )
        results = self.executable(*[_array(leaves[i], aval) for i, aval in self._kept])
        return jax.tree_util.tree_unflatten(self._out_tree, results)

    def _repr_html_(self) -> str:
        text: str = self.executable._repr_html_()
        return text

    def __repr__(self) -> str:
        return f"<JaxExecutable of {self.executable!r}>"


def _array(leaf: Any, aval: Any) -> np.ndarray:
    """An argument as an array; keys of random numbers as the integers that they are."""
    if isinstance(leaf, (bool, int, float)):
        return np.asarray(leaf, aval.dtype)
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


__all__ = ["JaxExecutable", "JaxProgram"]
