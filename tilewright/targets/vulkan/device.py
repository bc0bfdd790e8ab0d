"""Devices of Vulkan, through wgpu."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...support.errors import PackageError, TilewrightError, UsageError
from ..base import Check
from ..gpu.bindings import bindable
from ..gpu.device import Dispatch, Move, Part, Step
from ..gpu.kernels import GpuKernel

HINT = "pip install 'tilewright[vulkan]', and a driver: of your GPU, or Debian's mesa-vulkan-drivers for the processor"
#: what kernels may use beyond WGSL's core, where the device has it
FEATURES = ("shader-f16", "shader-f64", "shader-int64")
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


def adapters() -> list[Any]:
    """All devices with a Vulkan driver, GPUs first; UsageError if there is none or wgpu is not installed."""
    try:
        import wgpu
    except ImportError:
        raise UsageError("the target vulkan needs wgpu, which is not installed", hint=HINT) from None
    found = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
    if not found:
        raise UsageError("Vulkan has no device here", hint=HINT)
    order = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU")
    return sorted(found, key=lambda a: order.index(t) if (t := a.info["adapter_type"]) in order else len(order))


@functools.lru_cache(maxsize=1)
def device() -> WgpuDevice:
    """The first device, for this process."""
    return WgpuDevice(adapters()[0])


def found() -> Check:
    """What `tilewright doctor` says."""
    try:
        names = ", ".join(a.info["device"] for a in adapters())
    except UsageError as e:
        return Check("Vulkan", "note", e.message, e.hint or "")
    return Check("Vulkan", "ok", names)


@dataclass(frozen=True)
class Bound:
    """A call with its pipeline and bindings, and the copies around it, of arguments that cannot be bound in place."""

    pipeline: Any
    group: Any
    grid: tuple[int, int, int]
    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()


class WgpuDevice:
    """See `tilewright.targets.gpu.device.Device`."""

    def __init__(self, adapter: Any) -> None:
        import wgpu

        self.wgpu, self.limits = wgpu, dict(adapter.limits)
        self.name = f"{adapter.info['device']} (Vulkan)"
        features = [f for f in FEATURES if f in adapter.features]
        self.own = adapter.request_device_sync(
            required_features=features, required_limits={n: self.limits[n] for n in _LIMITS}
        )
        self.align = max(self.limits["min-storage-buffer-offset-alignment"], WORD)
        self.pipelines: dict[str, Any] = {}
        self.layouts: dict[int, Any] = {}

    # ---- memory

    def allocate(self, nbytes: int) -> Any:
        size = max(_words(nbytes), SMALLEST)
        if size > min(self.limits["max-buffer-size"], self.limits["max-storage-buffer-binding-size"]):
            raise TilewrightError(
                f"{self.name} has no buffers of {size:,} bytes",
                hint=f"it binds up to {self.limits['max-storage-buffer-binding-size']:,} at once",
            )
        use = self.wgpu.BufferUsage
        try:
            return self.own.create_buffer(size=size, usage=use.STORAGE | use.COPY_SRC | use.COPY_DST)
        except self.wgpu.GPUError as e:
            raise TilewrightError(f"{self.name} has no room for a buffer of {size:,} bytes: {e}") from None

    def write(self, buffer: Any, data: np.ndarray) -> None:
        if data.nbytes % WORD:
            data = np.concatenate([data.view(np.uint8).reshape(-1), np.zeros(-data.nbytes % WORD, np.uint8)])
        self.own.queue.write_buffer(buffer, 0, data)

    def read(self, buffer: Any, out: np.ndarray) -> None:
        whole = self.own.queue.read_buffer(buffer, 0, -(-out.nbytes // WORD) * WORD)
        out[...] = np.frombuffer(whole, np.uint8, out.nbytes)

    # ---- kernels

    def pipeline(self, kernel: GpuKernel) -> Any:
        """The driver's pipeline; PackageError if it refuses the text."""
        if kernel.text not in self.pipelines:
            try:
                module = self.own.create_shader_module(code=kernel.code)
                layout = self.own.create_pipeline_layout(bind_group_layouts=[self.layout(len(kernel.writes))])
                self.pipelines[kernel.text] = self.own.create_compute_pipeline(
                    layout=layout, compute={"module": module, "entry_point": kernel.name}
                )
            except self.wgpu.GPUError as e:
                raise PackageError(
                    f"{self.name} cannot compile {kernel.name}: {str(e)[:2000]}",
                    stage="load",
                    hint="please report it, with the text that --stop-after emit prints",
                ) from None
        return self.pipelines[kernel.text]

    def layout(self, count: int) -> Any:
        """So many storage buffers: the same for all kernels, whatever they use of them."""
        if count not in self.layouts:
            visible, kind = self.wgpu.ShaderStage.COMPUTE, {"type": "storage"}
            entries = [{"binding": i, "visibility": visible, "buffer": kind} for i in range(count)]
            self.layouts[count] = self.own.create_bind_group_layout(entries=entries)
        return self.layouts[count]

    def record(self, steps: Sequence[Step]) -> tuple[Bound | Move, ...]:
        return tuple(self.bound(s) if isinstance(s, Dispatch) else s for s in steps)

    def bound(self, step: Dispatch) -> Bound:
        made = bindable(step, self.align, self.allocate)
        pipeline = self.pipeline(step.kernel)
        entries = [
            {"binding": i, "resource": {"buffer": p.buffer, "offset": p.offset, "size": _bound(p)}}
            for i, p in enumerate(made.call.arguments)
        ]
        group = self.own.create_bind_group(layout=self.layout(len(entries)), entries=entries)
        return Bound(pipeline, group, step.kernel.launch.grid, made.before, made.after)

    def run(self, recorded: tuple[Bound | Move, ...]) -> None:
        encoder = self.own.create_command_encoder()
        for step in recorded:
            if isinstance(step, Move):
                self.copy(encoder, step)
                continue
            for move in step.before:
                self.copy(encoder, move)
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(step.pipeline)
            compute.set_bind_group(0, step.group)
            compute.dispatch_workgroups(*step.grid)
            compute.end()
            for move in step.after:
                self.copy(encoder, move)
        self.own.queue.submit([encoder.finish()])

    def copy(self, encoder: Any, move: Move) -> None:
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


def _bound(part: Part) -> int:
    """The bytes that are bound: room for an element at least."""
    return min(max(_words(part.nbytes), SMALLEST), part.buffer.size - part.offset)
