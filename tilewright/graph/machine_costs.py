"""Cost records that graph passes ask of a machine to estimate which form is faster; targets give the numbers.

A machine has the numbers (`schedule.machine`), and the pipeline hands them to the passes, as an option:
``split-sums{tile=lanes:16;vectors:32;rows:16;in_flight:8}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from ..support.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class WinogradCosts:
    """Multiply-adds in the time of one element of a transform, and in the time that products wait for one weight to
    come from memory, though it is asked for early."""

    transform: int
    weight: int


@dataclass(frozen=True)
class ImageCosts:
    """Of convolutions with their channels last or first, in cycles where nothing else is said.

    `transposed`: an element that is transposed, from cache to cache; `padded_last`: one that gets a border meanwhile;
    `padded_first`: a vector of a row that gets one as it is. `per_cycle`: multiply-adds of vectors in a
    cycle; `result`: a vector of results beside its sum.

    How many times as long they take: `read_across`: windows of one pixel that read their image through a transpose;
    `along_sums`: lanes along sums of at least `long_sum` numbers side by side, instead of along filters; `sliding` and
    `striding`: lanes along the columns of an image, where windows move by one column and by more; `merged`: lanes along
    columns and channels together, where channels do not fill their vectors.

    Depthwise convolutions, a vector of results: `product` for each product, `beside` beside them; with channels last
    and first, windows that move by one column and by more (``far``)."""

    transposed: float
    padded_last: float
    padded_first: float
    per_cycle: float
    result: float
    read_across: float
    along_sums: float
    long_sum: int
    sliding: float
    striding: float
    merged: float
    last_product: float
    last_beside: float
    last_far_product: float
    last_far_beside: float
    first_product: float
    first_beside: float
    first_far_product: float
    first_far_beside: float


@dataclass(frozen=True)
class RegionCosts:
    """Of a convolution in regions, in multiply-adds that take as long; `lanes` are the f32 of a vector.

    `tap`: to ask for the weights of one, for a result less than the windows have (results that few rows of registers
    share); `padded`: to copy an element into padding; `joined`: to join one; `kernel`: one more of them."""

    lanes: int
    tap: int
    padded: int
    joined: int
    kernel: int


@dataclass(frozen=True)
class SumTile:
    """The results of a sum of products that are one tile of registers: at most so many `vectors` of `lanes` f32 in so
    many `rows`, and no fewer than `least_rows`; how many vectors of sums hide the latency of an addition (`in_flight`);
    and into how many `slices` a sum is taken."""

    lanes: int
    vectors: int
    rows: int
    in_flight: int
    least_rows: int = 1
    slices: int = 8


@dataclass(frozen=True)
class GridCosts:
    """A machine that runs thread blocks at the same time, to passes that take sums in parts.

    `processors` run blocks, and are at full speed with `beside` of them; `products`: multiply-adds of one in a cycle,
    of f32, of halves and of bytes. `far`: bytes that memory gives to all of them in a cycle, `near`: that caches give
    to one. `begin`: cycles until a block computes, `kernel`: of one more kernel."""

    processors: int
    beside: int
    products: tuple[int, int, int]
    far: int
    near: int
    begin: int
    kernel: int


#: of a middling GPU, for machines of which no more is known
MIDDLING = GridCosts(32, 4, (64, 64, 64), far=200, near=16, begin=1000, kernel=8000)


def required(costs: T | None, name: str, option: str) -> T:
    """The option of a pass; UsageError without one."""
    if costs is None:
        hint = f"give it as {name}{{{option}=...}}; descriptions of machines have it (tilewright.schedule.machine)"
        raise UsageError(f"the pass {name} needs what the machine is like", stage="passes", hint=hint)
    return costs


__all__ = ["MIDDLING", "GridCosts", "ImageCosts", "RegionCosts", "SumTile", "WinogradCosts", "required"]
