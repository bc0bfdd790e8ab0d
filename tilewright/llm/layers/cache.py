"""The cache of keys and values: pages of floats, or of 8 or 4 bits a number with scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir.types import Type, numpy_dtype, type_of
from ...ops.block_weights import BlockWeights
from ...support.errors import UnsupportedError

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..config import CachePool
    from ..scope import LayerScope

#: bits of a number in caches of integers
BITS = {"int8": 8, "int4": 4}


def pages(pool: CachePool, heads: int, name: str, depth: int) -> dict[str, Type]:
    """The states of pages `name` with rows of so many heads of `depth` numbers."""
    shape, bits = (pool.pages, pool.page_length, heads), BITS.get(pool.dtype)
    if bits is None:
        return {name: Type((*shape, depth), pool.dtype)}
    if depth * bits % 8:
        raise UnsupportedError(f"heads of {depth} numbers have no cache of {pool.dtype}: numbers of 4 bits go in pairs")
    return {name: Type((*shape, depth * bits // 8), "i8"), f"{name}_scales": Type(shape, "f32")}


def write(at: LayerScope, name: str, rows: ir.Value) -> None:
    """Put the step's rows [T, heads, depth] into pages."""
    state, slots = at.state(name), at.step.inputs["slots"]
    if type_of(state).dtype != "i8":
        at.set_state(name, at.make("write_pages", state, rows, slots, place=at.name))
        return
    scales = at.state(f"{name}_scales")
    made = at.make("write_quantized_pages", state, scales, rows, slots, place=at.name)
    for state_name, value in zip((name, f"{name}_scales"), made, strict=True):
        at.set_state(state_name, value)


def attend(
    at: LayerScope, q: ir.Value, sinks: ir.Value | None = None, *, width: int = 0, **attributes: Any
) -> ir.Value:
    """Attention of q [T, heads, depth] to the pages ``k`` and ``v``; with `width` the values are the first numbers of
    the keys. f32 [T, heads, ...]; products are of bf16 where those with weights round as much and the cache is bf16.
    """
    make, k = at.make, at.state("k")
    v, dtype = None if width else at.state("v"), type_of(k).dtype
    scales = [at.state(f"{n}_scales") for n in ("k", "v")[: 2 - bool(width)]] if dtype == "i8" else []
    if dtype == "bf16" and _rounds(at):
        q = make("cast", q, to="bf16")
    places = [at.step.inputs[n] for n in ("table", "starts", "lengths")]
    out = make("ragged_attention", q, k, v, *places, sinks, *scales, width=width, place=at.name, **attributes)
    return make("cast", out, to="f32") if type_of(out).dtype == "bf16" else out


def _rounds(at: LayerScope) -> bool:
    """Whether products with weights round activations to bf16 or to less."""
    if at.step.precision != "auto":
        return at.step.precision == "bf16"
    weight = at.weight("o.weight")
    return isinstance(weight, BlockWeights) or weight.dtype == numpy_dtype("bf16")


__all__ = ["attend", "pages", "write"]
