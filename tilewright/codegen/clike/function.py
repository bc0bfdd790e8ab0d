"""The result of printing a kernel: its source in a C-like language, parameters and launch sizes, as packages store
it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..gpu.open_launch import OpenLaunch
from .dialect import Dialect


@dataclass(frozen=True)
class DispatchSize:
    """Launch size of a kernel: threads of a block, and blocks (x, y, z). A kernel whose parallel loop (`thread`) is
    divided among all threads is right with any."""

    block: tuple[int, int, int] = (1, 1, 1)
    grid: tuple[int, int, int] = (1, 1, 1)

    def extent(self, axis: str) -> int:
        """The extent of ``block.x`` and the like."""
        name, _, dim = axis.partition(".")
        return (self.block if name == "block" else self.grid)["xyz".index(dim)]

    @property
    def threads(self) -> int:
        """The number of threads of all blocks together."""
        return prod(self.block) * prod(self.grid)


@dataclass(frozen=True)
class ClikeFunction:
    """A kernel: parameters (name, type of an element, whether it is written), body, and what it needs: bytes of scratch
    memory (for each thread, where it runs on several), helpers, C's mathematical functions, sizes of open dimensions,
    threads to run on, declarations in front of it or of its lines (memory that threads share, functions). Each argument
    is bound as so many parameters as `pieces` says, one behind the other. `arrays` is scratch memory where it has
    types: name, type, and elements of a thread. With `open` the last parameter is the table of sizes, and `launch` is
    that for typical ones."""

    name: str
    params: tuple[tuple[str, str, bool], ...]
    body: str
    scratch: int
    helpers: tuple[str, ...]
    needs_math: bool
    sizes: tuple[str, ...] = ()
    launch: DispatchSize = DispatchSize()
    shared: tuple[str, ...] = ()
    pieces: tuple[int, ...] = ()
    arrays: tuple[tuple[str, str, int], ...] = ()
    open: OpenLaunch | None = None

    def text(self, dialect: Dialect, prefix: str = "", aliased: bool = False) -> str:
        """The definition; with `aliased` the parameters may overlap."""
        d, params, begin = dialect, [], []
        for i, (name, kind, written) in enumerate(self.params):
            how = {"const": "" if written else "const ", "access": "read_write" if written else "read"}
            how |= {"restrict": "" if aliased else "restrict "}
            table = d.table if self.open is not None and i == len(self.params) - 1 else ""
            params.append((table or d.parameter).format(type=kind, name=name, number=i, **how))
            begin += [f"    {d.begin.format(type=kind, name=name, **how)}"] if d.begin else []
        params += [d.size.format(name=name) for name in self.sizes]
        lines = self.body.split("\n")
        if self.scratch:
            params.append(d.scratch)
            lines[:0] = [f"    {d.own_scratch.format(bytes=self.scratch)}"] if d.own_scratch else []
        for i, (name, kind, _) in enumerate(self.arrays, len(self.params)):
            params.append(d.typed_scratch.format(name=name, type=kind, number=i))
        if self.arrays:
            own = [d.own_typed_scratch.format(name=name, size=size) for name, _, size in self.arrays]
            lines[:0] = [f"    {line}" for line in (d.thread_index.format(block=prod(self.launch.block)), *own)]
        outside = "".join(f"{line}\n" for line in self.shared) if d.shared_outside else ""
        lines[:0] = begin + ([] if d.shared_outside else [f"    {line}" for line in self.shared])
        head = d.entry.format(
            params=d.between.join(params) or "void",
            name=f"{prefix}{self.name}",
            block=", ".join(map(str, self.launch.block)),
            threads=prod(self.launch.block),
            shared=outside,
        )
        body = "\n".join(map(wrapped, lines))
        return "\n".join(map(wrapped, head.split("\n"))) + f"\n{{\n{body}\n}}\n"


def wrapped(line: str, width: int = 120) -> str:
    """A line broken behind commas and operators, so that it fits where that is possible."""
    indent = " " * (len(line) - len(line.lstrip()) + 8)
    lines = []
    while len(line) > width:
        cut = max(
            line.rfind(mark, len(indent) + 20, width) + len(mark) for mark in (", ", " + ", " * ", " = ", " && ", " : ")
        )
        if cut <= len(indent) + 20:
            break
        lines.append(line[:cut].rstrip())
        line = indent + line[cut:]
    return "\n".join([*lines, line])
