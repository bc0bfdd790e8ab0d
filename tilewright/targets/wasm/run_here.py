"""Runs WebAssembly here, in a Node process with the runner of the exported site (`node/host.mjs`)."""

from __future__ import annotations

import ctypes
import json
import shutil
import struct
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...program.package import Package
from ...program.states import StateBuffer, StateBuffers, StateOnDevice
from ...support.errors import PackageError, UsageError
from ..base import Context, ProgramRunner
from .description import WasmDescription
from .files import ALONE, MODULES, RUNNER, SITE, THREADS, manifest, weights
from .module import MOST_THREADS, link

HOST = Path(__file__).with_name("node")
#: the first version that has 128-bit vectors, and that with relaxed ones without asking for them
OLDEST, RELAXED_SINCE = 16, 21


@lru_cache(maxsize=1)
def node() -> tuple[str, int]:
    """The path of Node and its version; PackageError if there is none that is new enough."""
    path = shutil.which("node") or shutil.which("nodejs")
    hint = f"install Node {OLDEST} or later (apt install nodejs), or export the model and open it in a browser"
    if path is None:
        raise PackageError("running WebAssembly needs Node, which was not found", stage="load", hint=hint)
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
    number = said.removeprefix("v").partition(".")[0]
    if not number.isdigit() or int(number) < OLDEST:
        raise PackageError(f"{path} is Node {said or 'of unknown version'}, which is too old", stage="load", hint=hint)
    return path, int(number)


class WasmRunner(ProgramRunner):
    """A package; it is linked when it is first run, so that code can be made where no linker and no Node are."""

    seconds_per_tick = 1e-3

    def __init__(self, package: Package, threads: int, states: StateBuffers) -> None:
        self.package, self.states = package, states
        self.threads = min(threads, MOST_THREADS) if package.program.parallel else 1
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def backend(self) -> str:
        return ALONE if self.threads == 1 else THREADS

    def context(self) -> WasmContext:
        if self._folder is None:
            self._folder = self.written()
        return WasmContext(self, Path(self._folder.name))

    def written(self) -> tempfile.TemporaryDirectory[str]:
        """A folder with what the runner reads."""
        module = link(self.package, threads=self.threads > 1)
        folder = tempfile.TemporaryDirectory(prefix="tilewright-wasm-")
        place = Path(folder.name)
        (place / MODULES[self.backend]).write_bytes(module.data)
        (place / "model.json").write_text(json.dumps(manifest(self.package, {self.backend: module})))
        with (place / "weights.bin").open("wb") as file:
            file.writelines(weights(self.package))
        for name in RUNNER:
            shutil.copyfile(SITE / name, place / name)
        (place / "package.json").write_text('{"type": "module"}\n')
        return folder

    def command(self, folder: Path) -> list[str]:
        path, version = node()
        relaxed = WasmDescription.from_json(self.package.description).relaxed
        flags = ["--experimental-wasm-relaxed-simd"] if relaxed and version < RELAXED_SINCE else []
        return [path, *flags, str(HOST / "host.mjs"), str(folder), self.backend, str(self.threads)]

    def timed(self) -> WasmRunner:
        raise UsageError(
            "WebAssembly has no clock: it cannot be profiled here",
            stage="run",
            hint="use the profiler of a browser: the functions have the names of the kernels",
        )


class WasmContext(Context):
    """A process of Node with the model in its memory."""

    def __init__(self, runner: WasmRunner, folder: Path) -> None:
        self._runner = runner  # which holds the folder
        p = runner.package.program
        self.sizes = [t.nbytes for t in p.inputs], [t.nbytes for t in p.outputs]
        #: the time of the last run, without the way to the process and back
        self.milliseconds = 0.0
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen(runner.command(folder), **pipes)
        self._finalizer = weakref.finalize(self, _end, self._process)
        self._read(1)
        hosts = runner.states.buffers
        self._states = [StateInNode(self, i, h) for i, h in enumerate(hosts)]

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: object = None) -> None:
        given, wanted = self.sizes
        for state in self._states:
            state.bring()
        self._send(0, *(ctypes.string_at(a, n) for a, n in zip(inputs, given, strict=True)))
        (self.milliseconds,) = struct.unpack("<d", self._read(8))
        for address, size in zip(outputs, wanted, strict=True):
            ctypes.memmove(address, self._read(size), size)
        for state in self._states:
            state.moved = True

    def fetch(self, state: int, array: np.ndarray) -> None:
        """Read the value of a state into an array."""
        self._send(2 * state + 1)
        array.view(np.uint8).reshape(-1)[...] = np.frombuffer(self._read(array.nbytes), np.uint8)

    def put(self, state: int, array: np.ndarray) -> None:
        """Give a state a value."""
        self._send(2 * state + 2, array.tobytes())

    def _send(self, what: int, *data: bytes) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(struct.pack("<I", what))
            for part in data:
                pipe.write(part)
            pipe.flush()
        except OSError:
            pass  # it has ended, and says why when its answer is read

    def _read(self, size: int) -> bytes:
        """So many bytes of the process; PackageError with its last words if it has ended."""
        assert self._process.stdout is not None and self._process.stderr is not None
        data: bytes = self._process.stdout.read(size)
        if len(data) < size:
            words = self._process.stderr.read().decode(errors="replace").strip()
            raise PackageError(f"WebAssembly failed in Node: {words[:1500] or 'it ended'}", stage="run")
        return data

    def close(self) -> None:
        self._finalizer()


class StateInNode(StateOnDevice):
    """A state in the memory of a Node process (`program.states.StateOnDevice`). moved: a run has written it since the
    host has seen it. ahead: the host may have another value, for a view of it was given out."""

    def __init__(self, context: WasmContext, number: int, host: StateBuffer) -> None:
        self._context, self._number, self._host = context, number, host
        self.moved, self._ahead = False, False

    def bring(self) -> None:
        """Before a run: its value, from wherever another program of the same states has left it."""
        known = self._host.on_device
        if known is not self:
            if known is not None:
                known.fetch(self._host.array)
            self._host.on_device, self._ahead = self, True
        if self._ahead:
            self._context.put(self._number, self._host.array)
            self._ahead = False

    def fetch(self, array: np.ndarray) -> None:
        if self.moved:
            self._context.fetch(self._number, array)
        self.moved, self._ahead = False, True

    def replaced(self) -> None:
        self.moved, self._ahead = False, True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
