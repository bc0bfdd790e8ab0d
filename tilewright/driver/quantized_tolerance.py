"""Error tolerance of quantized models: how far their results may be from the reference.

A number near the middle between two quanta may be rounded to either: the reference adds in another order, and a model
of integers has biases in whole numbers of quanta. What follows from one such number is as large as a quantum, whatever
the precision that is computed in. `allowed` measures it: the reference runs again a few times, with every number moved
by up to `BIAS_STEP` of a quantum at random before it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..graph.interpret import Change
from ..graph.quantization import BIAS_STEP
from ..ir.context import use
from ..ir.dialect import mnemonic
from ..ir.graph import Graph
from ..ops.quant import spread
from ..support import sub_byte
from .compare import largest_error

#: of the reference with moved numbers
RUNS = 4
#: how much further than in these runs a right result may be: they are few, and draws
MARGIN = 2.0
#: by how much of itself a number moves that is rounded to a small float: what other orders of sums do
FLOAT_STEP = 1e-5

ROUNDING = "quantize_linear"


def allowed(
    graph: Graph, run: Callable[[Change], Mapping[str, np.ndarray]], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """For each output the largest error relative to its largest value that rounding explains; nothing for a graph that
    does not quantize. `run` gives the outputs of the graph with changed operands, `expected` are those without."""
    with use():
        if not any(mnemonic(op) == ROUNDING for op in graph.operations()):
            return {}
    found = dict.fromkeys(expected, 0.0)
    for seed in range(RUNS):
        outputs = run(_moving(np.random.default_rng(seed)))
        found = {name: max(e, MARGIN * largest_error(outputs[name], expected[name])) for name, e in found.items()}
    return found


def _moving(random: np.random.Generator) -> Change:
    def change(name: str, operands: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
        if name != ROUNDING:
            return operands
        x, scale, *rest = operands
        small = attributes["to"] in sub_byte.FLOATS
        quantum: Any = spread(scale, x, attributes["axis"], attributes["block"])  # type: ignore[no-untyped-call]
        step = np.abs(x) * FLOAT_STEP if small else quantum * BIAS_STEP
        return [(x + step * random.uniform(-1, 1, x.shape)).astype(x.dtype), scale, *rest]

    return change
