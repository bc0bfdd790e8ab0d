"""Export of a package as source or object files: what its target writes, and the memory plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..program.memory import picture, table
from ..program.package import Package
from ..support.errors import UsageError
from ..targets import base


def exports(target: Any) -> bool:
    """Whether a target writes files for other tools."""
    return isinstance(target, base.Exporter)


def check_settings(target: Any, settings: Mapping[str, str]) -> None:
    """UsageError if the target exports nothing, or does not have one of the settings."""
    if not exports(target):
        known = ", ".join(n for n, t in sorted(base.targets().items()) if isinstance(t, base.Exporter))
        raise UsageError(
            f"target {target.name!r} makes packages, not files for other tools",
            stage="package",
            hint=f"write a package (m.tw), or choose a target that exports: {known}",
        )
    for name, value in settings.items():
        if name not in target.settings:
            raise UsageError(
                f"target {target.name!r} has no setting {name!r}",
                hint=f"it has: {', '.join(target.settings) or 'none'}",
            )
        choices = target.settings[name][0]
        if value not in choices:
            raise UsageError(f"setting {name!r} cannot be {value!r}", hint=f"choose from {', '.join(choices)}")


def export(
    target: Any, package: Package, folder: Path, settings: Mapping[str, str], others: Sequence[Package] = ()
) -> list[Path]:
    """See `Executable.export`; `others`: packages of targets that this one joins (`targets.base.Joining`)."""
    check_settings(target, settings)
    if isinstance(target, base.Joining):
        files = target.join({p.target: p for p in (package, *others)}, settings)
    else:
        files = target.export(package, settings)
    files["memory.txt"] = table(package.program).encode()
    files["memory.svg"] = picture(package.program).encode()
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            part = folder / f".{name}.part"
            part.write_bytes(data)
            written.append(part.replace(folder / name))
    except OSError as e:
        raise UsageError(f"cannot write into {str(folder)!r}: {e.strerror or e}", stage="package") from None
    return written
