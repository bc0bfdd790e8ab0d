"""Arrays in and out of the command line: npz files, random inputs, comparison with what was expected."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckError, InputError, ModelError, UsageError
from ..files import replacing
from ..report.compare import largest_error, random_inputs

__all__ = ["compare", "fixed_shapes", "flat", "largest_error", "random_inputs", "read_npz", "write_npz"]


def fixed_shapes(inputs: Sequence[Any]) -> list[tuple[str, tuple[int, ...], np.dtype]]:
    """Name, shape and dtype of every input; ModelError if a model leaves some open, so that no data can be made up."""
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
            hint=f"give data with --input, or --shape {first}=1x... for random data",
        )
    return [(i.name, i.shape, i.numpy_dtype) for i in inputs]


def flat(results: Mapping[str, Any]) -> dict[str, np.ndarray]:
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
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}", stage="command line") from None


def compare(
    got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float
) -> list[tuple[str, float]]:
    """(output, error) for every expected output; CheckError lists those above the tolerance or of another shape."""
    unknown = [name for name in expected if name not in got]
    if unknown or not expected:
        raise InputError(
            f"the model has no output {', '.join(map(repr, unknown))}" if unknown else "no expected output was given",
            stage="check",
            hint=f"its outputs: {', '.join(got)}",
        )
    errors, wrong = [], []
    for name, want in expected.items():
        have = got[name]
        if have.shape != want.shape:
            wrong.append(f"output {name!r} has shape {have.shape}, expected {want.shape}")
            continue
        error = largest_error(have, want)
        errors.append((name, error))
        if not error <= tolerance:
            wrong.append(f"output {name!r} differs by {error:.2e} of its largest value")
    if wrong:
        raise CheckError("; ".join(wrong), stage="check", hint=f"the tolerance is {tolerance:g} (--rtol)")
    return errors
