"""Exports a package as a static library with a C header, and reports the sizes of its sections."""

from __future__ import annotations

from ...codegen.llvm.assemble import assemble
from ...program.package import Package
from ..c.library import CInterface, header, layout
from .elf import archive, read
from .machines import McuDescription
from .program import ProgramText, support_llvm, weights_llvm


def objects(package: Package, machine: McuDescription, lay: CInterface, *, probe: bool = False) -> dict[str, bytes]:
    """All object files of the library by name."""
    made = {f"{symbol}.o": data for symbol, data in package.objects.items()}
    made[f"{lay.name}.o"] = assemble(ProgramText(package, lay, machine, probe).text(), machine.code)
    made[f"{lay.name}_weights.o"] = assemble(weights_llvm(package, lay), machine.code)
    made["tw_support.o"] = assemble(support_llvm(machine), machine.code)
    return made


def missing_symbols(made: dict[str, bytes]) -> list[str]:
    """What the objects call and none of them defines."""
    parsed = [read(data) for data in made.values()]
    defined = {s for e in parsed for s in e.defined}
    return sorted({s for e in parsed for s in e.undefined} - defined)


def sizes(made: dict[str, bytes], lay: CInterface) -> dict[str, int]:
    """Bytes by section: text (code) and rodata (weights) in flash; data, bss and the arena in RAM."""
    total = {"text": 0, "rodata": 0, "data": 0, "bss": 0}
    for data in made.values():
        for name, size in read(data).sizes().items():
            total[name] += size
    return {**total, "arena": lay.arena}


def files(package: Package, machine: McuDescription) -> dict[str, bytes]:
    """``lib<name>.a``, ``<name>.h`` and ``sizes.txt``."""
    lay = layout(package)
    made = objects(package, machine, lay)
    how = f"object files for {machine.name}: {machine.code.triple}, {machine.code.cpu}"
    return {
        f"lib{lay.name}.a": archive(made),
        f"{lay.name}.h": header(lay, how).encode(),
        "sizes.txt": _sizes_text(made, lay).encode(),
    }


def _sizes_text(made: dict[str, bytes], lay: CInterface) -> str:
    lines = [f"{'text':>8} {'rodata':>8} {'data':>8} {'bss':>8}  object"]
    for name, data in made.items():
        s = read(data).sizes()
        lines.append(f"{s['text']:>8} {s['rodata']:>8} {s['data']:>8} {s['bss']:>8}  {name}")
    total = sizes(made, lay)
    lines.append(f"{total['text']:>8} {total['rodata']:>8} {total['data']:>8} {total['bss']:>8}  total")
    flash = total["text"] + total["rodata"] + total["data"]
    lines.append(
        f"flash {flash} bytes, RAM {total['data'] + total['bss'] + lay.arena} bytes ({lay.arena} of them the arena)"
    )
    needs = missing_symbols(made)
    if needs:
        lines.append(f"to be provided by the compiler's support library or the C library: {', '.join(needs)}")
    return "\n".join(lines) + "\n"
