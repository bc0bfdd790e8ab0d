"""Writes a package as a C library in source: header, code, weights, and build files for Make and CMake.

model.h          sizes, descriptors, error codes, the run function      (the same for targets that make object files)
model.c          the kernels and the function that calls them in order
model_weights.c  the weights as constant arrays; or model_weights.bin with model_weights.S
Makefile, CMakeLists.txt, example.c
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ...codegen.clike.c99 import C99, HEADER_TYPES
from ...codegen.clike.function import ClikeFunction
from ...codegen.clike.names import comment, model_name, parameters
from ...program.package import Package
from ...program.program import COPY, BufferRef, Call, Program, TensorInfo, align_up
from ...support.errors import UnsupportedError
from . import open_sizes
from .open_sizes import OpenText
from .packed import unpack_function

ERRORS = (
    ("OK", "the outputs have been computed"),
    ("NULL_POINTER", "an argument is a null pointer"),
    (
        "MISALIGNED",
        "the arena is not aligned as required, or an array not to the size of its elements",
    ),
    ("ARENA_TOO_SMALL", "the arena has fewer bytes than the model needs"),
)


@dataclass(frozen=True)
class CInterface:
    """What a caller needs to know about a program: names and sizes. `arena` includes the scratch memory, from `scratch`
    on."""

    name: str
    program: Program
    align: int

    @property
    def scratch(self) -> int:
        return align_up(self.program.arena_size, self.align)

    @property
    def open(self) -> OpenText | None:
        """What is written for open dimensions, if there are any."""
        sizes = self.program.open
        return None if sizes is None else OpenText(self.name, sizes)

    @property
    def errors(self) -> tuple[tuple[str, str], ...]:
        """What the run function returns: names and meanings, by code."""
        return (*ERRORS, open_sizes.ERROR) if self.open else ERRORS

    @property
    def inputs(self) -> Sequence[TensorInfo]:
        """The inputs, at the largest sizes."""
        return self.open.largest(self.program.inputs, self.open.sizes.inputs) if self.open else self.program.inputs

    @property
    def outputs(self) -> Sequence[TensorInfo]:
        """The outputs, at the largest sizes."""
        return self.open.largest(self.program.outputs, self.open.sizes.outputs) if self.open else self.program.outputs

    @property
    def arena(self) -> int:
        """Bytes of the arena at the largest sizes; at least one unit, so that an array of that size can be declared."""
        if self.open:
            return max(align_up(self.open.arena, self.align), self.align)
        return max(align_up(self.scratch + self.program.scratch_size, self.align), self.align)

    @property
    def places(self) -> int:
        return len(self.open.sizes.starts) if self.open else 0

    @property
    def arguments(self) -> list[str]:
        """C names of the inputs, then of the outputs."""
        infos = (*self.program.inputs, *self.program.outputs)
        sizes = self.open.arguments if self.open else []
        own = (f"{self.name}_{x}" for x in ("run", "tensor", "inputs", "outputs", "arena_size", "output_shape"))
        weights = (weight_name(self, i) for i, _ in enumerate(self.program.constants))
        local = ("arena", "arena_size", "base", "memcpy", "sizes_fit", *(f"place{i}" for i in range(self.places)))
        return parameters([t.name for t in infos], (*local, *own, *weights, *self.program.symbols, *sizes))


def layout(package: Package) -> CInterface:
    name = model_name(str(package.report.get("model", "model")))
    align = max(
        int(package.description.get("arena_align", 16)), *(t.numpy_dtype.itemsize for t in _arrays(package.program)), 1
    )
    return CInterface(name, package.program, align)


def _arrays(program: Program) -> Sequence[TensorInfo]:
    return (*program.inputs, *program.outputs, *program.constants)


def c_type(t: TensorInfo) -> str:
    """The C type of the elements of an input, output or constant; UnsupportedError if there is none."""
    if t.dtype not in HEADER_TYPES:
        raise UnsupportedError(f"{t} cannot be written in C99, which has no such type", stage="package")
    return HEADER_TYPES[t.dtype]


# ---- the header ----


def header(lay: CInterface, how: str) -> str:
    """The text of ``<name>.h``; `how` says what the code is."""
    p, n = lay.program, lay.name
    upper = n.upper()
    arguments = signature(lay)
    sizes = lay.open
    ins, outs = [comment(str(t)) for t in p.inputs], [comment(str(t)) for t in p.outputs]
    if sizes:
        ins = [sizes.tensor(t, shape) for t, shape in zip(p.inputs, sizes.sizes.inputs, strict=True)]
        outs = [sizes.tensor(t, shape) for t, shape in zip(p.outputs, sizes.sizes.outputs, strict=True)]
    most, at = ("at most ", ", at the largest sizes") if sizes else ("", "")
    lines = [
        f"/* {comment(n)}: a neural network compiled by Tilewright ({comment(how)}).",
        " *",
        *[f" * input  {t}" for t in ins],
        *[f" * output {t}" for t in outs],
        *[f" * {text}" for text in (sizes.range_comments() if sizes else [])],
        " *",
        f" * {sum(t.nbytes for t in p.constants)} bytes of weights, {most}{lay.arena} bytes of working memory.",
        " */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"/* bytes of working memory that a run needs{at}, and the alignment of its first byte */",
        f"#define {upper}_ARENA_SIZE {lay.arena}u",
        f"#define {upper}_ARENA_ALIGN {lay.align}u",
        f"#define {upper}_INPUTS {len(p.inputs)}",
        f"#define {upper}_OUTPUTS {len(p.outputs)}",
        *(sizes.ranges() if sizes else []),
        "",
        "enum {",
        *[f"    {upper}_{code} = {i}, /* {text} */" for i, (code, text) in enumerate(lay.errors)],
        "};",
        "",
        f"/* what an input or output is: its name in the model, its element type, its shape{at} */",
        "typedef struct {",
        "    const char *name;",
        "    const char *dtype;",
        "    size_t bytes;",
        "    int rank;",
        "    const int32_t *shape;",
        f"}} {n}_tensor;",
        "",
        f"extern const {n}_tensor {n}_inputs[];",
        f"extern const {n}_tensor {n}_outputs[];",
        "",
        *(sizes.declarations() if sizes else []),
        "/* Run the model once. The arena is working memory of the caller, of any content; calls with different arenas",
        " * may run at the same time. Arrays are row by row; outputs must overlap nothing else. Returns one of the",
        " * codes above; nothing has been written if it is not 0. */",
        f"int {n}_run({arguments});",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def signature(lay: CInterface) -> str:
    """The parameters of the run function."""
    p = lay.program
    kinds = [f"const {c_type(t)} *" for t in p.inputs] + [f"{c_type(t)} *" for t in p.outputs]
    arrays = [k + a for k, a in zip(kinds, lay.arguments, strict=True)]
    return ", ".join(["void *arena", "size_t arena_size", *(lay.open.parameters if lay.open else []), *arrays])


def descriptors(lay: CInterface) -> str:
    """The definitions of the tensor descriptors."""
    n = lay.name
    parts = []
    for what, infos in (("inputs", lay.inputs), ("outputs", lay.outputs)):
        rows = []
        for i, t in enumerate(infos):
            shape = ", ".join(map(str, t.shape)) or "1"
            parts.append(f"static const int32_t {what}_shape{i}[] = {{{shape}}};")
            name = (
                '"'
                + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in t.name.encode())
                + '"'
            )
            rows.append(f'    {{{name}, "{t.dtype}", {t.nbytes}u, {len(t.shape)}, {what}_shape{i}}},')
        rows = rows or ["    {0, 0, 0u, 0, 0},"]
        parts.append(f"const {n}_tensor {n}_{what}[] = {{\n" + "\n".join(rows) + "\n};\n")
    return "\n".join(parts)


# ---- the code ----


def source(package: Package, lay: CInterface) -> str:
    """The text of ``<name>.c``."""
    p = package.program
    functions = {s: unpack_function(package.objects[s]) for s in p.symbols}
    helpers = {h for f in functions.values() for h in f.helpers} | (lay.open.helpers if lay.open else set())
    needs_math = any(f.needs_math for f in functions.values())
    used = sorted({a.index for c in p.calls for a in c.args if a.space == "constant"})
    includes = ["<math.h>"] * needs_math + ["<float.h>"] * any("finite" in h or "isinf" in h for h in helpers)
    includes += ["<string.h>"] * any(c.symbol == COPY for c in p.calls)
    parts = [
        f'#include "{lay.name}.h"',
        *[f"#include {i}" for i in includes],
        "",
        "/* Kernels reuse the bytes of the arena for numbers of different types: inlined into one another,",
        " * a compiler could take writes of one for independent of reads of another. */",
        "#if defined(__GNUC__)",
        "#define KERNEL static __attribute__((noinline))",
        "#else",
        "#define KERNEL static",
        "#endif",
        "",
        *[f"extern const {weight_type(p.constants[i])} {weight_name(lay, i)}[];" for i in used],
        "",
        C99.definitions(helpers),
        *[_kernel(f, p) for f in functions.values()],
        descriptors(lay),
        *([lay.open.definitions()] if lay.open else []),
        _run(lay, functions),
    ]
    return "\n".join(parts)


def weight_type(t: TensorInfo) -> str:
    """The element type of a constant as kernels see it: without a sign."""
    return c_type(TensorInfo(t.name, t.shape, t.dtype.removeprefix("u")))


def weight_name(lay: CInterface, index: int) -> str:
    return f"{lay.name}_weights{index}"


def _kernel(f: ClikeFunction, program: Program) -> str:
    calls = [c for c in program.calls if c.symbol == f.name]
    aliased = any(_overlap(c) for c in calls)
    named = list(dict.fromkeys(name for c in calls for name in c.names))
    head = [f"/* {comment(', '.join(named), 110)} */"] if named else []
    return "\n".join([*head, f.text(C99, "", aliased)])


def _overlap(call: Call) -> bool:
    return any(written and a.overlaps(b) for a, written in call.accesses() for b, _ in call.accesses() if a is not b)


def _run(lay: CInterface, functions: Mapping[str, ClikeFunction]) -> str:
    p, n, upper = lay.program, lay.name, lay.name.upper()
    arguments = lay.arguments
    infos = (*p.inputs, *p.outputs)
    uses_arena = any(a.space == "arena" for c in p.calls for a in c.args) or any(
        functions[s].scratch for s in p.symbols
    )
    nulls = " || ".join(f"!{a}" for a in ["arena", *arguments])
    needed = f"{n}_arena_size({', '.join(lay.open.arguments)})" if lay.open else f"{upper}_ARENA_SIZE"
    sizes = {a: t.numpy_dtype.itemsize for a, t in zip(arguments, infos, strict=True)}
    uneven = [f"(uintptr_t)arena % {upper}_ARENA_ALIGN"] + [f"(uintptr_t){a} % {s}u" for a, s in sizes.items() if s > 1]
    lines = [
        f"int {n}_run({signature(lay)})",
        "{",
        *(["    unsigned char *const base = arena;", ""] if uses_arena else []),
        f"    if ({nulls})",
        f"        return {upper}_NULL_POINTER;",
        *(lay.open.check() if lay.open else []),
        f"    if ({' || '.join(uneven)})",
        f"        return {upper}_MISALIGNED;",
        f"    if (arena_size < {needed})",
        f"        return {upper}_ARENA_TOO_SMALL;",
        "",
    ]
    if lay.open:
        refs = [ref for call in p.calls for ref in (*call.args, call.scratch) if ref is not None]
        lines += lay.open.places([_address(lay, ref) for ref in refs if ref.space == "arena"])
    copies = count()
    for call in p.calls:
        if call.names:
            lines.append(f"    /* {comment(', '.join(call.names))} */")
        lines.append(f"    {_copy(lay, call, next(copies)) if call.symbol == COPY else _call(lay, call, functions)}")
    return "\n".join([*lines, f"    return {upper}_OK;", "}", ""])


def _copy(lay: CInterface, call: Call, number: int) -> str:
    """A copy, with its number among the copies."""
    source, target = (_address(lay, ref) for ref in call.args)
    return f"memcpy({target}, {source}, {lay.open.copied(number) if lay.open else f'{call.args[0].nbytes}u'});"


def _call(lay: CInterface, call: Call, functions: Mapping[str, ClikeFunction]) -> str:
    f = functions[call.symbol]
    args = []
    for ref, (_, kind, written) in zip(call.args, f.params, strict=True):
        address = _address(lay, ref)
        plain = ref.space == "constant" and ref.offset == 0
        args.append(
            address
            if plain
            else f"({'' if written else 'const '}{kind} *)(void *)({address})"
            if ref.space == "arena"
            else _typed(lay, ref, kind, written)
        )
    args += f.sizes
    if f.scratch:
        args.append(_address(lay, call.scratch) if call.scratch is not None else f"base + {lay.scratch}")
    text = f"{f.name}({', '.join(args)});"
    if len(text) > 110:
        text = f"{f.name}(\n        " + ",\n        ".join(args) + ");"
    return text


def _typed(lay: CInterface, ref: BufferRef, kind: str, written: bool) -> str:
    """The address of an input or output as a pointer to what a kernel takes."""
    infos = {"input": lay.program.inputs, "output": lay.program.outputs, "constant": lay.program.constants}[ref.space]
    own = c_type(infos[ref.index])
    if own == kind and ref.offset == 0:
        return _address(lay, ref)
    const = "" if written else "const "
    return f"({const}{kind} *)({const}void *)({_address(lay, ref)})"


def _address(lay: CInterface, ref: BufferRef) -> str:
    if ref.space == "arena" and lay.open:
        return lay.open.place(ref.slot)
    if ref.space == "arena":
        return f"base + {ref.offset}" if ref.offset else "base"
    if ref.space == "constant":
        name = weight_name(lay, ref.index)
        return name if ref.offset == 0 else f"(const unsigned char *){name} + {ref.offset}"
    position = ref.index + (len(lay.program.inputs) if ref.space == "output" else 0)
    name = lay.arguments[position]
    if ref.offset == 0:
        return name
    return f"({'const ' if ref.space == 'input' else ''}unsigned char *){name} + {ref.offset}"


# ---- the weights ----


def weights(package: Package, lay: CInterface) -> str:
    """The text of ``<name>_weights.c``."""
    parts = [
        f"/* The weights of {comment(lay.name)}, in the layouts that its kernels read. */",
        "#include <stdint.h>",
        "",
    ]
    if any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in package.constants):
        parts.insert(1, "#include <math.h>")
    for i, (info, array) in enumerate(zip(package.program.constants, package.constants, strict=True)):
        kind, name = weight_type(info), weight_name(lay, i)
        parts.append(f"/* {comment(str(info))} */")
        parts.append(f"extern const {kind} {name}[];")
        parts.append(f"const {kind} {name}[{max(array.size, 1)}] = {{\n{_numbers(array)}\n}};\n")
    return "\n".join(parts)


#: what C99 calls numbers that it has no digits for
_SPECIAL = {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}


def _numbers(array: np.ndarray) -> str:
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.size:
        return "    0"
    if flat.dtype.kind == "f":
        suffix = "f" if flat.dtype == np.float32 else ""
        texts = [_SPECIAL.get(x) or f"{x}{suffix}" for x in flat.astype(str)]
    else:
        signed = flat.view(f"i{flat.dtype.itemsize}")
        smallest = np.iinfo(signed.dtype).min
        special = f"(-{-(int(smallest) + 1)}{'ll' if signed.dtype.itemsize == 8 else ''} - 1)"
        suffix = "ll" if signed.dtype.itemsize == 8 else ""
        texts = [special if x == smallest and signed.dtype.itemsize >= 4 else f"{x}{suffix}" for x in signed.tolist()]
    width = 8 if flat.dtype.kind == "f" else 16
    return "\n".join("    " + ", ".join(texts[i : i + width]) + "," for i in range(0, len(texts), width))


def blob(package: Package, lay: CInterface) -> tuple[bytes, str]:
    """All weights one after the other, and the assembler file that gives each a symbol."""
    data, symbols = b"", []
    for i, array in enumerate(package.constants):
        data += b"\0" * (-len(data) % 16)
        symbols.append((weight_name(lay, i), len(data)))
        data += np.ascontiguousarray(array).tobytes() or b"\0" * 16
    text = [
        f"/* The weights of {comment(lay.name)}: the bytes of {lay.name}_weights.bin, and a symbol for each array. */"
    ]
    text += [
        "    .section .rodata",
        "    .balign 16",
        f"{lay.name}_weights_blob:",
        f'    .incbin "{lay.name}_weights.bin"',
    ]
    for name, offset in symbols:
        text += [f"    .globl {name}", f"    .set {name}, {lay.name}_weights_blob + {offset}"]
    text += ["#if defined(__ELF__)", '    .section .note.GNU-stack,"",%progbits', "#endif"]
    return data, "\n".join(text) + "\n"


# ---- all files ----


def files(package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
    """Every file of the library by name; with the setting ``weights=blob`` the weights are a binary file."""
    lay = layout(package)
    made: dict[str, bytes] = {}
    n = lay.name
    made[f"{n}.h"] = header(lay, "portable C99").encode()
    made[f"{n}.c"] = source(package, lay).encode()
    if settings.get("weights", "arrays") == "blob":
        made[f"{n}_weights.bin"], text = blob(package, lay)
        made[f"{n}_weights.S"] = text.encode()
        second = f"{n}_weights.S"
    else:
        made[f"{n}_weights.c"] = weights(package, lay).encode()
        second = f"{n}_weights.c"
    math = b"<math.h>" in made[f"{n}.c"]
    made["Makefile"] = _MAKEFILE.format(
        name=n, second=second, obj=second[:-2] + ".o", math=" -lm" if math else ""
    ).encode()
    language = "C ASM" if second.endswith(".S") else "C"
    link = f"target_link_libraries({n} PUBLIC m)\n" if math else ""
    made["CMakeLists.txt"] = _CMAKE.format(name=n, second=second, languages=language, math=link).encode()
    made["example.c"] = example(lay).encode()
    return made


def example(lay: CInterface) -> str:
    """A program that runs the model once on zeros and prints the first numbers of every output."""
    n, upper, p = lay.name, lay.name.upper(), lay.program
    arrays, prints = [], []
    largest = [f"{c}_MAX" for c in lay.open.constants] if lay.open else []
    for a, t in zip(lay.arguments, (*lay.inputs, *lay.outputs), strict=True):
        arrays.append(f"static {c_type(t)} {a}_data[{max(int(np.prod(t.shape)), 1)}];")
    for a in lay.arguments[len(p.inputs) :]:
        prints.append(f'    printf("{a}[0] = %g\\n", (double){a}_data[0]);')
    return _EXAMPLE.format(
        name=n,
        upper=upper,
        arrays="\n".join(arrays),
        args=", ".join([*largest, *(f"{a}_data" for a in lay.arguments)]),
        prints="\n".join(prints),
    )


_MAKEFILE = """\
# Builds the example; in a project of your own compile the same source files with your compiler and flags.
CC ?= cc
CFLAGS ?= -O3
CFLAGS += -std=c99 -Wall -Wextra -Wpedantic

example: example.o {name}.o {obj}
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ example.o {name}.o {obj}{math}

example.o {name}.o: {name}.h
{obj}: {second}

clean:
	rm -f example example.o {name}.o {obj}
"""

_CMAKE = """\
cmake_minimum_required(VERSION 3.10)
project({name} LANGUAGES {languages})

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library({name} STATIC {name}.c {second})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({name} PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
{math}
add_executable(example example.c)
target_link_libraries(example PRIVATE {name})
set_target_properties(example PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
"""

_EXAMPLE = """\
/* Runs the model once on zeros. */
#include <stdio.h>

#include "{name}.h"

/* working memory, aligned by hand: C99 has no word for it */
static unsigned char memory[{upper}_ARENA_SIZE + {upper}_ARENA_ALIGN];
{arrays}

int main(void)
{{
    const uintptr_t past = (uintptr_t)memory % {upper}_ARENA_ALIGN;
    unsigned char *const arena = memory + (past ? {upper}_ARENA_ALIGN - past : 0u);
    const int code = {name}_run(arena, {upper}_ARENA_SIZE, {args});
    if (code != {upper}_OK) {{
        fprintf(stderr, "error %d\\n", code);
        return 1;
    }}
{prints}
    return 0;
}}
"""
