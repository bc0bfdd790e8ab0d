"""Protocols of a target, and how targets are looked up. Nothing outside `targets/` names one.

A target is a folder in `tilewright/targets` (or an entry point of the group ``tilewright.targets`` of any installed
package) whose module has an attribute ``TARGET`` that fulfils the protocol `Target`, or ``TARGETS``, a list of such for
a family of machines. The module is imported to list targets, so it must import its code generator only inside its
methods.

What not every target can do are protocols of their own, asked with ``isinstance``: `Exporter` (the package as files for
other tools), `Joining` (such files of several targets), `Emulator` (running the code on a simulated machine),
`StateKeeper` (programs with buffers that live between runs), `MultiDevice` (programs on several devices), `Sharing`
(one device among several),
`Enterable` (going on from level 5), `Tunable` (kernels measured one by one), `Showing` (the text of one kernel),
`Cacheable` (packages kept between processes), `Remembering` (kernels kept), `Warmable` (processes started ahead),
`Examinable` (`tilewright doctor`), `Partitioning`, `Annotating`, `Beside` and `Configurable` (what stands beside a
host), `DeviceTarget` (one of several devices of this machine), and `Measurable` of `schedule/ceilings.py`.
docs/add_a_target.md builds a small target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..schedule.machine import Machine
from ..support import providers
from ..support.discovery import Registry
from ..support.errors import PackageError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from ..program.package import Package
    from ..program.program import Program, TensorInfo
    from ..program.states import StateBuffers
    from ..program.timeline import Stamps
    from ..schedule.nest import Nest
    from ..tensor.kernel import Kernel


@dataclass(frozen=True)
class TargetStage:
    """A stage of the pipeline that a target provides: its name, the level of its result (4, 5 or 6), what it does,
    the function that the driver calls with its state, and the one that gives its result as text.
    """

    name: str
    level: int
    doc: str
    run: Callable[..., Any]
    show: Callable[..., str]


@dataclass(frozen=True)
class Built:
    """A kernel that was built alone: its object, and what a program needs to know about it (`codegen.kernel_info`)."""

    data: bytes
    info: Any


class Tuning(Protocol):
    """Builds single kernels for the tuner; `Tunable.tuning` returns it."""

    def build(
        self, nests: Mapping[str, Any], description: Any, *, workers: int | None, timeout: float
    ) -> dict[str, Built | str]:
        """Objects of finished nests by symbol, or the reason why there is none; never raises for a nest."""

    def measured_on(self, description: Any) -> tuple[str, str]:
        """The key of measured times: the machine, and the versions of the code generators."""

    def forms(self) -> dict[str, Callable[[Any, Any], str]]:
        """The texts that a finished nest can be shown as: name -> function of the nest and the description."""


class Context(Protocol):
    """Memory and threads for one run of a program at a time.

    `enter` runs it at once on the arrays given, inputs then outputs, if that is simple. It returns 0 if not (nothing
    has run, and `run` has to be used), 1 if it ran, 2 if `judge` has to be called before the next run.
    `not_at_once` stands for targets that know no such way.
    """

    enter: Callable[..., int]

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """Run once on the addresses of the arrays. `ProgramRunner.timed` ones fill `stamps`, others take none."""

    def judge(self) -> None:
        """Look at what the last run was like, for the next one."""

    def close(self) -> None:
        """End the threads; the context cannot be used any more."""


@runtime_checkable
class SizedContext(Protocol):
    """A context of programs with dynamic shapes (`program.open_sizes`)."""

    def resize(self, table: int, arena: int) -> None:
        """Set the address of the table of sizes, and the least bytes of the arena, for the runs that follow."""


@runtime_checkable
class FormsMaker(Protocol):
    """A runner whose `FormedContext`s `enter` with arrays of any sizes, once `expect` has set their shapes."""

    def forms_of(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> Any:
        """The argument of `FormedContext.expect` for these inputs and outputs."""


class FormedContext(SizedContext, Protocol):
    """See `FormsMaker`."""

    def expect(self, forms: Any) -> None:
        """From now on `enter` takes arrays of these shapes."""


def not_at_once(*arrays: np.ndarray) -> int:
    """An `enter` that leaves every call to `run`."""
    return 0


class ProgramRunner(Protocol):
    """A program loaded into this process."""

    seconds_per_tick: float
    threads: int

    def context(self) -> Context: ...

    def timed(self) -> ProgramRunner:
        """The same program with time stamps in it; UsageError if the target has no clock."""


@runtime_checkable
class Target(Protocol):
    """A kind of machine: how it is described, the stages from kernels to binary code, and how that code is run."""

    name: str
    doc: str

    def describe(self) -> Machine:
        """The description of the machine to compile for."""

    def stages(self) -> Sequence[TargetStage]:
        """The stages after scheduling, in order."""

    def link(self, program: Program, objects: dict[str, bytes], description: Any) -> dict[str, bytes]:
        """All objects of a package: the kernels and the code that calls them in order. The description is its own."""

    def check(self, description: dict[str, Any]) -> None:
        """PackageError if code for a machine so described cannot run here."""

    def load(self, package: Package, threads: int) -> ProgramRunner:
        """Load a package's code to run with `threads` threads."""


@runtime_checkable
class StateKeeper(Protocol):
    """A target whose programs can have states: buffers that live between runs."""

    name: str

    def load_with_states(self, package: Package, threads: int, states: StateBuffers) -> ProgramRunner:
        """`Target.load` for a program that reads and writes these buffers; they are of one run at a time."""


@runtime_checkable
class SizeTaker(Protocol):
    """A target whose programs can have dynamic shapes (open dimensions)."""

    name: str

    def load_with_sizes(self, package: Package, threads: int, states: StateBuffers) -> ProgramRunner:
        """`Target.load` for a program with open dimensions, and these buffers of its states if it has any; its contexts
        are `SizedContext`s."""


@runtime_checkable
class MultiDevice(Protocol):
    """A target whose programs run on several devices, each with memory of its own."""

    @property
    def device_names(self) -> Sequence[str]:
        """The names of the devices; inputs and outputs are on the first."""

    def place_call(self, symbol: str, names: Sequence[str]) -> int:
        """The number of the device that runs this kernel, made of these nodes of the source."""


@runtime_checkable
class Sharing(Protocol):
    """A target that can run some kernels of a program while others run the rest (``opencl+cpu``)."""

    name: str

    def describe(self) -> Machine:
        """See `Target`; its `device_costs` decide what runs here."""

    def thread_count(self, nest: Nest, constants: frozenset[str]) -> int:
        """How many threads run a finished nest; a TilewrightError where no code can be made of it. `constants`: those
        of its parameters that are constants."""


@runtime_checkable
class Placing(Protocol):
    """Several targets as one: a kernel is scheduled and emitted by the one on whose device it was placed
    (`driver/placement.py`)."""

    @property
    def device_names(self) -> Sequence[str]:
        """See `MultiDevice`."""

    @property
    def members(self) -> Sequence[Any]:
        """By the number of the device; None where the host only keeps inputs and outputs."""

    def part(self, state: Any, device: int) -> Any:
        """The state of a compilation with the kernels of one device only."""

    def add(self, state: Any, part: Any) -> None:
        """What was made of them, into the state of all."""


@runtime_checkable
class Partitioning(Protocol):
    """A target of a host and a coprocessor, which runs what it supports and is faster at."""

    def claims(
        self, groups: Sequence[Sequence[int]], alone: Callable[[Sequence[int]], Kernel]
    ) -> Sequence[Sequence[int]]:
        """What the coprocessor runs, of the operations grouped as they would be without it (`tensor.fuse`)."""

    def schedule(self, kernel: Kernel, trace: str | None) -> Any:
        """How it runs a kernel (`schedule.rules.Scheduled`): as a trace of the option ``schedules`` says, if there is
        one."""

    def notes(self) -> Sequence[str]:
        """Where kernels went, and why: a sentence each, for `Executable.explain`."""


@runtime_checkable
class Annotating(Protocol):
    """A `Partitioning` target that takes operators of level 2 as they are, before they are lowered."""

    def annotate(self, operation: Any) -> str:
        """The name of the processor that computes an operation (`torch_mlir.ir.Operation`) whole; "" if it is lowered.
        It is a group of its own when `claims` is asked, and its kernel's `opaque` has the name."""


@runtime_checkable
class PlanTaker(Protocol):
    """A target with an accelerator whose kernels run as planned, and are tuned on its simulator."""

    #: the machine beside which it stands, None if it stands alone
    host: Target | None

    def tuned_on(self) -> tuple[str, str, str]:
        """What a plan's time depends on: the processor's name, its design, and the versions of what makes programs."""

    def take_plans(self, known: Callable[[Kernel], tuple[Mapping[str, Any], str] | None] | None) -> None:
        """Where plans come from in the next compilation: the decisions of a kernel's plan, and the plan that they led
        to; None for one that was not tuned."""


@runtime_checkable
class Attachable(Protocol):
    """A target that can stand beside a host, ``host+name``, or something that can do nothing else
    (`add_attachable`)."""

    @property
    def name(self) -> str: ...

    def attached_to(self, host: Target) -> Target:
        """The two of them as one target."""


@runtime_checkable
class NamedInPackages(Protocol):
    """A target whose name in packages differs from the one that users give, which may be a file."""

    #: that name: a file's content, not its place
    recorded: str


@runtime_checkable
class Configurable(Protocol):
    """A target whose design has parameters: ``name:array=16,bus=8``."""

    def configured(self, parameters: Mapping[str, str]) -> Target:
        """The target with these; UsageError for a parameter that it has not, or a value that it cannot have."""


@runtime_checkable
class OfMachines(Protocol):
    """A target for several machine types, which one of its parameters selects: ``cuda:sm_90a`` is
    ``cuda:sm=sm_90a``."""

    #: the parameter
    machine_parameter: str


@runtime_checkable
class DeviceTarget(Protocol):
    """A target that runs on a device of this machine, of which there may be several: ``name:device=1``."""

    def device_list(self) -> Sequence[str]:
        """What the devices are called, by number; a TilewrightError if there is no driver or no device."""


@runtime_checkable
class Exporter(Protocol):
    """A target whose packages can be written as files that other tools build with: source code, a library, a header."""

    name: str
    #: name of a setting -> (its choices, the first of which is the default; what it does)
    settings: Mapping[str, tuple[tuple[str, ...], str]]

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files by name."""


@runtime_checkable
class Joining(Protocol):
    """An `Exporter` whose files may hold what other targets make of the same model."""

    #: the names of those targets
    joined: Sequence[str]

    def join(self, packages: Mapping[str, Package], settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files by name, of packages by target; those of `joined` may be missing."""


@dataclass(frozen=True)
class CallCount:
    """A kernel call of an emulated run and the instructions it took."""

    symbol: str
    names: tuple[str, ...]
    instructions: int


@dataclass(frozen=True)
class Emulated:
    """What emulated runs gave: the outputs of each, the instructions of the last (of each call too), and bytes of the
    image by section. `instructions` is None where the emulator cannot count.
    """

    outputs: list[list[np.ndarray]]
    machine: str
    instructions: int | None = None
    calls: tuple[CallCount, ...] = ()
    sections: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Emulator(Protocol):
    """A target whose code can run on a simulated machine."""

    def emulate(self, package: Package, runs: Sequence[Sequence[np.ndarray]]) -> Emulated:
        """Run the model once for each list of inputs; UsageError if the simulator is not installed."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check of this machine: ``problem`` breaks Tilewright, ``note`` is worth knowing."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str
    hint: str = ""


@runtime_checkable
class Examinable(Protocol):
    """A target with checks of its installation (`tilewright doctor`)."""

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """The checks by name; one that raises is a problem."""


@runtime_checkable
class Enterable(Protocol):
    """A target that continues from what was dumped after its stage of level 5."""

    def enter(self, state: Any, path: Path) -> None:
        """Read the file into the driver's state."""


@runtime_checkable
class Tunable(Protocol):
    """A target whose kernels are built and measured one by one, on this machine."""

    name: str

    def tuning(self) -> Tuning: ...


@runtime_checkable
class Showing(Protocol):
    """A target that is not `Tunable`, and shows a finished nest as texts (`Schedule.source`)."""

    name: str

    def forms(self) -> Mapping[str, Callable[[Any, Any], str]]:
        """Name -> function of the nest and the description."""


@runtime_checkable
class Cacheable(Protocol):
    """A target whose packages are kept for the next process that compiles the same model."""

    def toolchain(self) -> str:
        """The versions of all that turns nests into code."""


class Memo(Protocol):
    """The kernels of one machine that earlier compilations scheduled in the default way, by their level-3 text."""

    def recall(self, function: str) -> Any:
        """What is known of a kernel, or None."""

    def keep(self, function: str, made: Any) -> None:
        """Keep what a kernel was made into, or that it is cut in two."""

    def make(
        self, functions: Mapping[str, str], workers: int, progress: Callable[[int, int, str], None] | None = None
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Make kernels in worker processes: what they became, by symbol, and the seconds by stage."""


@runtime_checkable
class Remembering(Protocol):
    """A target that keeps what kernels were made into."""

    def memo(self, description: Any) -> Memo: ...


@runtime_checkable
class Warmable(Protocol):
    """A target that compiles in processes of its own, which take time to start."""

    def start(self, workers: int) -> None:
        """Start so many now, and make ready what later ones start from; does not wait for them."""


_TARGETS: Registry[Target] = Registry(
    "target",
    "tilewright.targets",
    "TARGET",
    lambda x: isinstance(x, Target),
    ("name", "doc", "describe", "stages", "link", "check", "load"),
)


def register(target: Target) -> None:
    """Add a target for this process; an installed package gives an entry point instead. UsageError if it is no target,
    or another one has its name.

        register(MyTarget())
        tw.compile("model.onnx", target="mine")
    """
    _TARGETS.add(target)


#: what stands beside a host only, by name
_ATTACHABLE: dict[str, Attachable] = {}


def add_attachable(processor: Attachable) -> None:
    """Let ``host+name`` find something that is no target alone, in place of what had its name. UsageError if a target
    has it."""
    if processor.name in targets():
        raise UsageError(f"there is a target {processor.name!r} already", hint="choose another name")
    _ATTACHABLE[processor.name] = processor


def targets() -> dict[str, Target]:
    """All targets by name.

    >>> "cpu" in targets()
    True
    """
    return _TARGETS.all()


def find(name: str) -> Target:
    """The target of that name; UsageError lists those that there are.

    ``cpu+NAME`` is a host with another processor beside it, ``opencl+cpu`` several devices in one program,
    ``NAME:parameter=value`` one with other parameters (``cuda:sm_90a``: another machine), ``FILE.py`` the chip that a
    file describes.

    >>> find("cpu+systolic32:array=16").name
    'cpu+systolic32:array=16'
    >>> find("cuda:sm=sm_90a").name
    'cuda:sm_90a'
    """
    host, plus, other = name.partition("+")
    if plus:
        second = _attachable(other)
        if isinstance(second, Attachable):
            return second.attached_to(find(host))
        return _multi_device([host, *other.split("+")])
    if (found := _described(name)) is not None:
        if not isinstance(found, Target):
            raise _not_alone(name)
        return found
    plain, colon, given = name.partition(":")
    if colon and (target := _TARGETS.get(plain)) is not None:
        if not isinstance(target, Configurable):
            raise UsageError(f"target {plain!r} has no parameters", hint=f"leave out :{given}")
        plain_value = target.machine_parameter if isinstance(target, OfMachines) else None
        return target.configured(dict(_pair(p, plain_value) for p in given.split(",")))
    if name in _ATTACHABLE:
        raise _not_alone(name)
    if (target := _TARGETS.get(name)) is None:
        raise _unknown(name, targets())
    return target


def recorded(name: str) -> Target:
    """The target of that name in a package, or in what another process says: find(name), but no file is run.

    A chip that a file describes is called by the content of the file, which a user must have given to this process.
    PackageError for the name of a file.

    >>> recorded("cpu").name
    'cpu'
    """
    parts = [p.partition(":")[0] for p in name.split("+")] if isinstance(name, str) else [".py"]
    if any(p.endswith(".py") for p in parts):
        raise PackageError(f"{str(name)[:200]!r} is no target that a package can name", stage="load")
    return find(name)


def name_in_packages(target: Target) -> str:
    """What packages call a target (see `recorded`)."""
    return target.recorded if isinstance(target, NamedInPackages) else target.name


def check(name: str, description: dict[str, Any]) -> None:
    """PackageError if a package that was made for a target of that name and description does not run here."""
    recorded(name).check(description)


def _described(name: str) -> Any:
    """What the file of that name describes, ``chip.py``, or that of a package, ``chip.py#digest``; None for others."""
    plain, _, digest = name.partition(":")[0].rpartition("#")
    if plain.endswith(".py") and digest:
        return providers.ask("chip_from_package")(name)
    return providers.ask("chip_from_file")(name) if name.partition(":")[0].endswith(".py") else None


def _attachable(name: str) -> Any:
    """The target of a name behind a plus."""
    plain = name.partition(":")[0]
    if (found := _described(name)) is not None:
        return found
    if "+" in name:
        return find(name)
    if name not in _ATTACHABLE and _TARGETS.get(plain) is None:
        raise _unknown(name, [*targets(), *_ATTACHABLE], "what tw.offload makes is known once that has run; ")
    return _ATTACHABLE[name] if name in _ATTACHABLE else find(name)


def _multi_device(names: Sequence[str]) -> Target:
    """Several devices as one target."""
    members = [find(n) for n in names]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None)
    alone = next((n for n, m in zip(names, members, strict=True) if not isinstance(m, Sharing)), twice)
    if alone is not None:
        others = [n for n in names if n != alone] or [alone]
        able = ", ".join(n for n, t in sorted(targets().items()) if isinstance(t, Sharing))
        raise UsageError(
            f"{alone} cannot stand beside {' and '.join(others)}",
            hint=f"a chip can beside a host alone, and several of {able}: `tilewright targets`",
        )
    made: Target = providers.ask("multi_device_target")(members)
    return made


def _not_alone(name: str) -> UsageError:
    return UsageError(f"{name} is no target alone", hint=f"beside a host it is one: cpu+{name}")


def _unknown(name: str, known: Iterable[str], hint: str = "") -> UsageError:
    import difflib

    near = difflib.get_close_matches(name, known := sorted(known), 1)
    hint += f"did you mean {near[0]!r}? " if near else ""
    return UsageError(f"unknown target {name!r}", hint=f"{hint}targets: {', '.join(known)}")


def _pair(text: str, plain_value: str | None) -> tuple[str, str]:
    """A parameter and its value; `plain_value` is the one whose value may stand alone."""
    name, equals, value = text.partition("=")
    if not equals and plain_value is not None:
        return plain_value, text.strip()
    if not equals:
        raise UsageError(f"{text!r} is no parameter of a target", hint="NAME:parameter=value,parameter=value")
    return name.strip(), value.strip()


def of(target: Target | str) -> Target:
    """A target, or the one of that name."""
    return find(target) if isinstance(target, str) else target
