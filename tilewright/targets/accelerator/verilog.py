"""Generates a SystemVerilog package for a chip's RTL: memory sizes, and instruction formats as packed structs.

The package is made from the same `Formats` that the assembler encodes with, so that the two cannot disagree. It is
written into a build folder and never kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from .binary import Bits, Formats, InstructionFormat
from .describe import Chip, CopyEngine


def package(chip: Chip, name: str = "formats") -> str:
    """The text of the package `name` for a chip.

    - ``ARRAY``, ``BUS`` ...: the whole numbers among the chip's own parameters; ``COUNT_BITS``, ``ARGUMENTS``
    - ``WEIGHTS_WORDS``, ``WEIGHTS_BYTES``, ``WEIGHTS_AT``: words of a memory, bytes of a word, bits of an address
    - ``LOAD_QUEUE``, ``LOAD_WIDTH``: of each engine, how many instructions may be under way, bits of one
    - ``LOAD_WEIGHTS``: the number of a copy engine's route, named by the memory on the chip
    - ``ARRAY_MMA``: the number of an instruction among those of its engine
    - ``LOAD_COPY_AT``: the bits of a field of an instruction
    - ``load_copy_t``, ``array_mma_t``: the instructions; a field of several parts has a member for each, the innermost
      level last (``count_2``), and counts to wait for are ``wait_ENGINE``
    """
    return "\n".join([f"package {name};", *(f"  {line}" for line in _lines(Formats(chip))), "endpackage"]) + "\n"


def _lines(formats: Formats) -> Iterator[str]:
    chip = formats.chip
    sizes = {k: v for k, v in asdict(chip).items() if isinstance(v, int) and not isinstance(v, bool)}
    sizes |= {"count_bits": chip.count_bits, "arguments": chip.arguments}
    for memory in chip.spaces():
        at = max((memory.words - 1).bit_length(), 1)
        sizes |= {f"{memory.name}_words": memory.words, f"{memory.name}_bytes": memory.word, f"{memory.name}_at": at}
    for engine in chip.engines:
        sizes |= {f"{engine.name}_queue": engine.queue, f"{engine.name}_width": 32 * formats.words(engine.name)}
        if isinstance(engine, CopyEngine):
            for number, route in enumerate(formats.routes(engine.name)):
                on_chip = [m for m in route if m in formats.listing.memories]
                sizes["_".join([engine.name, *on_chip])] = number
    for form in (f for forms in formats.forms.values() for f in forms):
        sizes[f"{form.engine}_{form.name}"] = form.opcode
        sizes |= {f"{form.engine}_{form.name}_{f.name}": f.bits for f in form.fields}
    for key, value in sizes.items():
        yield f"localparam int {key.upper()} = {value};"
    for engine_name, forms in formats.forms.items():
        for form in forms:
            yield from _struct(formats, form, sizes[f"{engine_name}_width"])


def _struct(formats: Formats, form: InstructionFormat, width: int) -> Iterator[str]:
    """A packed struct; its last member has the lowest bits."""
    opcode, *waits = formats.header(form.engine)
    fields = [opcode, *(Bits(f"wait_{w.name}", w.bits) for w in waits), *form.fields]
    members = [(f, name) for f in fields if f.bits for name in _names(f)]
    padding = width - sum(f.bits for f, _ in members)
    yield "typedef struct packed {"
    if padding:
        yield f"  logic [{padding - 1}:0] padding;"
    for f, name in reversed(members):
        yield f"  logic {'signed ' if f.signed else ''}[{f.bits - 1}:0] {name};"
    yield f"}} {form.engine}_{form.name}_t;"


def _names(f: Bits) -> list[str]:
    return [f.name] if f.parts == 1 else [f"{f.name}_{part}" for part in range(f.parts)]
