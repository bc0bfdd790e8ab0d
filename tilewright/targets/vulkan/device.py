"""Runs programs on Vulkan devices, through wgpu.

WebGPU's command buffers are for one submission: what is recorded are pipelines, bindings and copies, and every run
writes its commands anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...support.errors import PackageError, UsageError
from ..gpu.bindings import bindable
from ..gpu.device import BufferSlice, Dispatch, Move, Run, StepTimes
from ..gpu.device_registry import Devices
from ..gpu.failure import Kind, failure
from ..gpu.kernels import GpuKernel
from . import clock
from .clock import TimestampQueries
from .watch import Watch

if TYPE_CHECKING:
    import wgpu

HINT = "pip install 'tilewright[vulkan]', and a driver: of your GPU, or Debian's mesa-vulkan-drivers for the processor"
#: what kernels may use beyond WGSL's core, where the device has it
FEATURES = ("shader-f16", "shader-f64", "shader-int64", *clock.FEATURES)
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
)
#: bytes that sizes and offsets of copies are multiples of
WORD = 4
#: bytes of the smallest buffer
SMALLEST = 16
#: what wgpu answers to every call once a device is gone
_LOST = "device is lost"


def adapters() -> list[wgpu.GPUAdapter]:
    """All devices with a Vulkan driver, GPUs first; UsageError if there is none or wgpu is not installed."""
    try:
        import wgpu
    except ImportError:
        raise UsageError("the target vulkan needs wgpu, which is not installed", hint=HINT) from None
    # Mesa's driver for processors loads an LLVM of its own. Where MLIR comes after it, LLVM ends the process.
    from ...ir import context as context

    _no_gl()
    found = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
    if not found:
        raise UsageError("Vulkan has no device here", hint=HINT)
    order = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU")
    return sorted(found, key=lambda a: order.index(t) if (t := a.info["adapter_type"]) in order else len(order))


def _no_gl() -> None:
    """Let wgpu ask no driver of OpenGL, which gives no device of Vulkan and prints errors where there is no desktop.
    Whoever has used wgpu before has asked already."""
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    with contextlib.suppress(RuntimeError):  # there is an instance
        set_instance_extras(backends=["Primary"])


@dataclass(frozen=True)
class BoundDispatch:
    """A call with its pipeline and bindings, and the copies around it, of arguments that cannot be bound in place."""

    pipeline: wgpu.GPUComputePipeline
    group: wgpu.GPUBindGroup
    grid: tuple[int, int, int]
    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()


@dataclass
class VulkanRecording:
    """A run, the buffer by which the host reads its outputs, where they begin there, and the clock if it was timed."""

    run: Run
    steps: tuple[BoundDispatch | Move, ...]
    staging: wgpu.GPUBuffer
    places: tuple[int, ...]
    clock: TimestampQueries | None = field(default=None)


class WgpuDevice:
    """See `tilewright.targets.gpu.device.Device`. One thread at a time uses it: what goes wrong is logged by wgpu, and
    has to be told to whoever ran it."""

    def __init__(self, adapter: wgpu.GPUAdapter) -> None:
        import wgpu

        self.wgpu, self.limits = wgpu, dict(adapter.limits)
        self.name = f"{adapter.info['device']} (Vulkan)"
        self.version = str(adapter.info["description"])
        self.lost = False
        self.lock, self.watch = threading.RLock(), Watch()
        features = [f for f in FEATURES if f in adapter.features]
        self.own = adapter.request_device_sync(
            required_features=features, required_limits={n: self.limits[n] for n in _LIMITS}
        )
        self.align = max(self.limits["min-storage-buffer-offset-alignment"], WORD)
        self.pipelines: dict[str, wgpu.GPUComputePipeline] = {}
        self.layouts: dict[tuple[int, int | None], wgpu.GPUBindGroupLayout] = {}

    # ---- memory

    @property
    def largest(self) -> int:
        return int(min(self.limits["max-buffer-size"], self.limits["max-storage-buffer-binding-size"]))

    def allocate(self, nbytes: int) -> wgpu.GPUBuffer:
        size = max(_words(nbytes), SMALLEST)
        use, doing = self.wgpu.BufferUsage, f"allocating {size:,} bytes"
        if size > (most := self.limits["max-buffer-size"]):
            raise failure(self.name, doing, f"it has buffers of up to {most:,} bytes", "memory")
        with self.doing(doing):
            return self.own.create_buffer(size=size, usage=use.STORAGE | use.COPY_SRC | use.COPY_DST)

    def write(self, buffer: wgpu.GPUBuffer, data: np.ndarray) -> None:
        with self.doing(f"writing {data.nbytes:,} bytes to it"):
            self.upload(buffer, data)

    def upload(self, buffer: wgpu.GPUBuffer, data: np.ndarray, offset: int = 0) -> None:
        """Words of bytes: the last ones of a value lie in no other value's memory."""
        if data.nbytes % WORD:
            data = np.concatenate([data.view(np.uint8).reshape(-1), np.zeros(-data.nbytes % WORD, np.uint8)])
        self.own.queue.write_buffer(buffer, offset, data)

    def read(self, buffer: wgpu.GPUBuffer, out: np.ndarray) -> None:
        with self.doing(f"reading {out.nbytes:,} bytes from it"):
            whole = self.own.queue.read_buffer(buffer, 0, _words(out.nbytes))
            out[...] = np.frombuffer(whole, np.uint8, out.nbytes)

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Alone with the device; whatever wgpu says meanwhile, by an exception or in its log, is one error of ours."""
        with self.lock, self.watch.looking() as said:
            if self.lost:
                raise failure(self.name, what, "it was lost before", "lost")
            try:
                yield
            except (self.wgpu.GPUError, RuntimeError) as e:
                raise self.failure(
                    what, f"{e} {' '.join(said)}", isinstance(e, self.wgpu.GPUOutOfMemoryError)
                ) from None
            if said and not self.of_another(said):
                raise self.failure(what, " ".join(said), False)

    def failure(self, what: str, said: str, memory: bool) -> Exception:
        self.lost = self.lost or _LOST in said.lower()
        kind: Kind = "lost" if self.lost else "memory" if memory or "memory" in said.lower() else "other"
        return failure(self.name, what, said, kind)

    def of_another(self, said: Sequence[str]) -> bool:
        """Whether all that was logged is of another device that was lost, as each is whose memory is freed."""
        if not all("lost" in text.lower() for text in said):
            return False
        try:
            self.own.create_buffer(size=SMALLEST, usage=self.wgpu.BufferUsage.COPY_DST)
        except self.wgpu.GPUError:
            self.lost = True
        return not self.lost

    # ---- kernels

    def pipeline(self, kernel: GpuKernel) -> wgpu.GPUComputePipeline:
        """The driver's pipeline; PackageError if it refuses the text."""
        if kernel.text not in self.pipelines:
            try:
                module = self.own.create_shader_module(code=kernel.code)
                layout = self.own.create_pipeline_layout(bind_group_layouts=[self.layout(kernel)])
                self.pipelines[kernel.text] = self.own.create_compute_pipeline(
                    layout=layout, compute={"module": module, "entry_point": kernel.name}
                )
            except self.wgpu.GPUError as e:
                if _LOST in str(e).lower():
                    raise
                raise PackageError(
                    f"{self.name} cannot compile {kernel.name}: {str(e)[:2000]}",
                    stage="load",
                    hint="please report it, with the text that --stop-after emit prints",
                ) from None
        return self.pipelines[kernel.text]

    def layout(self, kernel: GpuKernel) -> wgpu.GPUBindGroupLayout:
        """So many storage buffers: the same for all kernels, whatever they use of them; a table of sizes is for reading
        only."""
        key = kernel.bindings, kernel.table
        if key not in self.layouts:
            visible, kinds = self.wgpu.ShaderStage.COMPUTE, ["storage"] * kernel.bindings
            if kernel.table is not None:
                kinds[kernel.table] = "read-only-storage"
            entries = [{"binding": i, "visibility": visible, "buffer": {"type": k}} for i, k in enumerate(kinds)]
            self.layouts[key] = self.own.create_bind_group_layout(entries=entries)
        return self.layouts[key]

    def record(self, run: Run) -> VulkanRecording:
        with self.doing("loading kernels"):
            steps = tuple(self.bound(s) if isinstance(s, Dispatch) else s for s in run.steps)
            places = tuple(np.cumsum([0, *(_words(p.nbytes) for p in run.outputs)]).tolist())
            use = self.wgpu.BufferUsage
            staging = self.own.create_buffer(size=max(places[-1], SMALLEST), usage=use.COPY_DST | use.MAP_READ)
            return VulkanRecording(run, steps, staging, places[:-1])

    def bound(self, step: Dispatch) -> BoundDispatch:
        made = bindable(step, self.align, self.allocate)
        pipeline = self.pipeline(step.kernel)
        parts = [*made.call.arguments, *(BufferSlice(step.scratch, *p) for p in step.kernel.scratch_parts)]
        most = self.limits["max-storage-buffer-binding-size"]
        if large := [p.nbytes for p in parts if p.nbytes > most]:
            raise PackageError(
                f"{step.kernel.name} writes {large[0]:,} bytes; {self.name} binds up to {most:,} at once", stage="load"
            )
        entries = [
            {"binding": i, "resource": {"buffer": p.buffer, "offset": p.offset, "size": _bound(p)}}
            for i, p in enumerate(parts)
        ]
        group = self.own.create_bind_group(layout=self.layout(step.kernel), entries=entries)
        return BoundDispatch(pipeline, group, step.kernel.launch.grid, made.before, made.after)

    # ---- running

    def run(self, recorded: VulkanRecording, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        with self.doing("running a model"):
            self.begin(recorded, inputs, None)
            self.fetch(recorded, outputs)

    def begin(self, recorded: VulkanRecording, inputs: Sequence[np.ndarray], stamps: TimestampQueries | None) -> None:
        """Upload the inputs and submit the commands of a run."""
        for part, array in zip(recorded.run.inputs, inputs, strict=True):
            self.upload(part.buffer, array, part.offset)
        encoder = self.own.create_command_encoder()
        for number, step in enumerate(recorded.steps):
            if stamps is not None:
                stamps.stamp(encoder, 2 * number)
            self.encode(encoder, step)
            if stamps is not None:
                stamps.stamp(encoder, 2 * number + 1)
        for part, place in zip(recorded.run.outputs, recorded.places, strict=True):
            self.copy(encoder, Move(part, BufferSlice(recorded.staging, place, part.nbytes)))
        if stamps is not None:
            stamps.fetch(encoder)
        self.own.queue.submit([encoder.finish()])

    def encode(self, encoder: wgpu.GPUCommandEncoder, step: BoundDispatch | Move) -> None:
        """The commands of a step."""
        if isinstance(step, Move):
            self.copy(encoder, step)
            return
        for move in step.before:
            self.copy(encoder, move)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(step.pipeline)
        compute.set_bind_group(0, step.group)
        compute.dispatch_workgroups(*step.grid)
        compute.end()
        for move in step.after:
            self.copy(encoder, move)

    def fetch(self, recorded: VulkanRecording, outputs: Sequence[np.ndarray]) -> None:
        """Wait for all that was submitted, and copy the outputs."""
        with self.mapped(recorded.staging) as found:
            for place, out in zip(recorded.places, outputs, strict=True):
                out[...] = found[place : place + out.nbytes]

    @contextlib.contextmanager
    def mapped(self, staging: wgpu.GPUBuffer) -> Iterator[np.ndarray]:
        """The bytes of a buffer of the host, when what was submitted is done."""
        staging.map_sync(self.wgpu.MapMode.READ)
        try:
            yield np.frombuffer(staging.read_mapped(copy=False), np.uint8)
        finally:
            staging.unmap()

    # ---- timing

    def check_clock(self) -> None:
        with self.doing("making a clock"):
            TimestampQueries(self.own, 1)

    def run_timed(
        self, recorded: VulkanRecording, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> StepTimes:
        """The uploads and the way there and back are the host's time; the first step begins when it is submitted."""
        with self.doing("running a model"):
            stamps = recorded.clock = recorded.clock or TimestampQueries(self.own, len(recorded.steps))
            start = time.perf_counter_ns()
            self.begin(recorded, inputs, stamps)
            submitted = time.perf_counter_ns()
            self.fetch(recorded, outputs)
            total = time.perf_counter_ns() - start
            with self.mapped(stamps.staging) as found:
                steps = stamps.nanoseconds(found.view(np.uint64))
            # the device may have begun before the call came back
            last = steps.max(initial=0.0)
            return StepTimes(steps + max(min(submitted - start, total - last), 0.0), max(total, last))

    def copy(self, encoder: wgpu.GPUCommandEncoder, move: Move) -> None:
        a, b = move.source, move.target
        if a.offset % WORD or b.offset % WORD:
            raise PackageError(
                f"{self.name} cannot copy {a.nbytes} bytes from {a.offset} to {b.offset}: it copies words of {WORD}",
                stage="load",
            )
        if a.nbytes:
            encoder.copy_buffer_to_buffer(a.buffer, a.offset, b.buffer, b.offset, _words(a.nbytes))


def _words(nbytes: int) -> int:
    return max(-(-nbytes // WORD) * WORD, WORD)


def _bound(part: BufferSlice) -> int:
    """The bytes that are bound: room for an element at least."""
    return min(max(_words(part.nbytes), SMALLEST), part.buffer.size - part.offset)


DEVICES = Devices("vulkan", adapters, lambda a: str(a.info["device"]), WgpuDevice)


def device(which: str = "") -> WgpuDevice:
    """The device of that number or name, for this process; the first one without."""
    return DEVICES.open(which)
