"""Checks of untrusted MLIR text, before parsing: the parser recurses into everything that is nested and ends
the process where the stack does, and its reader of bytecode trusts the bytes.

Text is looked at here for how deep it is nested. Bytecode becomes text in a process of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys

from ...support import child_processes
from ...support.errors import ModelError

#: brackets inside of each other, of all kinds together (real models have about twenty)
MAX_NESTING = 256
#: operators of affine expressions in one line, and signs one after the other: simplifying them is recursive, too
MAX_AFFINE_OPERATORS = 1000
MAX_SIGNS = 32
#: until a process has read some bytecode
SECONDS = 120

_SKIPPED = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_BRACKETS = re.compile(r"->|[<>]=|[()\[\]{}<>]")
_AFFINE = re.compile(r"\b(?:mod|floordiv|ceildiv)\b")
_SIGNS = re.compile(rf"-(?:\s*-){{{MAX_SIGNS}}}")
_MESH = re.compile(r"^\s*sdy\.mesh @.*$", re.M)
_CONSTRAINT = re.compile(r"^(\s*%\S+ = )sdy\.sharding_constraint (%\S+) <.*> : ", re.M)
_SHARDING = re.compile(r"(?:, )?\bsdy\.\w+ = #sdy\.\w+<")
_READ = "from tilewright.frontends.mlir.text import serve; serve()"


def checked(text: str, source: str) -> str:
    """The text; ModelError if it is nested deeper than MLIR's parser bears.

    >>> checked("module {}", "m.mlir")
    'module {}'
    """
    plain = _SKIPPED.sub('""', text)
    depth = deepest = 0
    for found in _BRACKETS.finditer(plain):
        bracket = found.group()
        if bracket in "([{<":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in ")]}>":
            depth -= 1
    why = ""
    if deepest > MAX_NESTING:
        why = f"brackets are nested {deepest} deep, at most {MAX_NESTING} are read"
    elif _SIGNS.search(plain):
        why = f"more than {MAX_SIGNS} signs follow each other"
    elif any(len(_AFFINE.findall(line)) > MAX_AFFINE_OPERATORS for line in plain.splitlines()):
        why = f"an affine expression has more than {MAX_AFFINE_OPERATORS} operators"
    if why:
        raise ModelError(f"{source} is not read: {why}", stage="parse")
    return without_shardings(text)


def without_shardings(text: str) -> str:
    """The text without what JAX says, in a dialect of its own (Shardy), on how tensors are divided among devices: on
    one device it changes nothing.

    >>> without_shardings('  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}]> : tensor<3xf32>')
    '  %1 = stablehlo.optimization_barrier %0 : tensor<3xf32>'
    """
    if "sdy." not in text:
        return text
    text = _MESH.sub("", text)
    text = _CONSTRAINT.sub(r"\1stablehlo.optimization_barrier \2 : ", text)
    kept, at = [], 0
    for found in _SHARDING.finditer(text):
        kept.append(text[at : found.start()])
        at, depth = found.end(), 1
        while depth and at < len(text):
            if text[at] == "<" or (text[at] == ">" and text[at - 1] != "-"):
                depth += 1 if text[at] == "<" else -1
            at += 1
        if not found.group().startswith(", ") and text.startswith(", ", at):
            at += 2
    return "".join([*kept, text[at:]])


def from_bytecode(data: bytes, source: str) -> str:
    """The text of bytecode, MLIR's own or StableHLO's portable form; ModelError if it is damaged."""
    try:
        child = child_processes.start(_READ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as e:
        raise ModelError(
            f"{source} is bytecode, which is read in a process of its own, and none can be started: {e}",
            stage="parse",
            hint="convert it to text with mlir-opt",
        ) from None
    with child:
        try:
            answer, _ = child.communicate(data, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            raise ModelError(f"{source} is not valid MLIR: reading it takes too long", stage="parse") from None
        except BaseException:  # interrupted
            child.kill()
            raise
    if child.returncode or answer[:1] not in (b"+", b"-"):
        raise ModelError(f"{source} is not valid MLIR: its bytecode ended the process that read it", stage="parse")
    text = answer[1:].decode(errors="replace")
    if answer[:1] == b"-":
        error = ModelError(f"{source} is not valid MLIR: {text}", stage="parse")
        if b"\0sdy" in data:
            error.hint = (
                "it has operators of Shardy (sdy), which are read in text only: give the jax.export.Exported itself, "
                "its mlir_module(), or export with jax.config.update('jax_use_shardy_partitioner', False)"
            )
        raise error
    return checked(text, source)


def serve() -> None:
    """In the process: bytecode on stdin; to stdout "+" and the text, or "-" and what is wrong."""
    from ...ir.context import parse

    try:
        module = parse(sys.stdin.buffer.read())
        answer = "+" + module.operation.get_asm(enable_debug_info=True)
    except ModelError as e:
        answer = "-" + e.message.partition("is not valid MLIR: ")[2]
    except Exception as e:
        answer = f"-{type(e).__name__}: {e}"
    sys.stdout.buffer.write(answer.encode(errors="replace"))
