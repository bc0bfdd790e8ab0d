"""How far roundings may move the results of a model: its outputs in double precision, with every rounding simulated.

Random models amplify roundings (a tangent near its pole, the floor of a whole number, 16-bit floats throughout), so
that two correct programs differ. Here every operator's result is moved by a random amount of the size that its type
rounds by; results of several such runs span the numbers that a correct program may give.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontends.onnx import load
from tilewright.graph.interpret import evaluate, interpret
from tilewright.ir.context import use
from tilewright.ir.types import is_float, numpy_dtype, type_of

SAMPLES = 16
#: how many units in the last place one operator may be off (tan is, by 2.6)
ULPS = 3


class Truth:
    """The outputs of a model in double precision, and the range that roundings may move each of them in.

    The graph is evaluated when the first output is asked for.
    """

    def __init__(self, data: bytes, feed: dict[str, np.ndarray]) -> None:
        self.graph, self.feed = load(data), feed
        self._exact: list[np.ndarray] | None = None
        self._samples: list[list[np.ndarray]] | None = None

    def exact(self, output: int) -> np.ndarray:
        """One output, without any rounding."""
        if self._exact is None:
            with np.errstate(all="ignore"):
                self._exact = list(interpret(self.graph, self.feed, float64=True).values())
        return self._exact[output]

    def samples(self, output: int) -> list[np.ndarray]:
        """One output with roundings: simulated ones, and those of the operators' references in their own types."""
        if self._samples is None:
            with np.errstate(all="ignore"):
                own = list(interpret(self.graph, self.feed).values())
                self._samples = [own, *(noisy(self.graph, self.feed, seed) for seed in range(SAMPLES))]
        return [s[output] for s in self._samples]


def noisy(graph, feed: dict[str, np.ndarray], seed: int) -> list[np.ndarray]:
    """The outputs with simulated roundings; every other seed also limits numbers to the range of their types."""
    rng = np.random.default_rng(seed)
    with use():
        values = {}
        for argument, (name, t) in zip(graph.block.arguments, graph.inputs(), strict=True):
            values[argument] = feed[name].astype(np.float64) if is_float(t.dtype) else feed[name]
        *body, end = graph.operations()
        for op in body:
            operands = [values[v] for v in op.operands]
            for result, array in zip(op.results, evaluate(graph, op, operands, float64=True), strict=True):
                dtype = type_of(result).dtype
                if operands and is_float(dtype) and not _copied(array, operands):
                    array = _rounded(array, np.finfo(numpy_dtype(dtype)), rng, limited=bool(seed % 2))
                values[result] = array
        return [values[v] for v in end.operands]


def _copied(array: np.ndarray, operands: list[np.ndarray]) -> bool:
    """Whether an operator only moved numbers, which rounds nothing."""
    return any(o.dtype == array.dtype and np.isin(array, o).all() for o in operands)


def _rounded(array: np.ndarray, info, rng: np.random.Generator, *, limited: bool) -> np.ndarray:
    noise = rng.uniform(-ULPS, ULPS, array.shape)
    moved = array + noise * (np.abs(array) * float(info.eps) + float(info.smallest_subnormal))
    return np.where(np.abs(moved) > float(info.max), np.copysign(np.inf, moved), moved) if limited else moved


def allowed(got: np.ndarray, samples: list[np.ndarray], tolerance: np.ndarray) -> np.ndarray:
    """Where `got` lies in the range that the samples span, widened by twice its width and `tolerance`."""
    stack = np.stack([np.asarray(s).astype(np.float64) for s in samples])
    finite = np.isfinite(stack).all(0)
    stack = np.where(np.isfinite(stack), stack, 0)
    low, high = stack.min(0), stack.max(0)
    margin = 2 * (high - low) + tolerance
    value = got.astype(np.float64)
    # where roundings decide between numbers, infinities and NaN, anything goes
    return ~finite | ((low - margin <= value) & (value <= high + margin))
