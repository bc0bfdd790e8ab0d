"""Type checks of a chip description: its four methods return tuples of the classes of `describe`, whose fields have the
declared types."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import numpy as np

from .describe import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Field, Instruction, Operand

Fail = Callable[..., NoReturn]
#: what each method of a chip gives, and what parts of it are made of
_PARTS: dict[str, type] = {
    "spaces": ChipMemory,
    "copy_engines": CopyEngine,
    "compute_engines": ComputeEngine,
    "instructions": Instruction,
}
#: what else will do where a type is asked for
_ALSO: dict[type, tuple[type, ...]] = {int: (np.integer,), float: (int, np.integer, np.floating)}


def typed(chip: Chip, fail: Fail) -> None:
    """Call `fail` for the first part of a description that is not of its type."""
    cls = type(chip)
    own = [n for n, t in vars(cls).get("__annotations__", {}).items() if "ClassVar" not in str(t)]
    if is_dataclass(cls) and (new := [n for n in own if n not in {f.name for f in fields(cls)}]):
        fail(f"{new[0]!r} is no parameter of {cls.__name__}", f"put @dataclass(frozen=True) above class {cls.__name__}")
    given = ", ".join(f"{f.name}={getattr(chip, f.name)!r}" for f in fields(chip))
    for method, kind in _PARTS.items():
        try:
            made = getattr(chip, method)()
        except NotImplementedError:
            missing = [p for p in _PARTS if getattr(cls, p) is getattr(Chip, p)]
            if method not in missing:
                raise
            fail(f"{cls.__name__} does not say its {', '.join(missing)}", "write these methods")
        except Exception as e:
            fail(f"{method}() raised {type(e).__name__}: {e}", f"the chip's parameters: {given}" if given else "")
        _listed(made, kind, f"{method}()", fail, "")
        for part in made:
            _part(part, f"{_word(part)} {part.name}", fail, f"the chip's parameters: {given}" if given else "")


def _listed(made: object, kind: type, what: str, fail: Fail, where: str) -> None:
    """That it is a tuple or a list of one kind."""
    name = kind.__name__
    if not isinstance(made, (tuple, list)):
        fail(f"{what} is one {type(made).__name__}, not a tuple of {name}", "one item needs a comma: (item,)", where)
    if wrong := [x for x in made if not isinstance(x, kind)]:
        fail(f"{what} has a {type(wrong[0]).__name__} ({wrong[0]!r}) in it, not only {name}", where=where)


def _part(part: Any, where: str, fail: Fail, hint: str) -> None:
    """The fields of a word of a description, and of the words in it."""
    hints = get_type_hints(type(part))
    for f in fields(part):
        value, kind = getattr(part, f.name), hints[f.name]
        if get_origin(kind) is tuple:
            _listed(value, get_args(kind)[0], f.name, fail, where)
            for inner in value if is_dataclass(get_args(kind)[0]) else ():
                _part(inner, f"{where}, {_word(inner)} {inner.name}", fail, hint)
        elif kind in (int, float, str, bool) and not isinstance(value, (kind, *_ALSO.get(kind, ()))):
            fail(f"{f.name} is {value!r} ({type(value).__name__}), not {_a(kind)}", hint, where)
        elif callable(getattr(type(part), f.name, None)) and not callable(value):
            fail(f"{f.name} is {value!r}, not a function", f"{f.name}=lambda f: {value!r}", where)


def _word(part: object) -> str:
    """What a part of a description is called."""
    for kind, word in ((ChipMemory, "memory"), (Instruction, "instruction"), (Dim, "dimension"), (Operand, "operand")):
        if isinstance(part, kind):
            return word
    return "field" if isinstance(part, Field) else "engine"


def _a(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a name", bool: "True or False"}[kind]


def arguments(i: Instruction, fail: Fail, where: str) -> None:
    """That the body and the functions of costs can be called with what they are given."""
    operands, names = [o.name for o in i.inputs], [f.name for f in i.fields]
    calls: Iterable[tuple[str, Any, Sequence[str], Sequence[str]]] = [
        ("body", i.body, operands, names),
        *((n, getattr(i, n), ("counts",), ()) for n in ("cycles", "latency", "energy")),
    ]
    for what, function, positions, keywords in calls:
        if not callable(function):
            fail(f"{what} is {function!r}, not a function", f"{what}=lambda f: {function!r}", where)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of a function of C
            continue
        try:
            signature.bind(*positions, **dict.fromkeys(keywords))
        except TypeError as e:
            takes = ", ".join(map(str, signature.parameters.values())) or "nothing"
            given = ", ".join([*positions, *(f"{k}=" for k in keywords)]) or "nothing"
            hint = "operands that are read or accumulated come first, in order, then all fields by name"
            fail(f"its {what} takes ({takes}) and is given ({given}): {e}", hint if what == "body" else "", where)


__all__ = ["arguments", "typed"]
