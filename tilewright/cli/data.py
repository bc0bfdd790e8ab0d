"""Input and output data of the command line: npz files, random inputs, comparison with expected outputs."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..driver.compare import largest_error, random_inputs
from ..support.dtypes import DTYPES
from ..support.errors import CheckError, InputError, ModelError, UsageError
from ..support.files import replacing

__all__ = [
    "TOLERANCE",
    "Allowed",
    "compare",
    "fixed_shapes",
    "flat",
    "largest_error",
    "random_inputs",
    "read_npz",
    "write_npz",
]


def fixed_shapes(executable: Any, model: str) -> list[tuple[str, tuple[int, ...], np.dtype]]:
    """Name, shape and dtype of every input, open dimensions of typical sizes; ModelError if `model`, a package perhaps,
    leaves some without a range, so that no data can be made up."""
    inputs = getattr(executable, "arguments", executable.inputs)
    fixed = [
        getattr(i, "kind", "tensor") == "tensor" and i.shape is not None and all(isinstance(d, int) for d in i.shape)
        for i in inputs
    ]
    open_ = [str(i).replace(f": {i.dtype}[", ": [") for i, known in zip(inputs, fixed, strict=True) if not known]
    if open_:
        first = open_[0].split(":")[0]
        raise ModelError(
            f"the model leaves the shape of {len(open_)} input{'s' * (len(open_) > 1)} open: {'; '.join(open_)}",
            stage="run",
            hint="give data with --input"
            + ("" if model.endswith(".tw") else f", or --shape {first}=1x... for random data"),
        )
    return [(i.name, i.shape, i.numpy_dtype) for i in inputs]


def flat(results: Mapping[str, np.ndarray | list[np.ndarray] | None]) -> dict[str, np.ndarray]:
    """Outputs as arrays by name: the items of a sequence as ``name.0``, ``name.1``; nothing for an empty optional.

    >>> list(flat({"y": [np.zeros(1), np.ones(2)], "z": None, "x": np.zeros(3)}))
    ['y.0', 'y.1', 'x']
    """
    found = {}
    for name, value in results.items():
        if isinstance(value, list):
            found.update({f"{name}.{i}": item for i, item in enumerate(value)})
        elif value is not None:
            found[name] = value
    return found


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file by name; InputError if it cannot be read as one."""
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it holds one array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise UsageError(f"there is no file {str(path)!r}", stage="command line") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, MemoryError, OverflowError) as error:
        raise InputError(
            f"cannot read arrays from {str(path)!r}: {error}",
            stage="command line",
            hint="write the file with numpy.savez(path, input_name=array, ...)",
        ) from None


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an npz file whole or not at all."""
    try:
        with replacing(path) as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]
    except struct.error:
        longest = max(map(len, arrays))
        raise UsageError(
            f"cannot write {str(path)!r}: an npz file has no name of {longest:,} characters", stage="command line"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}", stage="command line") from None


#: largest difference of a whole model from its reference, relative to the largest value, by the precision it computes
#: in. Rounding grows with the layers: of ResNet-50 with random weights bf16 leaves 0.1.
TOLERANCE = {"f32": 1e-4, "f16": 2e-2, "bf16": 2e-1}


@dataclass(frozen=True)
class Allowed:
    """The error an output may have: `given`, or what is usual for the precision of the compilation or of the output,
    whichever is less precise.

    >>> Allowed(None, "f32").of(np.zeros(1, np.float32)), Allowed(None, "f32").of(np.zeros(1, np.float16))
    (0.0001, 0.02)
    >>> Allowed(None, "bf16").described([np.zeros(1, np.float32)]), Allowed(1e-3, "bf16").described([np.zeros(1)])
    ('tolerance 0.2 for bf16', 'tolerance 0.001')
    """

    given: float | None
    precision: str = "f32"

    def of(self, output: np.ndarray) -> float:
        return TOLERANCE[self._decides(output)] if self.given is None else self.given

    def described(self, outputs: Iterable[np.ndarray]) -> str:
        if self.given is not None:
            return f"tolerance {self.given:g}"
        decide = dict.fromkeys(self._decides(o) for o in outputs)
        return "tolerance " + ", ".join(f"{TOLERANCE[name]:g} for {name}" for name in decide)

    def _decides(self, output: np.ndarray) -> str:
        own = DTYPES.get(output.dtype, "")
        return max(self.precision, own if own in TOLERANCE else "f32", key=TOLERANCE.__getitem__)


def compare(
    got: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    allowed: Allowed,
    quanta: Callable[[], Mapping[str, float]] = dict,
) -> list[tuple[str, float, float]]:
    """(output, error, error allowed) for every expected output; CheckError lists those above it or of another shape.

    `quanta` is asked where an error is above the usual one: what rounding explains in a quantized model, by output
    (`driver.quantized_tolerance`).
    """
    unknown = [name for name in expected if name not in got]
    if unknown or not expected:
        raise InputError(
            f"the model has no output {', '.join(map(repr, unknown))}" if unknown else "no expected output was given",
            stage="check",
            hint=f"its outputs: {', '.join(got)}",
        )
    errors, wrong = [], []
    explained: Mapping[str, float] | None = None
    for name, want in expected.items():
        have = got[name]
        if have.shape != want.shape:
            wrong.append(f"output {name!r} has shape {have.shape}, expected {want.shape}")
            continue
        error, limit = largest_error(have, want), allowed.of(have)
        if not error <= limit and allowed.given is None:
            explained = quanta() if explained is None else explained
            limit = max(limit, explained.get(name, 0.0))
        errors.append((name, error, limit))
        if not error <= limit:
            more = f", {limit:.2e} of which rounding to quanta explains" if limit > allowed.of(have) else ""
            wrong.append(f"output {name!r} differs by {error:.2e} of its largest value{more}")
    if wrong:
        said = allowed.described(got[name] for name in expected)
        raise CheckError("; ".join(wrong), stage="check", hint=f"{said} (--rtol gives another)")
    return errors
