"""Error messages for the command line: option names of Python rewritten as flags.

inputs={'x': (1, 128)}   ->  --shape x=1x128
precision='auto'         ->  --precision auto
"""

from __future__ import annotations

import re

from ..support.option_info import OptionInfo
from .common import _FIELDS, _flag_name

#: arguments of functions that are flags of the same name
_OTHERS = ("trials", "minutes")
_OPTION = re.compile(rf"\b({'|'.join((*_FIELDS, *_OTHERS))})=(\{{[^{{}}]*\}}|'[^']*'|[\w.]*)")
#: one input of ``inputs={...}``: its name and sizes, or words that stand for them
_INPUT = re.compile(r"\{(?:'([^']*)'|\w+): (?:\(([^()]*)\)|\w+)\}")


def in_flags(text: str) -> str:
    """A message or hint with flags where it has options of `tilewright.compile`.

    >>> in_flags("give shapes: inputs={'x': (1, ...)}; or pass specialize='never'")
    'give shapes: --shape x=1x...; or pass --specialize never'
    >>> in_flags("buckets={name: sizes} and verify=True")
    '--buckets NAME=32,64 and --verify'
    """
    return _OPTION.sub(lambda m: _flag(m[1], m[2]), text)


def _flag(name: str, value: str) -> str:
    if name in _OTHERS:
        return f"--{name} {value}".rstrip()
    field = _FIELDS[name]
    flag = f"--{_flag_name(field)}"
    if isinstance(field.default, bool):
        return flag if value == str(not field.default) else f"no {flag}"
    if name == "inputs" and (m := _INPUT.fullmatch(value)):
        return f"{flag} {m[1] or 'NAME'}={(m[2] or '1, 128').replace(', ', 'x')}"
    if value.startswith("{"):
        value = OptionInfo.of(field).flag.metavar or ""
    return f"{flag} {value.strip(chr(39))}".rstrip()


__all__ = ["in_flags"]
