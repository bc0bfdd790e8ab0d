"""Metadata of compile options: the record in every field of `Options` (type, values, help, command-line flag).

The command line, the key of the package cache and what the file of a model with open shapes keeps are made from it
(docs/add_an_option.md). Here too: which values an annotation allows, and how texts of the command line become values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from .errors import UsageError
from .sizes import Dim


class Effect(Enum):
    """What an option does to a compilation, and so what it means for the package cache."""

    RESULT = "decides what is compiled: it is part of the key"
    LOOK = "asks to see or to check the stages: they run, nothing is taken from the cache"
    WORK = "says how the compiler works: the result is the same"


@dataclass(frozen=True)
class Flag:
    """How an option stands on the command line.

    `name` is written without dashes in front; by default it is that of the field, with ``no-`` before it for a switch
    that is on by default. `help` is what ``--help`` says, by default the option's `doc`. With `repeat` the flag may be
    given several times. `parse` makes the value of the text (with `repeat`: of the list of texts); it is called with
    the flag and the text, and raises a UsageError that names the flag.
    """

    name: str = ""
    metavar: str | None = None
    help: str = ""
    repeat: bool = False
    parse: Callable[[str, Any], object] | None = None


@dataclass(frozen=True)
class OptionInfo:
    """Everything about an option but its name, type and default, which the field has.

    `kept`: the file of a model with open shapes has it, for the programs that are made after loading. `choices`: the
    values it may have. `most`: the largest. `counts`: from the `Options`, what the key of the cache holds in place of
    the plain value.
    """

    doc: str
    effect: Effect
    kept: bool
    flag: Flag
    choices: tuple[str, ...] = ()
    most: int | None = None
    counts: Callable[[Any], object] | None = None

    @staticmethod
    def of(f: Field[object]) -> OptionInfo:
        """What a field of `Options` says."""
        info: OptionInfo = f.metadata["option"]
        return info


def option(
    default: object,
    doc: str,
    *,
    effect: Effect,
    kept: bool,
    flag: Flag | None = None,
    choices: tuple[str, ...] = (),
    most: int | None = None,
    counts: Callable[[Any], object] | None = None,
) -> Any:
    """A field of `Options`; the arguments are those of `OptionInfo`."""
    info = OptionInfo(doc, effect, kept, flag or Flag(), choices, most, counts)
    return field(default=default, metadata={"option": info})


# ---- values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionKind:
    """The values that an annotation allows apart from None, in `words` for errors, and how the command line parses the
    `text` of one."""

    accepts: Callable[[object], bool]
    words: str
    text: type = str


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


#: by the annotation of the field
KINDS: dict[str, OptionKind] = {
    "str": OptionKind(lambda v: isinstance(v, str), "a string"),
    "str | None": OptionKind(lambda v: isinstance(v, str), "a string or None"),
    "str | os.PathLike[str] | None": OptionKind(lambda v: isinstance(v, (str, os.PathLike)), "a path or None"),
    "bool": OptionKind(lambda v: isinstance(v, bool), "True or False", bool),
    "int | None": OptionKind(_whole, "an integer of at least 1 or None", int),
    "float | None": OptionKind(_positive, "a positive number or None", float),
    "Mapping[str, Any] | None": OptionKind(lambda v: isinstance(v, Mapping), "a dict or None"),
    "tuple[str, ...]": OptionKind(lambda v: isinstance(v, (tuple, list)), "a list of stage names"),
}


def check(f: Field[object], value: object) -> None:
    """UsageError if an option cannot have this value."""
    info, annotation = OptionInfo.of(f), str(f.type)
    kind = KINDS[annotation]
    if value is None and annotation.endswith("| None"):
        return
    if not kind.accepts(value):
        raise UsageError(f"option {f.name!r} must be {kind.words}, not {value!r}")
    if info.most is not None and isinstance(value, int) and value > info.most:
        raise UsageError(f"option {f.name!r} is {value}, it must be at most {info.most}")
    if info.choices and value not in info.choices:
        hint = f"choose from {', '.join(info.choices)}"
        raise UsageError(f"option {f.name!r} is {value!r}, which is not available", hint=hint)


def bucket_sizes(given: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The option `buckets` with the sizes of every dimension once, in order; UsageError for what are no sizes.

    >>> bucket_sizes({"seq": [64, 32, 64]})
    {'seq': (32, 64)}
    """
    for name, sizes in given.items():
        listed = isinstance(sizes, (list, tuple)) and len(sizes) > 0
        if not isinstance(name, str) or not listed or not all(_whole(n) and n < 1 << 47 for n in sizes):
            raise UsageError(f"option 'buckets' has {sizes!r} for {name!r}: expected a list of sizes, such as [32, 64]")
    return {name: tuple(sorted(set(sizes))) for name, sizes in given.items()}


def check_pad(given: Mapping[str, object], buckets: Mapping[str, object] | None) -> None:
    """UsageError if the option `pad` has something else than numbers, or nothing is padded."""
    for name, number in given.items():
        if not isinstance(number, (int, float)):
            raise UsageError(f"option 'pad' has {number!r} for {name!r}: expected a number")
    if given and not buckets:
        raise UsageError("option 'pad' says what inputs are padded with, and none is without option 'buckets'")


# ---- texts of the command line -------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Bytes from ``500M``, ``2G``, ``1048576``; ValueError for what is none."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = float(text[:-1] if scale > 1 else text)
    if not 0 <= number < 1 << 50:
        raise ValueError("must not be negative")
    return int(number * scale)


def number_of_bytes(flag: str, text: str) -> int:
    """
    >>> number_of_bytes("--arena-limit", "128K")
    131072
    """
    try:
        return parse_size(text)
    except ValueError as e:
        raise UsageError(f"{flag} {text!r} is not a number of bytes: {e}", stage="command line") from None


def shapes(flag: str, texts: list[str]) -> dict[str, tuple[int | str | Dim, ...]]:
    """Shapes by name; UsageError for an input that has two. Dimensions stand between x, or between commas: so do those
    that are open, and formulas of them like ``past+seq``.

    >>> shapes("--shape", ["image=1x3x8x8", "scale=", "ids=batch:1..64,128"])["ids"]
    (Dim(name='batch', low=1, high=64, divisor=1), 128)
    """
    found: dict[str, tuple[int | str | Dim, ...]] = {}
    for text in texts:
        name, shape = _shape(flag, text)
        if found.setdefault(name, shape) != shape:
            both = " and ".join(",".join(map(str, s)) for s in (found[name], shape))
            both = both if ":" in both else both.replace(",", "x")
            raise UsageError(
                f"{flag} gives input {name!r} two shapes, {both}",
                stage="command line",
                hint=f"a program has one; without {flag} the model is compiled for every size that it is called with",
            )
    return found


def _shape(flag: str, text: str) -> tuple[str, tuple[int | str | Dim, ...]]:
    name, equals, dims = text.rpartition("=")
    open_ = ":" in dims
    sizes = dims.split("," if open_ or "," in dims else "x") if dims else []
    formulas = [d for d in sizes if "," in dims and re.search(r"[^\W\d]", d) and re.search(r"[-+*/]", d)]
    if not (equals and name) or not all(d.isdecimal() or ":" in d or d in formulas for d in sizes):
        raise UsageError(
            f"{flag} {text!r} is not NAME=1x3x224x224" + (", or NAME=batch:1..64,seq:1..512" if open_ else ""),
            stage="command line",
            hint=f"every dimension needs a size, or a range such as batch:1..64; without {flag}, sizes that the model "
            "leaves open stay open",
        )
    try:
        return name, tuple(Dim.parse(d) if ":" in d else d if d in formulas else int(d) for d in sizes)
    except UsageError as e:
        raise UsageError(f"{flag} {text!r}: {e.message}", stage="command line", hint=e.hint) from None


def state_pairs(flag: str, texts: list[str]) -> dict[str, str]:
    """Outputs by the inputs that they are the next values of; UsageError for an input that has two.

    >>> state_pairs("--state", ["past_key=present_key"])
    {'past_key': 'present_key'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, following = text.partition("=")
        if not (name and equals and following):
            raise UsageError(
                f"{flag} {text!r} is not INPUT=OUTPUT",
                stage="command line",
                hint=f"the output is the value that the input has in the next call: {flag} past_key=present_key",
            )
        if found.setdefault(name, following) != following:
            raise UsageError(
                f"{flag} gives input {name!r} two next values, {found[name]!r} and {following!r}", stage="command line"
            )
    return found


def bucket_texts(flag: str, texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Sizes by the name of a dimension; UsageError for what is none.

    >>> bucket_texts("--buckets", ["seq=32,64", "batch=1"])
    {'seq': (32, 64), 'batch': (1,)}
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not (equals and name) or not all(n.isdecimal() for n in sizes.split(",")):
            raise UsageError(f"{flag} {text!r} is not NAME=32,64,128", stage="command line")
        found[name] = (*found.get(name, ()), *map(int, sizes.split(",")))
    return found


def numbers(flag: str, texts: list[str]) -> dict[str, int | float]:
    """A number by the name of an input; UsageError for what is none.

    >>> numbers("--pad", ["ids=1", "bias=-inf"])
    {'ids': 1, 'bias': -inf}
    """
    found: dict[str, int | float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            found[name] = int(number) if number.lstrip("+-").isdecimal() else float(number)
        except ValueError:
            equals = ""
        if not (equals and name):
            raise UsageError(f"{flag} {text!r} is not NAME=0", stage="command line")
    return found


def devices(flag: str, texts: list[str]) -> dict[str, str]:
    """Devices by what runs there; UsageError for what is put on two.

    >>> devices("--place", ["softmax=cpu", "/head/MatMul=cuda:sm_90a"])
    {'softmax': 'cpu', '/head/MatMul': 'cuda:sm_90a'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, device = text.partition("=")
        if not (name and equals and device):
            raise UsageError(f"{flag} {text!r} is not NAME=DEVICE", stage="command line")
        if found.setdefault(name, device) != device:
            raise UsageError(f"{flag} puts {name!r} on {found[name]} and on {device}", stage="command line")
    return found


def traces(flag: str, texts: list[str]) -> dict[str, str]:
    """Traces by kernel from ``KERNEL=FILE``; UsageError for a file that cannot be read."""
    found = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise UsageError(f"{flag} {text!r} is not KERNEL=FILE", stage="command line")
        try:
            found[name] = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"cannot read the trace {file!r}: {e}", stage="command line") from None
    return found
