"""Exports a package as a static site for WebGPU, with the WebAssembly modules of the same model where those are given.

What is here besides the files of `wasm.files`:

webgpu.json   kernels as texts, and the calls in order with where their arguments lie
webgpu.bin    the weights, as WebGPU's kernels read them
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...program.package import Package
from ...program.program import COPY, BufferRef, align_up
from ...support.errors import UnsupportedError
from ..gpu.bindings import bindable
from ..gpu.device import BufferSlice, Dispatch, Move
from ..gpu.kernels import GpuKernel
from ..wasm import files as wasm

#: what WebGPU aligns bindings to, and copies
ALIGN, WORD = 256, 4
SITE = Path(__file__).with_name("site")
#: what is other than in a site of wasm alone
RUNNER = ("backends.js", "webgpu.js")
#: arguments of a kernel that every browser binds
MOST_ARGUMENTS = 8


def site(package: Package, fallback: Package | None, settings: Mapping[str, str]) -> dict[str, bytes]:
    """Every file of the site by name."""
    made = wasm.site(fallback, settings) if fallback is not None else wasm.around(package, settings)
    manifest = json.loads(made["model.json"]) if fallback is not None else wasm.manifest(package, {})
    weights = b"".join(_padded(c) for c in package.constants)
    manifest["backends"]["webgpu"] = {
        "program": "webgpu.json",
        "weights": {"file": "webgpu.bin", "bytes": len(weights)},
    }
    made.update((name, (SITE / name).read_bytes()) for name in RUNNER)
    made["model.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    made["webgpu.json"] = (json.dumps(program(package)) + "\n").encode()
    made["webgpu.bin"] = weights
    return made


def program(package: Package) -> dict[str, Any]:
    """What the runner needs to know about a program, as JSON data: buffers by space and their sizes, kernels, steps."""
    p = package.program
    kernels = {s: GpuKernel.unpack(package.objects[s]) for s in p.symbols}
    sizes: dict[str, list[int]] = {
        "input": [t.nbytes for t in p.inputs],
        "output": [t.nbytes for t in p.outputs],
        "constant": [c.nbytes for c in package.constants],
        "arena": [p.arena_size],
        "scratch": [max((k.scratch_bytes for k in kernels.values()), default=0)],
        "own": [],
    }

    def own(nbytes: int) -> tuple[str, int]:
        sizes["own"].append(nbytes)
        return "own", len(sizes["own"]) - 1

    steps: list[dict[str, Any]] = []
    for call in p.calls:
        parts = tuple(map(_part, call.args))
        if call.symbol == COPY:
            steps.append(_copy(Move(*parts)))
            continue
        kernel = kernels[call.symbol]
        if kernel.bindings > MOST_ARGUMENTS:
            raise UnsupportedError(
                f"kernel {call.symbol} has {kernel.bindings} arguments; browsers bind {MOST_ARGUMENTS}",
                stage="package",
            )
        made = bindable(Dispatch(kernel, parts), ALIGN, own)
        scratch = [BufferSlice(("scratch", 0), *p) for p in kernel.scratch_parts]
        run = {"kernel": call.symbol, "arguments": [_place(a) for a in (*made.call.arguments, *scratch)]}
        steps += [*map(_copy, made.before), run, *map(_copy, made.after)]
    return {
        "buffers": {space: [max(align_up(n, WORD), 16) for n in those] for space, those in sizes.items()},
        "constants": _offsets(package),
        "kernels": {
            s: {"text": k.text, "entry": k.name, "grid": list(k.launch.grid), "arguments": k.bindings}
            for s, k in kernels.items()
        },
        "steps": steps,
    }


def _part(ref: BufferRef) -> BufferSlice:
    return BufferSlice((ref.space, ref.index), ref.offset, ref.nbytes)


def _place(part: BufferSlice) -> list[Any]:
    """Space, index, first byte, bytes."""
    return [*part.buffer, part.offset, max(align_up(part.nbytes, WORD), WORD)]


def _copy(move: Move) -> dict[str, Any]:
    if move.source.offset % WORD or move.target.offset % WORD:
        raise UnsupportedError(
            f"browsers copy words of {WORD} bytes, not from byte {move.source.offset} to {move.target.offset}",
            stage="package",
            hint="it is a part of a concatenation of small numbers",
        )
    return {"copy": [_place(move.source), _place(move.target)]}


def _padded(array: np.ndarray) -> bytes:
    data = np.ascontiguousarray(array).tobytes()
    return data + bytes(-len(data) % WORD)


def _offsets(package: Package) -> list[int]:
    """Where each weight begins in ``webgpu.bin``."""
    ends = np.cumsum([0, *(align_up(c.nbytes, WORD) for c in package.constants)])
    return [int(e) for e in ends[:-1]]
