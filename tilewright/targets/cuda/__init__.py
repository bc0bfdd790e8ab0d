"""Target ``cuda``: NVIDIA GPUs, kernels in PTX, launched through the driver API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...support.errors import UsageError
from ..base import Check, TargetStage
from ..gpu.on_device import OnDevice, device_parameter

if TYPE_CHECKING:
    from types import ModuleType

    from ...schedule.ceilings import Ceilings
    from ...schedule.nest import Nest
    from ..gpu.device import Device
    from ..gpu.device_registry import Devices
    from .description import CudaDescription
    from .stages import CudaKernel

#: the GPU that code is made for where none is named: its code runs on all later ones too
DEFAULT = "sm_80"


class CudaTarget(OnDevice):
    """See `tilewright.targets.base.Target`."""

    doc = "NVIDIA GPUs through PTX; cuda:sm_90a names another one than sm_80"
    machine_parameter = "sm"

    def __init__(self, sm: str = DEFAULT, device: str = "") -> None:
        self.sm, self.device = sm, device
        parameters = [sm] * (sm != DEFAULT) + [f"device={device}"] * bool(device)
        self.name = f"cuda:{','.join(parameters)}" if parameters else "cuda"

    def configured(self, parameters: Mapping[str, str]) -> CudaTarget:
        from .description import MACHINES

        device = device_parameter("cuda", parameters, ("sm",))
        sm = parameters.get("sm", DEFAULT)
        if sm not in MACHINES:
            raise UsageError(f"there is no GPU {sm!r}", hint=f"sm is one of {', '.join(MACHINES)}")
        return CudaTarget(sm, device)

    def describe(self) -> CudaDescription:
        from .description import MACHINES

        return MACHINES[self.sm]

    def stages(self) -> Sequence[TargetStage]:
        from ..gpu.llvm_stages import emitted_text
        from . import stages

        return (
            TargetStage("emit", 5, "loop nests to LLVM IR", stages.emit_kernels, emitted_text),
            TargetStage("assemble", 6, "LLVM IR to PTX", stages.assemble_kernels, stages.ptx_text),
        )

    def check(self, description: dict[str, Any]) -> None:
        """Whether there is a GPU is asked when code is to run: it can be made where there is none."""
        from .description import CudaDescription

        CudaDescription.from_json(description)

    def built(self, nest: Nest) -> CudaKernel:
        """A kernel as devices take it, of a finished nest."""
        from .tuning import launched

        return launched(nest, self.describe())

    def thread_count(self, nest: Nest, constants: frozenset[str]) -> int:
        """See `tilewright.targets.base.Target`: LLVM IR is made to see that it can be."""
        from ...codegen.nvptx.emitter import emit

        return emit(nest, self.describe()).launch.all_threads

    def unpack(self, data: bytes) -> CudaKernel:
        from .stages import CudaKernel

        return CudaKernel.from_bytes(data)

    def open_device(self) -> Device:
        """The device, for this process; PackageError if the code is for another kind of GPU."""
        from .device import check

        found = self.known_devices().open(self.device)
        check(self.sm, *found.driver.capability())
        return found

    def tuning(self) -> ModuleType:
        from . import tuning

        return tuning

    def known_devices(self) -> Devices[Any, Any]:
        from .device import DEVICES

        return DEVICES

    def measure_ceilings(self, threads: int) -> Ceilings:
        from .ceilings import measure

        return measure(self.bench(), self.describe(), self.machine_name())

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        return {"CUDA": lambda: self.known_devices().check("CUDA")}


TARGET = CudaTarget()
