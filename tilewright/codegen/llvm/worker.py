"""The worker process that compiles kernels for `pool`.

It reads requests from stdin and writes answers to stdout until stdin ends. A message is two little-endian 32-bit
lengths, a JSON object and raw bytes. A request holds a kernel at level 5, or what its maker (`pool.Job`) takes: then
the answer also has what was made of it on the way. ``python -m tilewright.codegen.llvm.worker --repro FILE`` compiles
one saved kernel instead and lets LLVM's own message through.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import IO, Any

from ...support.child_processes import resident_bytes
from ...support.errors import TilewrightError
from .machine import LlvmMachine, from_message, named, to_message

REPRO_PREFIX = "// tilewright kernel 2: "


def send(stream: IO[bytes], head: Mapping[str, object], body: bytes = b"") -> None:
    text = json.dumps(head).encode()
    stream.write(struct.pack("<II", len(text), len(body)) + text + body)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """The next message, None if the other side is gone."""
    lengths = stream.read(8)
    if len(lengths) < 8:
        return None
    text_size, body_size = struct.unpack("<II", lengths)
    data = stream.read(text_size + body_size)
    if len(data) < text_size + body_size:
        return None
    return json.loads(data[:text_size]), data[text_size:]


def compile_kernel(symbol: str, mlir_text: str, machine: LlvmMachine) -> tuple[bytes, dict[str, Any]]:
    """One kernel to its object, with ``{"mlir_seconds", "llvm_seconds", "bytes"}``; CompileError if it fails."""
    from .assemble import assemble, mlir_to_llvm

    start = time.perf_counter()
    llvm_ir = mlir_to_llvm(mlir_text, symbol, machine.index_bits, machine.vector_bytes)
    middle = time.perf_counter()
    data = assemble(llvm_ir, machine)
    end = time.perf_counter()
    return data, {"mlir_seconds": middle - start, "llvm_seconds": end - middle, "bytes": len(data)}


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer compile requests until there are no more."""
    while (message := receive(requests)) is not None:
        head, body = message
        try:
            answer, payload = _answer(head, body.decode())
        except TilewrightError as e:
            answer, payload = {"ok": False, "error": e.message}, b""
        except Exception as e:  # a bug of ours must reach the parent as a message too
            answer, payload = {"ok": False, "error": f"{type(e).__name__}: {e}"}, b""
        answer["ends"] = resident_bytes() > head["memory"]
        try:
            send(answers, answer, payload)
        except BrokenPipeError:
            return
        if answer["ends"]:
            return


def compile_text(symbol: str, text: str, machine: LlvmMachine, maker: str) -> tuple[bytes, dict[str, Any], object]:
    """One kernel in the way of a job (`pool.Job`): its object, `stats`, and what its maker made, as JSON."""
    if maker:
        made, data, stats = named(maker)(text, machine)
        return data, stats, made.to_json()
    data, stats = compile_kernel(symbol, text, machine)
    return data, stats, None


def _answer(head: dict[str, Any], text: str) -> tuple[dict[str, Any], bytes]:
    data, stats, made = compile_text(head["symbol"], text, from_message(head["machine"]), head["maker"])
    return {"ok": True, "stats": stats, **({"made": made} if head["maker"] else {})}, data


def repro_text(symbol: str, mlir_text: str, machine: LlvmMachine, maker: str = "") -> str:
    """The content of a reproducer: one comment line that says how to compile it, then the kernel."""
    head = {"symbol": symbol, "machine": to_message(machine), **({"maker": maker} if maker else {})}
    return f"{REPRO_PREFIX}{json.dumps(head)}\n{mlir_text}"


def run_repro(path: str) -> int:
    """Compile a saved kernel in this process; returns the exit code."""
    with open(path, encoding="utf-8") as f:
        first, _, text = f.read().partition("\n")
    if not first.startswith(REPRO_PREFIX):
        print(f"{path} is not a saved kernel: its first line does not begin with {REPRO_PREFIX!r}", file=sys.stderr)
        return 2
    head = json.loads(first[len(REPRO_PREFIX) :])
    try:
        data, stats, _ = compile_text(head["symbol"], text, from_message(head["machine"]), head.get("maker", ""))
    except TilewrightError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    seconds = sum(v for k, v in stats.items() if k.endswith("seconds"))
    print(f"{head['symbol']} compiles: {len(data)} bytes, {seconds:.3f} s")
    return 0


def prepare(ahead: str) -> None:
    """Warm up: import and build what every kernel needs, as the module `ahead` does it."""
    from ...ir.context import context
    from . import assemble

    if ahead:
        import_module(ahead)
    context()
    assemble.prepare()


def work() -> None:
    """Be a worker."""
    # What MLIR or LLVM print to stdout must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--repro":
        return run_repro(arguments[1])
    print("usage: python -m tilewright.codegen.llvm.worker --repro FILE", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
