"""C code of programs with dynamic shapes: sizes as arguments, checks of them, and the arena size and output shapes for
them.

    int model_run(void *arena, size_t arena_size, int32_t time, const float *x, float *y);
    size_t model_arena_size(int32_t time);
    int model_output_shape(int32_t time, int output, int32_t *shape);

Formulas are those of `program.open_sizes`. Where the largest sizes ask for more than 31 bits they are computed in 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...codegen.clike.formulas import Written, c_formula, dim_names
from ...codegen.clike.names import comment, distinct
from ...program.open_sizes import Formula, SizeTable
from ...program.program import TensorInfo
from ...support.dims import Dim
from ...support.formulas import symbol

ERROR = ("SIZE_OUT_OF_RANGE", "an open dimension is out of its range, or no multiple of its divisor")


@dataclass(frozen=True)
class OpenText:
    """The texts that a header and a source file have for the open dimensions of a program, `name` is its C name."""

    name: str
    sizes: SizeTable

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.sizes.dims

    @property
    def arguments(self) -> list[str]:
        """The C names of the dimensions."""
        return list(dim_names(self.dims).values())

    @property
    def parameters(self) -> list[str]:
        return [f"int32_t {a}" for a in self.arguments]

    @property
    def constants(self) -> list[str]:
        """What the constants of each dimension begin with: ``MODEL_TIME``."""
        return [f"{self.name.upper()}_{x}" for x in distinct([a.upper() for a in self.arguments], _CONSTANTS)]

    # ---- formulas ----

    def written(self, formula: Formula) -> Written:
        made = c_formula(formula, self.dims)
        return made if made.peak < 1 << 31 else c_formula(formula, self.dims, bits=64)

    @property
    def arena(self) -> int:
        """Bytes of the arena that are enough for all sizes."""
        return self.written(self.sizes.arena).high

    @property
    def helpers(self) -> set[str]:
        """The functions that formulas call."""
        s = self.sizes
        shapes = (d for shape in s.outputs for d in shape)
        return {h for f in (*s.starts, *s.copies, s.arena, *shapes) for h in self.written(f).helpers}

    def place(self, slot: int) -> str:
        """The address of a place of the arena; of none (-1), which nothing is read from, its beginning."""
        return "base" if slot < 0 or self.written(self.sizes.starts[slot]).high == 0 else f"place{slot}"

    def copied(self, number: int) -> str:
        """The bytes of a copy."""
        return f"(size_t)({self.written(self.sizes.copies[number]).text})"

    def largest(self, infos: Sequence[TensorInfo], shapes: Sequence[Sequence[Formula]]) -> list[TensorInfo]:
        """Inputs or outputs at the largest sizes."""
        return [
            replace(t, shape=tuple(self.written(d).high for d in shape)) for t, shape in zip(infos, shapes, strict=True)
        ]

    # ---- the header ----

    def range_comments(self) -> list[str]:
        """The ranges, for the comment at the beginning of the header."""
        by = [f", a multiple of {d.divisor}" if d.divisor > 1 else "" for d in self.dims]
        return [f"{a} is {d.low} to {d.high}{x}" for a, d, x in zip(self.arguments, self.dims, by, strict=True)]

    def ranges(self) -> list[str]:
        """The constants with the ranges."""
        lines = ["", "/* the smallest and the largest size of an open dimension, and the number that divides it */"]
        for i, (c, d) in enumerate(zip(self.constants, self.dims, strict=True)):
            made = self.written(symbol(i))
            lines += [f"#define {c}_MIN {made.low}", f"#define {c}_MAX {made.high}", f"#define {c}_DIVISOR {d.divisor}"]
        return lines

    def declarations(self) -> list[str]:
        n, sizes = self.name, ", ".join(self.parameters)
        return [
            "/* Bytes of working memory that a run of these sizes needs; the constant above is enough for all.",
            " * 0 if a size is out of range. */",
            f"size_t {n}_arena_size({sizes});",
            "",
            "/* The shape of an output for these sizes: writes a number for each of its dimensions, and returns",
            " * how many. -1 if a size is out of range, there is no such output or `shape` is a null pointer. */",
            f"int {n}_output_shape({sizes}, int output, int32_t *shape);",
            "",
        ]

    # ---- the code ----

    def definitions(self) -> str:
        """The functions for sizes."""
        n, sizes, given = self.name, ", ".join(self.parameters), ", ".join(self.arguments)
        tests = []
        for c, a, d in zip(self.constants, self.arguments, self.dims, strict=True):
            by = f" && {a} % {c}_DIVISOR == 0" if d.divisor > 1 else ""
            tests.append(f"{a} >= {c}_MIN && {a} <= {c}_MAX{by}")
        arena = self.written(self.sizes.arena)
        bytes_ = f"(size_t)({arena.text})" if arena.high else f"{n.upper()}_ARENA_ALIGN"
        lines = [
            *self._wide(),
            "/* whether all sizes are in their ranges */",
            f"static int sizes_fit({sizes})",
            "{",
            "    return " + "\n        && ".join(tests) + ";",
            "}",
            "",
            f"size_t {n}_arena_size({sizes})",
            "{",
            f"    return sizes_fit({given}) ? {bytes_} : 0u;",
            "}",
            "",
            f"int {n}_output_shape({sizes}, int output, int32_t *shape)",
            "{",
            f"    if (!sizes_fit({given}) || !shape)",
            "        return -1;",
            "    switch (output) {",
        ]
        for number, shape in enumerate(self.sizes.outputs):
            lines.append(f"    case {number}:")
            lines += [f"        shape[{i}] = {self._dimension(d)};" for i, d in enumerate(shape)]
            lines.append(f"        return {len(shape)};")
        return "\n".join([*lines, "    default:", "        return -1;", "    }", "}", ""])

    def _dimension(self, formula: Formula) -> str:
        made = self.written(formula)
        return f"(int32_t)({made.text})" if made.peak >= 1 << 31 else made.text

    def _wide(self) -> list[str]:
        """A compile-time check: fails on machines whose addresses are too short for the largest sizes."""
        if self.arena < 1 << 31:
            return []
        test = f"#if SIZE_MAX < {self.name.upper()}_ARENA_SIZE"
        return [test, '#error "the largest sizes need more memory than this machine has addresses"', "#endif", ""]

    def check(self) -> list[str]:
        """The statement of the run function that refuses sizes."""
        return [
            f"    if (!sizes_fit({', '.join(self.arguments)}))",
            f"        return {self.name.upper()}_{ERROR[0]};",
        ]

    def places(self, used: Sequence[str]) -> list[str]:
        """The statements that find the places of the arena, of which the calls use these."""
        made = [
            f"    unsigned char *const place{i} = base + ({self.written(f).text});"
            for i, f in enumerate(self.sizes.starts)
            if f"place{i}" in used
        ]
        return ["    /* where values begin, for these sizes */", *made, ""] if made else []

    def tensor(self, t: TensorInfo, shape: Sequence[Formula]) -> str:
        """An input or output in a comment: ``x: f32[1, time, 40]``."""
        return comment(f"{t.name}: {t.dtype}[{', '.join(map(str, self.sizes.shown(shape)))}]")


#: constants of the header have these names, dimensions others
_CONSTANTS = ("ARENA", "SIZE")


__all__ = ["ERROR", "OpenText"]
