"""Tracing of a module by `torch.export`, and error messages for modules that it cannot trace."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import traceback
from typing import Any

import torch
from torch.export import ExportedProgram, export

from ...support.errors import UnsupportedError

#: what PyTorch cannot trace, by a function or a file of PyTorch's in which it fails: what it is, what to write instead
_UNTRACED = {
    "rnn.py": ("packed sequences", "run the layer on the padded tensor and mask its result"),
    "pack_padded_sequence": ("packed sequences", "run the layer on the padded tensor and mask its result"),
    "nested_tensor": ("nested and jagged tensors", "pad them, and mask what was padded"),
    "ctc_loss": ("the CTC loss", "compile the module without the loss"),
}


def traced(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any], shapes: Any) -> ExportedProgram:
    """What `torch.export.export` gives; whatever the module's own code raises. PyTorch prints the graph of a failed
    trace to stderr: that is left out."""
    said, graph = io.StringIO(), ""
    try:
        with contextlib.redirect_stderr(said):
            return export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as e:
        graph = f"{getattr(e, 'partial_fx_graph', '')}\n"
        raise
    finally:
        sys.stderr.write(said.getvalue().replace(graph, ""))


def untraced(e: Exception) -> UnsupportedError:
    """The error for a module that cannot be exported, from PyTorch's own."""
    frames = traceback.extract_tb(e.__traceback__)
    called = {frame.name for frame in frames} | {os.path.basename(frame.filename) for frame in frames}
    what, instead = next((_UNTRACED[name] for name in _UNTRACED if name in called), ("", ""))
    if "data-dependent" in str(e) and not what:
        what, instead = "a decision by a value that is computed", "choose by torch.where, or by torch.cond"
    says = f"{type(e).__name__}: {_reason(e)}"
    return UnsupportedError(
        f"PyTorch cannot export this module: {f'{what} ({says})' if what else says}",
        stage="import",
        hint=(instead or "torch.export.export(module, example_inputs, strict=False) says more")
        + '; torch.compile(module, backend="tilewright") runs in PyTorch what cannot be exported',
    )


def _reason(e: Exception) -> str:
    """What PyTorch says, without its advice on how to see more; of violated ranges all of them."""
    lines = [line.strip() for line in str(e).strip().split("\n")]
    if "Constraints violated" not in lines[0]:
        return lines[0]
    said = itertools.takewhile(lambda line: "error above occurred" not in line, lines[1:])
    return " ".join(["the ranges do not fit:", *(line for line in said if line)])


__all__ = ["traced", "untraced"]
