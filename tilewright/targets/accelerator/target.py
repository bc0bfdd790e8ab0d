"""An accelerator as a compilation target: alone, or with a host that runs what it cannot.

    tw.compile(model, target="systolic32")              all of it on the chip, or an error that says what is not
    tw.compile(model, target="cpu+systolic32")          the rest on the processor
    tw.compile(model, target="cpu+my_chip.py")          a chip that a file describes
    tw.compile(model, target="cpu+systolic32:array=16") one with other parameters

The chip is simulated. It reads and writes the host's memory, so a program has one arena; between calls of the chip's
kernels the host runs its own, each run of them as one native function.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ...support.errors import PackageError, UsageError
from ..base import Attachable, Target, TargetStage
from ..multi_device.coprocessor import HostWithCoprocessor
from .describe import Chip

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers
    from .binary import Formats
    from .stages import ChipKernels
    from .system import SystemRunner


class ChipTarget(Target):
    """See `tilewright.targets.base.Target`; `given` is what follows the chip's name in that of the target. A chip of a
    file is called `name`, and in packages, which know no folders, `kept`."""

    def __init__(
        self, kind: type[Chip], given: Mapping[str, Any] | None = None, name: str = "", kept: str = ""
    ) -> None:
        self.kind, self.parameters, self.kept = kind, dict(given or {}), kept
        self.plain = name or kind.name
        self.name, self.doc = self.called(self.plain), f"{kind.doc} (simulated)"

    def called(self, plain: str) -> str:
        """A name with the parameters that are given."""
        shown = ",".join(f"{k}={v}" for k, v in self.parameters.items())
        return f"{plain}{',' if ':' in plain else ':'}{shown}" if shown else plain

    @property
    def recorded(self) -> str:
        return self.called(self.kept or self.plain)

    @cached_property
    def chip(self) -> Chip:
        from .check import check

        made = self.kind(**self.parameters)
        check(made)
        return made

    @cached_property
    def formats(self) -> Formats:
        from .binary import Formats

        return Formats(self.chip)

    @cached_property
    def coprocessor(self) -> ChipKernels:  # type: ignore[override]
        return _kernels(self, None)

    def configured(self, parameters: Mapping[str, str]) -> ChipTarget:
        return ChipTarget(self.kind, parsed(self.kind, parameters), self.plain, self.kept)

    def attached_to(self, host: Target) -> ChipWithHost:
        return ChipWithHost(self, host)

    def describe(self) -> Chip:
        return self.chip

    def stages(self) -> Sequence[TargetStage]:
        from .stages import alone

        return alone()

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> SystemRunner:
        from .system import SystemRunner

        return SystemRunner(package, threads, lambda: self.formats, None, states)


class ChipWithHost(HostWithCoprocessor):
    """A chip and a host as one target."""

    def __init__(self, chip: ChipTarget, host: Target) -> None:
        super().__init__(host, chip.name, chip.recorded, chip.doc)
        self.chip = chip

    @cached_property
    def coprocessor(self) -> ChipKernels:  # type: ignore[override]
        return _kernels(self.chip, self.host)

    def describe(self) -> Any:
        """The host's description, with bytes kept as the chip multiplies them."""
        from .stages import host_machine

        return host_machine(self.host.describe(), self.chip.chip)

    def stages(self) -> Sequence[TargetStage]:
        from .stages import with_chip

        return with_chip(self.host)

    def taken(self, objects: Mapping[str, bytes]) -> Set[str]:
        from .system import on_chip

        return on_chip(objects)

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> SystemRunner:
        from .system import SystemRunner

        return SystemRunner(package, threads, lambda: self.chip.formats, self.host, states)


def _kernels(chip: ChipTarget, host: Target | None) -> ChipKernels:
    from .stages import ChipKernels

    return ChipKernels(chip.formats, chip.name, host)


class AbsentChip(ChipTarget):
    """The chip of a file that this process was not given: what a package has for the host runs without it."""

    def __init__(self, name: str) -> None:
        self.name = self.plain = self.kept = self.doc = name
        self.parameters = {}

    @property
    def kind(self) -> type[Chip]:  # type: ignore[override]
        file = self.plain.partition("#")[0]
        others = [k for k in _GIVEN if k.partition("#")[0] == file]
        raise PackageError(
            f"the package has programs for the chip {self.name}, whose simulator is the Python that describes it"
            + (f"; the file given is another one: {', '.join(others)}" if others else ""),
            stage="load",
            hint=f"a package names no code to run: give the file that it was made with, tilewright.load(..., "
            f"chip={file!r}) or --chip {file}",
        )

    def configured(self, parameters: Mapping[str, str]) -> ChipTarget:
        return AbsentChip(f"{self.plain}:{','.join(f'{k}={v}' for k, v in parameters.items())}")


# ---- names ---------------------------------------------------------------------------------------------------------


def parsed(kind: type[Chip], parameters: Mapping[str, str]) -> dict[str, Any]:
    """Parameters from text; UsageError for one that the chip has not."""
    known = {f.name for f in fields(kind)}
    found = {}
    for name, text in parameters.items():
        if name not in known:
            raise UsageError(f"{kind.name} has no parameter {name!r}", hint=f"it has {', '.join(sorted(known))}")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise UsageError(f"{text[:80]!r} is no number for {name} of {kind.name}", hint=f"{name}=16") from None
    return found


#: chips of files that users gave to this process, by what packages call them: the file's name and a digest of it
_GIVEN: dict[str, type[Chip]] = {}


def from_file(name: str) -> Any:
    """The chip that a file describes, ``path/to/chip.py`` or ``path/to/chip.py:parameter=value``, of several in it
    ``path/to/chip.py:name,parameter=value``; or what else its ``CHIP`` is that can stand beside a host (`tw.offload`
    gives such). The file is run: the name must be a user's own.
    """
    path_text, _, given = name.partition(":")
    path = Path(path_text)
    if not path.is_file():
        raise UsageError(f"there is no file {path_text}", hint="a chip's file is a Python file with `CHIP`")
    wanted, given = one_of_several(given)
    found = chip_in(path, wanted)
    if isinstance(found, Attachable):
        if given:
            raise UsageError(f"{found.name} in {path_text} has no parameters", hint=f"leave out :{given}")
        return found
    kind = kind_of(found, path)
    kept = f"{path.name}#{_digest(kind, path)}"
    _GIVEN[kept] = kind
    return _with(ChipTarget(kind, name=f"{path_text}:{wanted}" if wanted else path_text, kept=kept), given)


def from_package(name: str) -> ChipTarget:
    """The chip that a package calls so (`ChipTarget.recorded`), if a user gave it to this process: no file is run."""
    plain, _, given = name.partition(":")
    return _with(ChipTarget(_GIVEN[plain], name=plain, kept=plain) if plain in _GIVEN else AbsentChip(plain), given)


def _with(target: ChipTarget, given: str) -> ChipTarget:
    if not given:
        return target
    pairs = [p.partition("=") for p in given.split(",")]
    return target.configured({name.strip(): value.strip() for name, _, value in pairs})


def one_of_several(given: str) -> tuple[str, str]:
    """The name of a chip, if what follows a file begins with one, and the parameters.

    >>> one_of_several("dsp,lanes=32"), one_of_several("lanes=32")
    (('dsp', 'lanes=32'), ('', 'lanes=32'))
    """
    first, _, rest = given.partition(",")
    return ("", given) if "=" in first else (first, rest)


def chip_in(path: Path, wanted: str = "") -> Any:
    """The chip of that name in a file; without a name what is called ``CHIP``, or the only one; None if there is none.
    The file may import others of its folder. UsageError if it cannot be run, or has no such chip, or several."""
    from .identity import with_siblings

    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]  # files of one name in two folders are two
    spec = importlib.util.spec_from_file_location(f"tilewright_chip_{path.stem}_{place}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with with_siblings(path, spec.name):
            spec.loader.exec_module(module)
    except Exception as e:
        raise UsageError(f"{path} cannot be read: {type(e).__name__}: {e}", stage="describe") from e
    found = [k for k in vars(module).values() if _is_chip(k) and k.__module__ == spec.name and k.name]
    named = {k.name: k for k in found}
    if wanted and wanted not in named:
        raise UsageError(f"there is no chip {wanted!r} in {path}", hint=f"chips: {', '.join(named) or 'none'}")
    if wanted or "CHIP" in vars(module):
        return named[wanted] if wanted else vars(module)["CHIP"]
    if len(named) > 1:
        one = next(iter(named))
        raise UsageError(
            f"{path} has several chips: {', '.join(named)}",
            hint=f"name one, {path}:{one}, or set CHIP = {named[one].__name__}",
        )
    return next(iter(named.values()), None)


def _is_chip(found: object) -> TypeGuard[type[Chip]]:
    return isinstance(found, type) and issubclass(found, Chip) and is_dataclass(found)


def _digest(kind: type[Chip], path: Path) -> str:
    """Of a chip's name and the files that describe it, but for those of this package."""
    from .identity import files_of

    ours = Path(__file__).parents[2]
    files = {path.resolve(), *(f.resolve() for f in files_of(kind))}
    contents = sorted(f.read_bytes() for f in files if ours not in f.parents)
    return hashlib.sha256(b"\0".join([kind.name.encode(), *contents])).hexdigest()[:16]


def kind_of(found: object, path: Path) -> type[Chip]:
    """What is called ``CHIP`` in a file, if it is a chip's class."""
    if not _is_chip(found):
        raise UsageError(
            f"{path} describes no chip", stage="describe", hint="CHIP = a dataclass that inherits accelerator.Chip"
        )
    return found
