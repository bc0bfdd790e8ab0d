"""Programs of chips as bits and as text: formats from the description, the assembler and the disassembler.

A program is one stream of instructions for each engine. An instruction begins with its number among those of its engine
(`opcode`) and the counts it waits for, one for each other engine: it begins when that engine has finished so many. What
follows is laid out from the lowest bit on, in the order of `InstructionFormat.fields`; each engine's instructions are
as wide as the longest, in whole 32-bit words, the lowest first.

- A copy: `route` (the number of the pair of memories, in the order of the engine's sources and targets), the host's
  argument `arg` and the byte `host` in it, the word `at` on the chip, the bytes of a `run`, then for each level its
  `count`, and its stride in bytes of the host and in words of the chip. Innermost levels come last. `fill`: write
  `value` instead of what is read. Copies between memories on the chip have `from` instead of `arg` and `host`.
- A computation: for each dimension its count (one a level, innermost last), for each operand its word, and its strides
  in words where it has any, `start` if it can accumulate, then the fields of the description.

As text, a line an instruction: ``array: mma m=4,8,1 n=32 ... wait(load=3)``. Fields that are 0 are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from ...support.errors import UsageError
from .describe import HOST, Chip, CopyEngine, Instruction, Listing

MAGIC = b"TWCHIP1\n"
#: bits of a copy's counts, of the bytes of a run, of places in the host's memory and of strides there
COUNT, RUN, PLACE, STRIDE = 16, 16, 32, 28


@dataclass(frozen=True)
class Bits:
    """A field of an instruction: `parts` numbers of `bits` each."""

    name: str
    bits: int
    parts: int = 1
    signed: bool = False

    def check(self, value: int, where: str) -> None:
        low, high = (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.signed else (0, (1 << self.bits) - 1)
        if not low <= value <= high:
            raise UsageError(f"{where}: {self.name} is {value}, it must be {low} to {high}", stage="assemble")


@dataclass(frozen=True)
class InstructionFormat:
    """The layout of one instruction of an engine; `meaning` is None for a copy."""

    engine: str
    opcode: int
    name: str
    fields: tuple[Bits, ...]
    meaning: Instruction | None = None

    @cached_property
    def width(self) -> int:
        """Bits of all fields together."""
        return sum(f.bits * f.parts for f in self.fields)


@dataclass(frozen=True)
class Issue:
    """An instruction in a program: its form, the counts it waits for by engine, and its fields' numbers, each a tuple
    of its parts."""

    form: InstructionFormat
    values: Mapping[str, tuple[int, ...]]
    waits: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        """A field of one part."""
        return self.values[name][0]

    @cached_property
    def counts(self) -> dict[str, int]:
        """What `cycles` and the like are asked with: the counts of the dimensions, and the fields."""
        meaning = self.form.meaning
        if meaning is None:
            return {}
        found = {}
        for d in meaning.dims:
            found[d.name] = 1
            for part in self.values[d.name]:
                found[d.name] *= part
        return found | {f.name: self[f.name] for f in meaning.fields}


@dataclass(frozen=True)
class ChipProgram:
    """An assembled kernel: its name, and the streams by engine. `arguments` are the bytes of its parameters."""

    name: str
    streams: dict[str, tuple[Issue, ...]]
    arguments: tuple[int, ...] = ()

    def issues(self) -> Iterator[Issue]:
        for stream in self.streams.values():
            yield from stream


class Formats:
    """The forms of all instructions of a chip."""

    def __init__(self, chip: Chip) -> None:
        self.chip, self.listing = chip, Listing.of(chip)
        self.engines = tuple(self.listing.engines)
        self.forms: dict[str, tuple[InstructionFormat, ...]] = {}
        for name, engine in self.listing.engines.items():
            if isinstance(engine, CopyEngine):
                self.forms[name] = (InstructionFormat(name, 0, "copy", self._copy(engine)),)
            else:
                own = [i for i in self.listing.instructions.values() if i.engine == name]
                self.forms[name] = tuple(
                    InstructionFormat(name, n, i.name, self._compute(i), i) for n, i in enumerate(own)
                )

    def form(self, name: str) -> InstructionFormat:
        """That of an instruction."""
        return next(f for fs in self.forms.values() for f in fs if f.name == name and f.meaning is not None)

    def routes(self, engine: str) -> tuple[tuple[str, str], ...]:
        """The pairs of memories of a copy engine, by `route`."""
        e = self.listing.engines[engine]
        assert isinstance(e, CopyEngine)
        return tuple(product(e.sources, e.targets))

    def words(self, engine: str) -> int:
        """32-bit words of an instruction of an engine."""
        header = self._opcode(engine) + self.chip.count_bits * (len(self.engines) - 1)
        return -(-(header + max((f.width for f in self.forms[engine]), default=0)) // 32)

    def _opcode(self, engine: str) -> int:
        return (len(self.forms[engine]) - 1).bit_length()

    def _copy(self, e: CopyEngine) -> tuple[Bits, ...]:
        routes = tuple(product(e.sources, e.targets))
        on_chip = [self.listing.memories[m] for m in (*e.sources, *e.targets) if m != HOST]
        at = max((m.words - 1).bit_length() for m in on_chip)
        fields = [Bits("route", max((len(routes) - 1).bit_length(), 1))]
        if e.fill:
            fields += [Bits("fill", 1), Bits("value", 8)]
        inside = HOST not in (*e.sources, *e.targets)
        if inside:
            fields += [Bits("from", at), Bits("from_stride", at + 1, e.levels, signed=True)]
        else:
            arguments = (self.chip.arguments - 1).bit_length()
            fields += [Bits("arg", arguments), Bits("host", PLACE), Bits("host_stride", STRIDE, e.levels, signed=True)]
        return (
            *fields,
            Bits("at", at),
            Bits("stride", at + 1, e.levels, signed=True),
            Bits("count", COUNT, e.levels),
            Bits("run", RUN),
        )

    def _compute(self, i: Instruction) -> tuple[Bits, ...]:
        fields = [Bits(d.name, d.limit.bit_length(), max(d.levels, 1)) for d in i.dims]
        for o in i.operands:
            at = (self.listing.memories[o.memory].words - 1).bit_length()
            fields.append(Bits(o.name, at))
            levels = 0 if o.dense else sum(i.dim(d).levels for d in o.dims[:-1])
            if levels:
                fields.append(Bits(f"{o.name}_stride", at + 1, levels, signed=True))
        if i.accumulates:
            fields.append(Bits("start", 1))
        return (*fields, *[Bits(f.name, f.bits, signed=f.signed) for f in i.fields])

    # ---- bits ----

    def encode(self, issue: Issue) -> bytes:
        """One instruction; UsageError for a number that its field cannot hold."""
        form, at, bits = issue.form, 0, 0
        for f, numbers in self._numbers(issue):
            for n in numbers:
                f.check(n, f"{form.engine}: {form.name}")
                bits |= (n & ((1 << f.bits) - 1)) << at
                at += f.bits
        return bits.to_bytes(4 * self.words(form.engine), "little")

    def header(self, engine: str) -> list[Bits]:
        waits = [Bits(e, self.chip.count_bits) for e in self.engines if e != engine]
        return [Bits("opcode", self._opcode(engine)), *waits]

    def _numbers(self, issue: Issue) -> Iterator[tuple[Bits, tuple[int, ...]]]:
        opcode, *waits = self.header(issue.form.engine)
        yield opcode, (issue.form.opcode,)
        for w in waits:
            yield w, (issue.waits.get(w.name, 0),)
        for f in issue.form.fields:
            yield f, issue.values[f.name]

    def decode(self, engine: str, data: bytes) -> Issue:
        """The inverse of `encode`; UsageError for an opcode that there is not."""
        bits = int.from_bytes(data, "little")

        def take(f: Bits) -> tuple[int, ...]:
            nonlocal bits
            out = []
            for _ in range(f.parts):
                n = bits & ((1 << f.bits) - 1)
                bits >>= f.bits
                out.append(n - (1 << f.bits) if f.signed and n >> f.bits - 1 else n)
            return tuple(out)

        opcode, *waits = self.header(engine)
        number = take(opcode)[0]
        if number >= len(self.forms[engine]):
            raise UsageError(f"engine {engine} has no instruction {number}", stage="disassemble")
        waited = {w.name: n for w in waits if (n := take(w)[0])}
        form = self.forms[engine][number]
        return Issue(form, {f.name: take(f) for f in form.fields}, waited)

    # ---- programs ----

    def assemble(self, program: ChipProgram) -> bytes:
        """The binary: a line of JSON (chip, parameters, counts), then the streams."""
        head = {
            "chip": self.chip.name,
            "parameters": asdict(self.chip),
            "name": program.name,
            "arguments": program.arguments,
            "streams": {e: len(s) for e, s in program.streams.items()},
        }
        body = b"".join(self.encode(i) for i in program.issues())
        return MAGIC + json.dumps(head).encode() + b"\n" + body

    def disassemble(self, data: bytes) -> ChipProgram:
        """The program of a binary; UsageError if it is none, or of another chip."""
        if not data.startswith(MAGIC):
            raise UsageError("this is no program of a chip", stage="disassemble")
        line, _, body = data[len(MAGIC) :].partition(b"\n")
        try:
            head = json.loads(line)
            chip, given, name = (head[k] for k in ("chip", "parameters", "name"))
            counts, arguments = dict(head["streams"]), tuple(head["arguments"])
        except (ValueError, KeyError, TypeError) as e:
            raise UsageError("the first line of the program is damaged", stage="disassemble", hint=str(e)) from None
        mine = json.loads(json.dumps(asdict(self.chip)))
        if (chip, given) != (self.chip.name, mine):
            raise UsageError(
                f"the program {name} is for {chip} with {given}",
                stage="disassemble",
                hint=f"this is {self.chip.name} with {mine}",
            )
        if size := sum(4 * self.words(e) * n for e, n in counts.items()) - len(body):
            ends = "ends too early" if size > 0 else f"goes on for {-size} bytes behind its end"
            raise UsageError(f"the program {name} {ends}", stage="disassemble")
        streams, at = {}, 0
        for engine, count in counts.items():
            size = 4 * self.words(engine)
            end = at + size * count
            streams[engine] = tuple(self.decode(engine, body[i : i + size]) for i in range(at, end, size))
            at = end
        return ChipProgram(name, streams, arguments)

    # ---- text ----

    def text(self, program: ChipProgram) -> str:
        """Readable text of a program, which `parse` reads back."""
        lines = [f".program {program.name} arguments={','.join(map(str, program.arguments))}"]
        return "\n".join(lines + [self.line(i) for i in program.issues()]) + "\n"

    def line(self, issue: Issue) -> str:
        empty = fields_of(issue.form, {})
        said = {f.name: issue.values[f.name] for f in issue.form.fields}
        parts = [f"{n}={','.join(map(str, v))}" for n, v in said.items() if any(v) or v != empty[n]]
        if issue.waits:
            parts.append(f"wait({', '.join(f'{e}={n}' for e, n in issue.waits.items())})")
        return f"{issue.form.engine}: {issue.form.name} {' '.join(parts)}".rstrip()

    def parse(self, text: str) -> ChipProgram:
        """A program from its text; UsageError with the line that is wrong."""
        name, arguments = "", tuple[int, ...]()
        streams: dict[str, list[Issue]] = {e: [] for e in self.engines}
        for number, line in enumerate(text.splitlines(), 1):
            line = line.partition("#")[0].strip()
            try:
                if line.startswith(".program"):
                    _, name, sizes = line.split()
                    arguments = tuple(int(n) for n in sizes.partition("=")[2].split(",") if n)
                elif line:
                    issue = self._parse_line(line)
                    self.encode(issue)
                    streams[issue.form.engine].append(issue)
            except (ValueError, KeyError) as e:
                raise UsageError(f"line {number}: cannot read {line!r}", stage="assemble", hint=str(e)) from None
            except UsageError as e:
                raise UsageError(f"line {number}: {e.message}", stage="assemble", hint=e.hint) from None
        return ChipProgram(name, {e: tuple(s) for e, s in streams.items()}, arguments)

    def _parse_line(self, line: str) -> Issue:
        engine, _, rest = line.partition(":")
        if engine not in self.forms:
            raise UsageError(f"there is no engine {engine!r}", hint=f"engines: {', '.join(self.engines)}")
        waits = {}
        if (found := re.search(r"wait\((.*)\)$", rest)) is not None:
            waits = {k.strip(): int(v) for k, v in (p.split("=") for p in found[1].split(","))}
            rest = rest[: found.start()]
        others = [e for e in self.engines if e != engine]
        if unknown := [e for e in waits if e not in others]:
            raise UsageError(f"{engine} cannot wait for {unknown[0]!r}", hint=f"it can for {', '.join(others)}")
        mnemonic, *parts = rest.split()
        form = next((f for f in self.forms[engine] if f.name == mnemonic), None)
        if form is None:
            known = ", ".join(f.name for f in self.forms[engine])
            raise UsageError(f"engine {engine} has no {mnemonic!r}", hint=f"it has {known}")
        given = {k: tuple(int(n) for n in v.split(",")) for k, _, v in (p.partition("=") for p in parts)}
        if len(given) < len(parts):
            raise UsageError(f"{mnemonic} has a field twice")
        if unknown := [k for k in given if k not in {f.name for f in form.fields}]:
            raise UsageError(
                f"{mnemonic} has no field {unknown[0]!r}", hint=f"fields: {', '.join(f.name for f in form.fields)}"
            )
        return Issue(form, fields_of(form, given), waits)


def fields_of(form: InstructionFormat, given: Mapping[str, Sequence[int] | int]) -> dict[str, tuple[int, ...]]:
    """All fields of a form: those given, from the innermost part on, and 0 (counts: 1) for what is left out."""
    dims = {d.name for d in form.meaning.dims} if form.meaning else {"count"}
    values: dict[str, tuple[int, ...]] = {}
    for f in form.fields:
        v: Any = given.get(f.name, ())
        numbers = (v,) if isinstance(v, int) else tuple(v)
        missing = f.parts - len(numbers)
        if missing < 0:
            raise UsageError(f"{form.name}: {f.name} has {f.parts} parts, not {len(numbers)}", stage="assemble")
        values[f.name] = (1 if f.name in dims else 0,) * missing + numbers
    return values
