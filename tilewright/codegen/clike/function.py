"""A kernel in a dialect of C, as the printer leaves it and a package has it."""

from __future__ import annotations

from dataclasses import dataclass

from .dialect import Dialect


@dataclass(frozen=True)
class Function:
    """A kernel: parameters (name, type of an element, whether it is written), body, and what it needs: bytes of scratch
    memory (for each unit, where it runs on several), helpers, C's mathematical functions, sizes of open dimensions."""

    name: str
    params: tuple[tuple[str, str, bool], ...]
    body: str
    scratch: int
    helpers: tuple[str, ...]
    needs_math: bool
    sizes: tuple[str, ...] = ()

    def text(self, dialect: Dialect, prefix: str = "", aliased: bool = False) -> str:
        """The definition; with `aliased` the parameters may overlap."""
        d, params = dialect, []
        for i, (name, kind, written) in enumerate(self.params):
            how = {"const": "" if written else "const ", "access": "read_write" if written else "read"}
            how |= {"restrict": "" if aliased else "restrict "}
            params.append(d.parameter.format(type=kind, name=name, number=i, **how))
        params += [d.size.format(name=name) for name in self.sizes]
        lines = self.body.split("\n")
        if self.scratch:
            params.append(d.scratch)
            lines[:0] = [f"    {d.own_scratch.format(bytes=self.scratch)}"] if d.own_scratch else []
        head = d.entry.format(params=d.between.join(params) or "void", name=f"{prefix}{self.name}")
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
