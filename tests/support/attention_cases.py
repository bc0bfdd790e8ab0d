"""Attentions of drawn sizes: the graph, its inputs, and what comes out in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.driver.kernels import fused_kernels
from tilewright.graph.passes import make, run_pipeline
from tilewright.ir.context import use
from tilewright.tensor.kernel import Kernel

KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
#: of the largest result
ALLOWED = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}


@dataclass(frozen=True)
class Case:
    """Sizes: queries and keys, depth of a head and of its values; there are `group` heads of queries to one of keys."""

    queries: int
    keys: int
    depth: int = 16
    width: int = 16
    batch: int = 1
    heads: int = 1
    group: int = 1
    causal: bool = False
    offset: int = 0
    mask: str = ""  # which of batch, heads, queries and keys (b, h, q, k) it has; none: no mask
    dtype: str = "f32"

    @property
    def text(self) -> str:
        """The graph."""
        b, h = self.batch, self.heads * self.group
        q, k = (b, h, self.queries, self.depth), (b, self.heads, self.keys, self.depth)
        v, y = (b, self.heads, self.keys, self.width), (b, h, self.queries, self.width)
        kinds = [self._type(s) for s in (q, k, v, *([self.mask_shape] if self.mask else []))]
        names = ["%q", "%k", "%v", "%m"][: len(kinds)]
        params = ", ".join(f"{n}: {t}" for n, t in zip(names, kinds, strict=True))
        more = ", causal = true" * self.causal + f", offset = {self.offset} : i64" * bool(self.offset)
        return f"""
func.func @main({params}) -> {self._type(y)} {{
  %0 = "tw.attention"({", ".join(names)}) {{scale = 0.25 : f64{more}}} : ({", ".join(kinds)}) -> {self._type(y)}
  return %0 : {self._type(y)}
}}
"""

    def _type(self, shape: tuple[int, ...]) -> str:
        return f"tensor<{'x'.join(map(str, shape))}x{self.dtype}>"

    @property
    def mask_shape(self) -> tuple[int, ...]:
        sizes = (self.batch, self.heads * self.group, self.queries, self.keys)
        return tuple(n if c in self.mask else 1 for c, n in zip("bhqk", sizes, strict=True))

    @property
    def kernel(self) -> Kernel:
        (kernel,) = fused_kernels(self.text)
        return kernel

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Queries, keys, values and the mask; of that some are -inf."""
        g = np.random.default_rng(seed)
        h = self.heads * self.group
        shapes = [(self.batch, h, self.queries, self.depth), (self.batch, self.heads, self.keys, self.depth)]
        shapes.append((self.batch, self.heads, self.keys, self.width))
        found = [g.standard_normal(s).astype(KINDS[self.dtype]) for s in shapes]
        if self.mask:
            mask = g.standard_normal(self.mask_shape)
            mask[g.random(mask.shape) < 0.2] = -np.inf
            found.append(mask.astype(KINDS[self.dtype]))
        return found

    def exact(self, inputs: list[np.ndarray]) -> np.ndarray:
        q, k, v, *mask = (x.astype(np.float64) for x in inputs)
        k, v = (np.repeat(x, self.group, 1) for x in (k, v))
        scores = 0.25 * q @ k.swapaxes(-1, -2) + (mask[0] if mask else 0.0)
        if self.causal:
            i, j = np.indices(scores.shape[-2:])
            scores = np.where(j <= i + self.offset, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        e = np.exp(scores - np.where(np.isinf(top), 0.0, top))
        total = e.sum(-1, keepdims=True)
        return e / np.where(total == 0, 1.0, total) @ v

    def check(self, found: np.ndarray, inputs: list[np.ndarray]) -> None:
        want = self.exact(inputs)
        error = np.abs(found.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-9)
        assert error <= ALLOWED[self.dtype], f"{self}: {error}"


def drawn(seed: int, *, few: bool, dtypes: tuple[str, ...] = ("f32", "f32", "f16", "bf16")) -> Case:
    """A case with few queries (a decode step), or with many."""
    r = random.Random(seed)
    queries, keys = r.choice([1, 1, 2, 5]) if few else r.choice([9, 17, 33, 70]), r.choice([1, 5, 16, 31, 77, 200])
    depth = r.choice([4, 13, 32, 64, 80])
    causal = r.random() < 0.5
    return Case(
        queries, keys, depth, r.choice([depth, depth, 5, 48]), batch=r.choice([1, 2]), heads=r.choice([1, 2]),
        group=r.choice([1, 1, 2, 3]), causal=causal, offset=r.choice([0, keys - queries, -3]) if causal else 0,
        mask=r.choice(["", "", "bk", "hqk", "qk"]), dtype=r.choice(dtypes),
    )  # fmt: skip


def in_parts(text: str, parts: int, target: str = "cuda") -> list[Kernel]:
    """The kernels of an attention whose keys are taken in so many parts."""
    graph = tw.compile(text, target=target, stop_after="simplify")
    run_pipeline(graph, [make("split-attention", parts=parts)])
    with use():
        return fused_kernels(graph.text(), target=target)
