"""PyTorch modules as peers run them (`peers/module_*.py`): those of the zoo, made anew in each process from one seed.

A peer is given ``FOLDER/NAME.onnx``, of which it takes the name: there is no such file, only ``NAME.inputs.npz`` and
``NAME.expected.npz`` beside it, which `write_case` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zoo_models


def module_of(name: str, threads: int) -> zoo_models.Made:
    """A module of the zoo in evaluation mode, with its inputs; the same numbers in every process."""
    zoo_models._quiet()
    zoo_models.load_families()
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(zoo_models.SEED)
    made: zoo_models.Made = zoo_models.REGISTRY[name].make()
    made.module.eval().requires_grad_(False)
    return _speaking(made)


def _speaking(made: zoo_models.Made) -> zoo_models.Made:
    """The module with results that say something: random weights may end in zeros whatever comes before, where a head
    begins with zeros, or where its last ReLU lets nothing through."""

    def silent() -> bool:
        with torch.no_grad():
            return not any(r.any() for r in _results(made.module, list(made.inputs.values())))

    if silent():
        for p in made.module.parameters():
            if not p.any():
                torch.nn.init.normal_(p, std=0.02)
    if silent():
        *_, last = (m for m in made.module.modules() if isinstance(getattr(m, "weight", None), torch.Tensor))
        for p in last.parameters(recurse=False):
            p.neg_()
    return made


def runner(path: str, threads: int, compile: Callable[[zoo_models.Made], Callable[..., Any]]) -> Callable[..., Any]:
    """What a peer gives: a function from arrays by name to a list of arrays."""
    made = module_of(Path(path).stem, threads)
    function, names = compile(made), list(made.inputs)

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        with torch.inference_mode():
            result = function(*[torch.from_numpy(inputs[name]) for name in names])
        return [t.numpy() for t in ([result] if torch.is_tensor(result) else result)]

    return run


def write_case(name: str, folder: Path) -> None:
    """The inputs of a module, and what it gives in float64; in float32 where it cannot compute in that."""
    made = module_of(name, 1)
    given = list(made.inputs.values())
    with torch.no_grad():
        expected = _results(made.module, given)
        if not any(e.any() for e in expected):
            raise SystemExit(f"{name}: all results are 0, which are right for the wrong reasons too")
        try:
            double = [t.double() if t.is_floating_point() else t for t in given]
            better = _results(made.module.double(), double)
            if all(a.shape == b.shape for a, b in zip(better, expected, strict=True)):
                expected = better
        except (RuntimeError, TypeError, ValueError):
            pass
    np.savez(folder / f"{name}.inputs.npz", **{k: v.numpy() for k, v in made.inputs.items()})
    np.savez(folder / f"{name}.expected.npz", **{f"output_{i}": t for i, t in enumerate(expected)})


def _results(module: torch.nn.Module, given: list[torch.Tensor]) -> list[np.ndarray]:
    result = module(*given)
    return [t.numpy() for t in ([result] if torch.is_tensor(result) else result)]


if __name__ == "__main__":
    import sys

    write_case(sys.argv[1], Path(sys.argv[2]))
