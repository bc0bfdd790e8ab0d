"""The JAX front end: programs of `jax.export`, which are StableHLO; see `program` and docs/jax.md.

JAX is imported lazily, when one of its objects is passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...support.errors import UsageError
from ..protocol import Wanted, is_a

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...runtime.parts import Source, StoredSource
    from .program import JaxProgram


class Jax:
    """See `protocol.FrontEnd`, `Tracing` and `Staging`."""

    name = "jax"
    doc = "a jax.export.Exported"

    def accepts(self, source: object) -> bool:
        return is_a(source, "jax.export", "Exported") or is_a(source, f"{__name__}.program", "JaxProgram")

    def load(self, source: object, wanted: Wanted) -> Graph:
        return self.trace(source, None, None).program.fixed(wanted.shapes).graph()

    def trace(self, source: Any, examples: object, dynamic_shapes: object) -> JaxProgram:
        from .program import JaxProgram

        if examples is not None or dynamic_shapes is not None:
            raise UsageError(
                "a program of jax.export has its shapes already: examples and dynamic_shapes have no meaning for it",
                stage="import",
                hint="jax.export.export(jax.jit(f))(*shapes) says which sizes are open",
            )
        return source if isinstance(source, JaxProgram) else JaxProgram(source)

    def open(self, source: object, check_indices: bool) -> Source:
        from ..mlir.stablehlo.staging import StableHloSource

        return StableHloSource(self.trace(source, None, None).program)

    def restore(self, stored: StoredSource, check_indices: bool) -> Source:
        raise UsageError("programs of JAX are stored as MLIR", stage="specialize")


FRONT_END = Jax()
