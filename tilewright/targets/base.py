"""What a target is, and how targets are looked up. Nothing outside `targets/` names one.

A target is a folder in `tilewright/targets` (or an entry point of the group ``tilewright.targets`` of any installed
package) whose module has an attribute ``TARGET``, an object whose class inherits `Target`, or ``TARGETS``, a list of
them for a family of machines. The module is imported to list targets, so it must import its code generator only inside
its methods.

`Target` has everything that a target may do, with an answer for those that cannot: None, nothing, False, or an error
that says so. Beside it there are what its methods give: `ProgramRunner` and `Context` run programs, `Tuning` builds
kernels one by one, `Memo` keeps them, and a `Coprocessor` runs the kernels that it chooses. `Attachable` is what stands
beside a host. docs/add_a_target.md builds a small target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


# ---- what a target's methods take and give -------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Check:
    """The outcome of one check of this machine: ``problem`` breaks Tilewright, ``note`` is worth knowing."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str
    hint: str = ""


def not_at_once(*arrays: np.ndarray) -> int:
    """An `enter` that leaves every call to `run`."""
    return 0


class Context:
    """Memory and threads for one run of a program at a time.

    `enter` runs it at once on the arrays given, inputs then outputs, if that is simple. It returns 0 if not (nothing
    has run, and `run` has to be used), 1 if it ran, 2 if `judge` has to be called before the next run.
    """

    enter: Callable[..., int] = staticmethod(not_at_once)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """Run once on the addresses of the arrays. `ProgramRunner.timed` ones fill `stamps`, others take none."""
        raise NotImplementedError

    def judge(self) -> None:
        """Look at what the last run was like, for the next one."""

    def close(self) -> None:
        """End the threads; the context cannot be used any more."""

    def resize(self, table: int, arena: int) -> None:
        """Of a program with open dimensions: set the address of the table of sizes (`program.open_sizes`), and the
        least bytes of the arena, for the runs that follow."""

    def expect(self, forms: Any) -> None:
        """From now on `enter` takes arrays of these shapes (`ProgramRunner.forms_of`)."""


class ProgramRunner:
    """A program loaded into this process."""

    threads: int

    @property
    def seconds_per_tick(self) -> float:
        """The unit of time stamps."""
        return 1e-9

    def context(self) -> Context:
        raise NotImplementedError

    def timed(self) -> ProgramRunner:
        """The same program with time stamps in it; UsageError if the target has no clock."""
        raise NotImplementedError

    def forms_of(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> Any:
        """With open dimensions: what `Context.expect` takes before `enter` gets arrays of these shapes; None where
        every call is left to `run`."""
        return None


class Tuning(Protocol):
    """Builds single kernels for the tuner; `Target.tuning` returns it."""

    def build(
        self, nests: Mapping[str, Any], description: Any, *, workers: int | None, timeout: float
    ) -> dict[str, Built | str]:
        """Objects of finished nests by symbol, or the reason why there is none; never raises for a nest."""

    def measured_on(self, description: Any) -> tuple[str, str]:
        """The key of measured times: the machine, and the versions of the code generators."""

    def forms(self) -> dict[str, Callable[[Any, Any], str]]:
        """See `Target.forms`."""


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


class Coprocessor:
    """What runs those kernels of a program that it supports and is faster at; the rest is the host's."""

    #: the machine beside which it stands, None if it stands alone
    host: Target | None

    def annotate(self, operation: Any) -> str:
        """The name of the processor that computes an operation of level 2 (`torch_mlir.ir.Operation`) whole; "" if it
        is lowered. It is a group of its own when `claims` is asked, and its kernel's `opaque` has the name."""
        return ""

    def claims(
        self, groups: Sequence[Sequence[int]], alone: Callable[[Sequence[int]], Kernel]
    ) -> Sequence[Sequence[int]]:
        """What it runs, of the operations grouped as they would be without it (`tensor.fuse`)."""
        raise NotImplementedError

    def schedule(self, kernel: Kernel, trace: str | None) -> Any:
        """How it runs a kernel (`schedule.rules.Scheduled`): as a trace of the option ``schedules`` says, if there is
        one."""
        raise NotImplementedError

    def notes(self) -> Sequence[str]:
        """Where kernels went, and why: a sentence each, for `Executable.explain`."""
        raise NotImplementedError

    def tuned_on(self) -> tuple[str, str, str] | None:
        """What the time of a plan depends on: the processor's name, its design, and the versions of what makes
        programs; None if its kernels are not planned."""
        return None

    def take_plans(self, known: Callable[[Kernel], tuple[Mapping[str, Any], str] | None] | None) -> None:
        """Where plans come from in the next compilation: the decisions of a kernel's plan, and the plan that they led
        to; None for one that was not tuned."""


@runtime_checkable
class Attachable(Protocol):
    """A target that can stand beside a host, ``host+name``, or something that can do nothing else (`add_beside`)."""

    @property
    def name(self) -> str: ...

    def attached_to(self, host: Target) -> Target | None:
        """The two of them as one target; None if it is no coprocessor."""


# ---- targets -------------------------------------------------------------------------------------------------------


class Target(ABC):
    """A kind of machine: how it is described, the stages from kernels to binary code, how that code is run, and what
    else can be done with it.

    A target overrides what it offers. `describe` and `stages` it has to have.
    """

    name: str
    doc: str

    # ---- its name, and the machine

    #: the parameter that selects one of several machine types: ``cuda:sm_90a`` is ``cuda:sm=sm_90a``
    machine_parameter: str | None = None

    @property
    def recorded(self) -> str:
        """Its name in packages, which know no folders: of a target that a file describes, the file's content."""
        return self.name

    def configured(self, parameters: Mapping[str, str]) -> Target:
        """The target with other parameters, ``name:array=16,bus=8``; UsageError for a parameter that it has not, or a
        value that it cannot have."""
        given = ",".join(f"{k}={v}" for k, v in parameters.items())
        raise UsageError(f"target {self.name!r} has no parameters", hint=f"leave out :{given}")

    @abstractmethod
    def describe(self) -> Machine:
        """The description of the machine to compile for."""

    def machine_name(self) -> str:
        """What the measured ceilings depend on: model of the processor, its features and caches; "" if nothing can be
        measured."""
        return ""

    def measure_ceilings(self, threads: int) -> Any:
        """What the machine can do at best (`schedule.ceilings.Ceilings`), measured now; takes seconds."""
        raise NotImplementedError

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """Checks of its installation by name (`tilewright doctor`); one that raises is a problem."""
        return {}

    # ---- code

    @abstractmethod
    def stages(self) -> Sequence[TargetStage]:
        """The stages after scheduling, in order."""

    def link(self, program: Program, objects: dict[str, bytes], description: Any) -> dict[str, bytes]:
        """All objects of a package: here the kernels that are called, and what loads or exports them adds the rest. The
        description is the target's own."""
        return {s: objects[s] for s in program.symbols}

    def enter(self, state: Any, path: Path) -> None:
        """Read what was dumped after its stage of level 5 into the driver's state."""
        raise UsageError(f"target {self.name} cannot continue from a stage of level 5")

    def toolchain(self) -> str:
        """The versions of all that turns nests into code; "" if packages are not kept for the next process that
        compiles the same model."""
        return ""

    def memo(self, description: Any) -> Memo | None:
        """What was made of kernels before, if that is kept."""
        return None

    def start(self, workers: int) -> None:  # noqa: B027
        """Start so many worker processes now, and make ready what later ones start from; does not wait for them."""

    def tuning(self) -> Tuning | None:
        """What builds kernels one by one, to measure them on this machine."""
        return None

    def forms(self) -> Mapping[str, Callable[[Any, Any], str]]:
        """The texts that a finished nest can be shown as (`Schedule.source`): name -> function of the nest and the
        description."""
        return tuning.forms() if (tuning := self.tuning()) is not None else {}

    # ---- running

    #: whether programs can have states, buffers that live between runs
    keeps_states = False
    #: whether programs can have open dimensions
    takes_sizes = False
    #: what to do with code that does not run in this process
    elsewhere = "export it with Executable.export"

    def check(self, description: dict[str, Any]) -> None:  # noqa: B027
        """PackageError if code for a machine so described cannot run here."""

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> ProgramRunner:
        """Load a package's code to run with `threads` threads. A program with states reads and writes the buffers
        `states`, in one run at a time; without them it has its own."""
        from .cross_compiled import CrossCompiledRunner

        return CrossCompiledRunner(self.name, self.elsewhere)

    def emulate(self, package: Package, runs: Sequence[Sequence[np.ndarray]]) -> Emulated:
        """Run the model on a simulated machine, once for each list of inputs; UsageError if there is no simulator."""
        raise UsageError(f"target {self.name!r} has no emulator", stage="run")

    # ---- files for other tools

    #: the settings of `export`, each with its choices (the first is the default) and what it does; None: no export
    settings: Mapping[str, tuple[tuple[str, ...], str]] | None = None
    #: the targets whose files for the same model `join` adds
    joined: Sequence[str] = ()

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files by name: source code, a library, a header."""
        raise NotImplementedError

    def join(self, package: Package, settings: Mapping[str, str], others: Mapping[str, Package]) -> dict[str, bytes]:
        """The same, with those of packages of `joined` targets; any may be missing."""
        return self.export(package, settings)

    # ---- several devices, and what stands beside a host

    #: its part in a program of several devices: the host, in whose memory inputs and outputs lie, or a device
    shares: Literal["", "host", "device"] = ""
    #: of a target of several devices: their names; inputs and outputs are on the first
    device_names: Sequence[str] = ()
    #: the targets that schedule and emit for them (`driver/placement.py`), if these are other ones; None where the host
    #: only keeps inputs and outputs
    members: Sequence[Target | None] = ()
    #: what runs some of the kernels, beside the target's own machine
    coprocessor: Coprocessor | None = None

    def device_list(self) -> Sequence[str]:
        """What the devices of this machine are called, by number: ``name:device=1``; a TilewrightError if there is no
        driver or no device."""
        return ()

    def thread_count(self, nest: Nest, constants: frozenset[str]) -> int:
        """How many threads run a finished nest on one of several devices; a TilewrightError where no code can be made
        of it. `constants`: those of its parameters that are constants."""
        return 1

    def place_call(self, symbol: str, names: Sequence[str]) -> int:
        """Of several devices without `members`: the number of the one that runs this kernel, made of these nodes of
        the source."""
        return 0

    def attached_to(self, host: Target) -> Target | None:
        """See `Attachable`."""
        return None


_TARGETS: Registry[Target] = Registry(
    "target",
    "tilewright.targets",
    "TARGET",
    lambda x: isinstance(x, Target),
    ("name", "doc", "describe", "stages"),
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


def able(can: Callable[[Target], Any]) -> str:
    """The names of the targets of which something is true, for hints.

    >>> able(lambda t: t.shares == "host")
    'cpu'
    """
    return ", ".join(name for name, t in sorted(targets().items()) if can(t))


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
        made: Target | None = _attachable(other).attached_to(find(host))
        return _multi_device([host, *other.split("+")]) if made is None else made
    if (found := _described(name)) is not None:
        if not isinstance(found, Target):
            raise _not_alone(name)
        return found
    plain, colon, given = name.partition(":")
    if colon and (target := _TARGETS.get(plain)) is not None:
        return target.configured(dict(_pair(p, target.machine_parameter) for p in given.split(",")))
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
    alone = next((n for n, m in zip(names, members, strict=True) if not m.shares), twice)
    if alone is not None:
        others = [n for n in names if n != alone] or [alone]
        raise UsageError(
            f"{alone} cannot stand beside {' and '.join(others)}",
            hint=f"a chip can beside a host alone, and several of {able(lambda t: t.shares)}: `tilewright targets`",
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
