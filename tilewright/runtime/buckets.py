"""Bucketing of dynamic dimensions: inputs are padded to the next bucket, outputs sliced (docs/dynamic_models.md).

    run = tw.compile("bert.onnx", buckets={"seq": [32, 64, 128]}, pad={"ids": 0})
    y, = run(np.zeros((1, 50), np.int64), np.ones((1, 50), np.int64))    # ids, mask: runs the program for 64

Whether padding leaves the results alone is a matter of the model's meaning; who gives the option says that it does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..support.errors import InputError, ModelError, UsageError
from ..support.options import Options
from .parts import DynamicInfo


@dataclass(frozen=True)
class Buckets:
    """`sizes`: for a dimension's name its buckets, ascending. `fill`: what an input gets at its end, 0 if not given."""

    sizes: Mapping[str, tuple[int, ...]]
    fill: Mapping[str, float]
    inputs: Sequence[DynamicInfo]
    outputs: Sequence[DynamicInfo]

    @staticmethod
    def of(options: Options, inputs: Sequence[DynamicInfo], outputs: Sequence[DynamicInfo]) -> Buckets | None:
        """None without the option `buckets`. UsageError if the model has no such dimensions or inputs, if an output
        does not say which of its dimensions to cut, or if `specializations` keeps fewer programs than buckets need.
        """
        if not options.buckets:
            return None
        made = Buckets(options.buckets, options.pad or {}, inputs, outputs)
        made._check_names()
        made._check_outputs()
        if options.specializations is not None and options.specializations < len(made):
            raise UsageError(
                f"buckets have {len(made)} combinations, specializations={options.specializations} keeps fewer "
                "programs: they would be compiled again and again",
                hint="leave out specializations, or give fewer buckets",
            )
        return made

    def __len__(self) -> int:
        """How many combinations there are."""
        return prod(len(sizes) for sizes in self.sizes.values())

    def __str__(self) -> str:
        return "; ".join(f"{name}: {', '.join(map(str, sizes))}" for name, sizes in self.sizes.items())

    # ---- a call ----

    def pad(self, given: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Arrays by the names of inputs, each padded at its end to the next buckets, and the sizes that dimensions had.
        InputError for a size above the largest bucket."""
        padded, sizes = dict(given), dict[str, int]()
        for t in self.inputs:
            for axis, name in self._axes(t):
                sizes[name] = padded[t.name].shape[axis]
            shape = self.shape(t, padded[t.name].shape) if t.kind == "tensor" else None
            if shape is not None and shape != padded[t.name].shape:
                array = np.full(shape, self.fill.get(t.name, 0), t.numpy_dtype)
                array[tuple(map(slice, padded[t.name].shape))] = padded[t.name]
                padded[t.name] = array
        return padded, sizes

    def shape(self, info: DynamicInfo, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of an input in the program that takes one of this shape."""
        bucketed = list(shape)
        for axis, name in self._axes(info):
            fitting = next((n for n in self.sizes[name] if n >= shape[axis]), None)
            if fitting is None:
                raise InputError(
                    f"dimension {axis} of input {info.name!r} ({info}) is {shape[axis]}, above the largest bucket: "
                    f"those of {name} are {', '.join(map(str, self.sizes[name]))}",
                    stage="run",
                    hint="compile with a larger bucket, or without buckets",
                )
            bucketed[axis] = fitting
        return tuple(bucketed)

    def cut(self, results: list[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The results of a program, in the sizes of the call. ModelError if a dimension is not what its name says."""
        return [self._cut(t, r, sizes) for t, r in zip(self.outputs, results, strict=True)]

    def _cut(self, info: DynamicInfo, result: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        if not self._axes(info):
            return result
        kept = [slice(None)] * result.ndim
        for axis, name in self._axes(info):
            bucket = next(n for n in self.sizes[name] if n >= sizes[name])
            if axis >= result.ndim or result.shape[axis] != bucket:
                raise ModelError(
                    f"output {info} has the shape {list(result.shape)} where {name} is {bucket}: its dimension {axis} "
                    f"is not {name}, and buckets do not know where to cut it",
                    stage="run",
                    hint="compile without buckets",
                )
            kept[axis] = slice(0, sizes[name])
        return np.ascontiguousarray(result[tuple(kept)])

    # ---- ahead of calls ----

    def combinations(self, others: Mapping[str, int]) -> Iterator[dict[str, tuple[int, ...]]]:
        """The shapes of all inputs for each combination of buckets; `others` are sizes of further named dimensions.
        UsageError names the dimensions that stay open."""
        if open_ := self.open(others):
            raise UsageError(
                f"these dimensions have no buckets: {', '.join(open_)}",
                stage="specialize",
                hint="give their sizes by name, specialize_buckets({name: size}), or give them buckets too",
            )
        for chosen in itertools.product(*self.sizes.values()):
            known = {**others, **dict(zip(self.sizes, chosen, strict=True))}
            yield {
                t.name: tuple(known[d] if isinstance(d, str) else d or 0 for d in t.shape or ()) for t in self.inputs
            }

    def open(self, others: Iterable[str] = ()) -> list[str]:
        """The dimensions of inputs that have neither buckets nor a name among `others`, in words."""
        known = {*self.sizes, *others}
        shapes = [(t.name, (None,) if t.shape is None else t.shape) for t in self.inputs]
        open_ = [(d, name) for name, dims in shapes for d in dims if not isinstance(d, int) and d not in known]
        return sorted({f"{d or '?'} of {name!r}" for d, name in open_})

    # ---- what the model says ----

    def _axes(self, info: DynamicInfo) -> list[tuple[int, str]]:
        """Dimensions that have buckets, with their names."""
        return [(i, d) for i, d in enumerate(info.shape or ()) if isinstance(d, str) and d in self.sizes]

    def _check_names(self) -> None:
        named = [d for t in self.inputs for d in t.shape or () if isinstance(d, str)]
        for name in self.sizes:
            if name not in named:
                raise UsageError(
                    f"buckets name a dimension {name!r}, and no input has one of this name",
                    hint=f"the inputs are {'; '.join(map(str, self.inputs))}",
                )
        padded = {t.name: t for t in self.inputs if self._axes(t)}
        for t in padded.values():
            if t.kind != "tensor":
                raise UsageError(f"buckets cannot pad input {t}: only tensors are padded")
        for name, fill in self.fill.items():
            if name not in padded:
                raise UsageError(
                    f"option 'pad' is for {name!r}, and buckets pad no input of this name",
                    hint=f"they pad {', '.join(padded)}",
                )
            if not _holds(padded[name].numpy_dtype, fill):
                raise UsageError(f"option 'pad' has {fill!r} for {name!r}, which {padded[name]} cannot hold")

    def _check_outputs(self) -> None:
        """Refuse outputs that may be longer than what was given without saying where."""
        named = {d for t in self.inputs for d in t.shape or () if isinstance(d, str)}
        for t in self.outputs:
            if t.kind != "tensor" or t.shape is None or not all(isinstance(d, int) or d in named for d in t.shape):
                raise UsageError(
                    f"output {t} has dimensions that no input names: buckets cannot tell whether to cut them",
                    hint="give them in the model the names that the inputs have, or a size; or compile without buckets",
                )


def _holds(kind: np.dtype, number: float) -> bool:
    """
    >>> _holds(np.dtype("int8"), 127), _holds(np.dtype("int8"), 128), _holds(np.dtype("float32"), float("-inf"))
    (True, False, True)
    """
    if kind.kind not in "iub":
        return True
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return bool(low <= number <= high) and float(number).is_integer()
