"""The PyTorch front end: modules and programs of `torch.export`; see `program` and `importer`.

PyTorch is imported lazily, when one of its objects is passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...support.errors import UnsupportedError, UsageError
from ..protocol import Wanted, is_a

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...runtime.parts import Source, StoredSource
    from .program import TorchProgram


class Torch:
    """See `protocol.FrontEnd`, `Tracing` and `Staging`."""

    name = "torch"
    doc = "a torch.nn.Module with example_inputs, a torch.export.ExportedProgram"

    def accepts(self, source: object) -> bool:
        return (
            is_a(source, "torch.nn", "Module")
            or is_a(source, "torch.export", "ExportedProgram")
            or is_a(source, f"{__name__}.program", "TorchProgram")
        )

    def load(self, source: object, wanted: Wanted) -> Graph:
        if is_a(source, "torch.nn", "Module"):
            raise UsageError(
                "a module says what it does when it is run on examples of its inputs",
                stage="import",
                hint="tw.compile(module, example_inputs)",
            )
        return self.trace(source, None, None).graph(wanted.shapes)

    def open(self, source: object, check_indices: bool) -> Source:
        """The program in parts, for some of its operators run on the host."""
        from .staging import TorchSource

        program = self.trace(source, None, None)
        if program.open:
            raise UnsupportedError(
                "programs of PyTorch with open dimensions are not specialized for sizes in the background",
                stage="import",
                hint="leave out specialize: the program serves all sizes",
            )
        return TorchSource(program)

    def restore(self, stored: StoredSource, check_indices: bool) -> Source:
        raise UsageError("programs of PyTorch that run in parts are not stored", stage="specialize")

    def trace(self, source: object, examples: object, dynamic_shapes: object) -> TorchProgram:
        from .program import TorchProgram

        return TorchProgram.of(source, examples, dynamic_shapes)


FRONT_END = Torch()
