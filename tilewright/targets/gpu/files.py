"""Exports a package as files for a GPU runtime of the user's own: a JSON manifest, and the weights.

model.json    buffers by space and their sizes, kernels with how they are launched, and the steps of a run in order
weights.bin   the constants, each at the byte that model.json says
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ... import __version__
from ...program.package import Package
from ...program.program import COPY, BufferRef, Call, TensorInfo, align_up

#: raised whenever a reader of an older version cannot read it
FORMAT = 1


def files(package: Package, kernels: Mapping[str, Mapping[str, object]]) -> dict[str, bytes]:
    """The two files by name; `kernels`: what is to be known of each, and the file that it is in."""
    weights, places = b"", []
    for array in package.constants:
        places.append({"offset": len(weights), "bytes": array.nbytes})
        data = np.ascontiguousarray(array).tobytes()
        weights += data + bytes(align_up(len(data)) - len(data))
    p = package.program
    told = {
        "format": FORMAT,
        "compiler": f"tilewright {__version__}",
        "target": package.target,
        "weights": {"file": "weights.bin", "bytes": len(weights)},
        "buffers": {
            "input": [_tensor(t) for t in p.inputs],
            "output": [_tensor(t) for t in p.outputs],
            "constant": places,
            "arena": [{"bytes": p.arena_size}],
        },
        "kernels": kernels,
        "steps": [_step(call) for call in p.calls],
    }
    return {"model.json": (json.dumps(told, indent=1) + "\n").encode(), "weights.bin": weights}


def _tensor(t: TensorInfo) -> dict[str, object]:
    return {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.nbytes}


def _step(call: Call) -> dict[str, object]:
    if call.symbol == COPY:
        return {"copy": [_place(a) for a in call.args]}
    return {"kernel": call.symbol, "arguments": [_place(a) for a in call.args], "writes": list(call.writes)}


def _place(ref: BufferRef) -> list[object]:
    """Space, index, first byte, bytes."""
    return [ref.space, ref.index, ref.offset, ref.nbytes]
