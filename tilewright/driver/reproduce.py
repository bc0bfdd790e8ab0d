"""Reproducers of wrong results: the folders that `bisect` writes, and what their ``reproduce.py`` calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch_mlir import ir

from ..graph.interpret import interpret
from ..graph.passes import parse_pipeline, run_pipeline
from ..ir.constants import ConstantTable
from ..ir.context import parse, use
from ..ir.graph import Graph
from ..ir.types import numpy_dtype
from ..schedule.nest import Nest
from ..schedule.parse import parse_nest
from ..support.files import make_folder
from ..tensor.interpret import interpret_graph
from ..tensor.standalone_kernel import alone
from .bisect_kernel import Call, WrongStep, error_of
from .compare import largest_error
from .compiler import Snapshot, compile_state

#: the stage that a stage without passes of its own continues from
BEFORE = {"fuse": "lower", "schedule": "fuse"}
_SCRIPT = '''"""{says}

Run it: it prints the errors of what is here, with the compiler that there is now.
"""

from pathlib import Path

from tilewright.driver import reproduce

for line in reproduce.{call}:
    print(line)
'''


def _write(folder: Path, says: str, call: str, **arrays: Mapping[str, np.ndarray]) -> None:
    """The script and files of arrays; UsageError if the folder cannot be written."""
    (folder / "reproduce.py").write_text(_SCRIPT.format(says=says, call=call))
    for name, values in arrays.items():
        np.savez(folder / f"{name}.npz", **dict(values))  # type: ignore[arg-type]


def _read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


# ---- graphs --------------------------------------------------------------------------------------------------------


def write_graph(
    folder: Path,
    says: str,
    before: Graph,
    inputs: Mapping[str, np.ndarray],
    text: str,
    stage: str,
    options: Mapping[str, object],
) -> None:
    """The graph before a pass (`text`, as `parse_pipeline` reads it) or before a `stage`, and the model's inputs."""
    before.save(make_folder(folder, "bisect") / "before.mlir")
    call = (
        f"of_pass(Path(__file__).parent, {text!r})"
        if text
        else f"of_stage(Path(__file__).parent, {stage!r}, {dict(options)!r})"
    )
    _write(folder, says, call, inputs=inputs)


def of_pass(folder: Path, pipeline: str) -> list[str]:
    """The error of each output after passes on the graph in a folder."""
    graph = Graph.load(folder / "before.mlir")
    inputs = _inputs(folder, graph)
    expected = _run(graph, inputs)
    run_pipeline(graph, parse_pipeline(pipeline))
    return _lines(_run(graph, inputs), expected)


def of_stage(folder: Path, stage: str, options: Mapping[str, Any]) -> list[str]:
    """The error of each output after a stage on the graph in a folder."""
    graph = Graph.load(folder / "before.mlir")
    inputs = _inputs(folder, graph)
    _, made = compile_state(folder / "before.mlir", start_after=BEFORE[stage], stop_after=stage, cache=False, **options)
    after = made.graph if isinstance(made, Snapshot) else made
    return _lines(_run(after, inputs), _run(graph, inputs))


def _inputs(folder: Path, graph: Graph) -> dict[str, np.ndarray]:
    """The arrays with the dtypes of the graph: NumPy does not store the small floats."""
    types = dict(graph.inputs())
    found = _read(folder / "inputs.npz")
    return {n: a.view(numpy_dtype(types[n].dtype)) if a.dtype.kind == "V" else a for n, a in found.items()}


def _run(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return (interpret if graph.level == 2 else interpret_graph)(graph, inputs, float64=True)


def _lines(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> list[str]:
    return [f"{name}: error {largest_error(got[name], want):.2e}" for name, want in expected.items()]


# ---- kernels -------------------------------------------------------------------------------------------------------


def write_step(folder: Path, says: str, found: WrongStep, call: Call, trace: str) -> None:
    """The nests around a step, the whole trace, the kernel's inputs and what it should give."""
    make_folder(folder, "bisect")
    for name, nest in (("before", found.nest_before), ("after", found.nest_after)):
        if nest is not None:
            (folder / f"{name}.txt").write_text(f"{nest}\n")
    (folder / "trace.txt").write_text(trace)
    _write(folder, says, "of_nests(Path(__file__).parent)", **_numbers(call))


def of_nests(folder: Path) -> list[str]:
    """The error of each nest in a folder."""
    found = []
    for path in (folder / "before.txt", folder / "after.txt"):
        if path.is_file():
            nest = parse_nest(path.read_text())
            error, why = error_of(nest, _call(folder, nest))
            found.append(f"{path.name}: error {error:.2e}" + (f" ({why})" if why else ""))
    return found


def _numbers(call: Call) -> dict[str, dict[str, np.ndarray]]:
    return {
        name: {str(i): a for i, a in enumerate(arrays)}
        for name, arrays in (("inputs", call.inputs), ("wanted", call.wanted), ("own", call.own))
    }


def _call(folder: Path, nest: Nest) -> Call:
    read = {name: list(_read(folder / f"{name}.npz").values()) for name in ("inputs", "wanted", "own")}
    types = [p.dtype for p in nest.params if p.name not in nest.outputs]
    inputs = [a.view(numpy_dtype(t)) if a.dtype.kind == "V" else a for a, t in zip(read["inputs"], types, strict=True)]
    own = [a if a.dtype.kind != "V" else w for a, w in zip(read["own"], read["wanted"], strict=True)]
    return Call(nest.name, "", inputs, read["wanted"], own, [1.0] * len(own))


def write_kernel(folder: Path, says: str, function: ir.OpView, call: Call, options: Mapping[str, object]) -> None:
    """A kernel alone as a fused graph, its inputs and what it should give."""
    make_folder(folder, "bisect")
    constants, fixed = ConstantTable(), set()

    def constant(i: int, t: ir.Type) -> str:
        fixed.add(i)
        return f'symbol = "{constants.add(call.inputs[i], f"p{i}")}"'

    with use():
        text = alone(function, constant)
    Graph(parse(text), constants).save(folder / "kernel.mlir")
    given = {str(i): a for i, a in enumerate(call.inputs) if i not in fixed}
    wanted = {str(i): a for i, a in enumerate(call.wanted)}
    _write(folder, says, f"of_kernel(Path(__file__).parent, {dict(options)!r})", inputs=given, wanted=wanted)


def of_kernel(folder: Path, options: Mapping[str, Any]) -> list[str]:
    """The error of each result of a kernel's native code."""
    _, made = compile_state(folder / "kernel.mlir", start_after="fuse", cache=False, threads=1, **options)
    inputs, wanted = (list(_read(folder / f"{name}.npz").values()) for name in ("inputs", "wanted"))
    types = [i.numpy_dtype for i in made.inputs]
    outputs = made(*[a.view(t) if a.dtype.kind == "V" else a for a, t in zip(inputs, types, strict=True)])
    return [
        f"result {i}: error {largest_error(o.reshape(w.shape), w):.2e}"
        for i, (o, w) in enumerate(zip(outputs, wanted, strict=True))
    ]


__all__ = ["of_kernel", "of_nests", "of_pass", "of_stage", "write_graph", "write_kernel", "write_step"]
