"""What is compiled once and runs with several numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.driver.kernels import BuiltKernel
from tilewright.runtime.executable import Executable


def teams(made: BuiltKernel | Executable, *threads: int) -> Iterator[BuiltKernel | Executable]:
    """A kernel or a model with each number of threads (1 and 2 if none is given); neither is compiled again."""
    for n in threads or (1, 2):
        yield made.with_threads(n) if isinstance(made, BuiltKernel) else Executable(made.package, n)
