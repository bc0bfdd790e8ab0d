"""How compiled kernels in C are stored in a package: a JSON header, then the source."""

from __future__ import annotations

import re

from ...codegen.clike.function import ClikeFunction
from ...support.sizes import highest

#: what stands between the facts of a kernel and its text
_MARK = "/* --- */\n"


def pack_function(f: ClikeFunction) -> bytes:
    """A kernel as it lies in a package."""
    head = [f.name, str(highest(f.scratch)), str(int(f.needs_math)), " ".join(f.helpers)]
    head += [f"{name}:{kind}:{int(written)}" for name, kind, written in f.params]
    head += [f"{name}:size" for name in f.sizes]
    return ("\n".join(head) + "\n" + _MARK + f.body).encode()


def unpack_function(data: bytes) -> ClikeFunction:
    """The inverse of `pack_function`; ValueError if the text is another."""
    head, mark, body = data.decode().partition(_MARK)
    name, scratch, needs_math, helpers, *params = head.splitlines()
    if not mark or not re.fullmatch(r"\w+", name):
        raise ValueError("not a kernel in C")
    parsed = [p.split(":") for p in params]
    sizes = tuple(p[0] for p in parsed if p[1:] == ["size"])
    return ClikeFunction(
        name,
        tuple((n, kind, written == "1") for n, kind, written in parsed[: len(parsed) - len(sizes)]),
        body,
        int(scratch),
        tuple(helpers.split()),
        needs_math == "1",
        sizes,
    )
