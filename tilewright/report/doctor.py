"""Is this installation sound? One check a line: packages, processor, memory, cache folder, compiling and running."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..support import options
from ..support.errors import TilewrightError
from ..targets.base import Check, targets

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

NEEDED = ("numpy", "onnx", "ml_dtypes", "llvmlite", "torch_mlir", "typer", "rich")
#: what ``pip install 'tilewright[NAME]'`` brings, and what for
EXTRAS = {
    "torch": (("torch", "scipy"), "PyTorch modules, torch.compile"),
    "jax": (("jax",), "JAX programs"),
    "tune": (("lightgbm",), "tilewright tune"),
    "llm": (
        (
            *("tokenizers", "safetensors", "gguf", "jinja2", "llguidance"),
            *("starlette", "uvicorn", "prometheus_client", "httpx"),
        ),
        "language models, tilewright serve",
    ),
    "ray": (("lightgbm", "ray"), "tuning on machines of a Ray cluster"),
    "opencl": (("pyopencl",), "the target opencl"),
    "vulkan": (("wgpu",), "the target vulkan"),
    "demo": (("onnxruntime", "scikit-learn"), "make demo"),
}


def examine() -> Iterator[Check]:
    """Run all checks, one after another; a check that raises is a problem, never an exception.

    >>> [c.name for c in examine()][:2]
    ['python', 'numpy']
    """
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in NEEDED:
        yield _package(name)
    checks: dict[str, Callable[[], Check]] = {
        **{n: c for t in targets().values() for n, c in t.checks().items()},
        "several devices": _several,
        "memory": _memory,
        "environment": _environment,
        "cache folder": _cache,
        "MLIR": _mlir,
        "LLVM": _llvm,
    }
    for name, check in checks.items():
        try:
            yield check()
        except TilewrightError as error:
            yield Check(name, "problem", error.message, error.hint or "")
        except Exception as error:
            yield Check(name, "problem", f"{type(error).__name__}: {error}")
    for name, (packages, use) in EXTRAS.items():
        yield _extra(name, packages, use)


def _extra(name: str, packages: tuple[str, ...], use: str) -> Check:
    """What an extra is for, and whether it is there."""
    versions = {p: _version(p) for p in packages}
    missing = [p for p, v in versions.items() if v is None]
    if missing:
        return Check(f"extra {name}", "note", f"no {', '.join(missing)}: pip install 'tilewright[{name}]' ({use})")
    return Check(f"extra {name}", "ok", ", ".join(f"{p} {v}" for p, v in versions.items()))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str) -> Check:
    """Installed, importable, and of the version that this Tilewright was built with."""
    version = _version(name)
    if version is None:
        return Check(name, "problem", "not installed", "pip install tilewright brings all it needs")
    try:
        importlib.import_module(name)
    except Exception as error:  # a damaged binary wheel raises whatever it likes
        return Check(name, "problem", f"{version} cannot be imported: {error}", f"pip install --force-reinstall {name}")
    wanted = _requirement(name)
    if wanted and version not in wanted:
        return Check(name, "problem", f"{version} is installed, {wanted} is needed", f"pip install '{name}{wanted}'")
    return Check(name, "ok", version)


def _requirement(name: str) -> SpecifierSet | None:
    """The version specifier that our own metadata gives for a package; None where it is not known."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return None
    try:
        lines = importlib.metadata.requires("tilewright") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source folder
        return None
    for line in lines:
        requirement = Requirement(line)
        if requirement.name.replace("-", "_") == name and requirement.marker is None:
            return requirement.specifier
    return None


def _several() -> Check:
    """What may run one program together on this machine."""
    hosts = [name for name, t in targets().items() if t.shares == "host"]
    found = []
    for name, target in targets().items():
        with contextlib.suppress(TilewrightError):  # the target's own check says why there is none
            found += [name] * bool(target.device_list())
    if not found:
        return Check("several devices", "note", f"beside {', '.join(hosts)} there is no device that runs kernels")
    told = ", ".join(f"{name}+{host}" for name in sorted(found) for host in hosts)
    return Check("several devices", "ok", f"one program may run on {told}")


def _memory() -> Check:
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return Check("memory", "note", "cannot be read on this system")
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (page * os.sysconf(name) / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    return Check("memory", "ok", f"{total:.1f} GiB, {free:.1f} GiB free")


def _environment() -> Check:
    """Every variable of ours that is set parses, and none is misspelt."""
    for variable in options.ENVIRONMENT.values():
        variable.get()
    own = [name for name in os.environ if name.startswith("TILEWRIGHT_")]
    unknown = [name for name in own if name not in options.ENVIRONMENT]
    if unknown:
        return Check(
            "environment", "note", f"{', '.join(unknown)} means nothing", f"known: {', '.join(options.ENVIRONMENT)}"
        )
    return Check("environment", "ok", ", ".join(f"{n}={os.environ[n]}" for n in own) or "no variable of ours is set")


def _cache() -> Check:
    folder: Path = options.get("TILEWRIGHT_CACHE")
    hint = "set TILEWRIGHT_CACHE to a folder that can be written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return Check("cache folder", "problem", f"{folder} cannot be written: {error.strerror}", hint)
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return Check("cache folder", "ok", f"{folder}, {len(files)} files, {sum(files) / 1e6:.1f} MB")


def _mlir() -> Check:
    """Parse a function of our dialect's context, run a pass, print it."""
    from ..ir.context import parse, run_passes

    module = parse("func.func @f(%x: f32) -> f32 { %0 = arith.addf %x, %x : f32\n return %x : f32 }")
    run_passes(module, "builtin.module(cse)")
    if "arith.addf" in str(module):
        return Check("MLIR", "problem", "a pass ran without effect", "pip install --force-reinstall torch-mlir")
    return Check("MLIR", "ok", "parsed, verified and transformed a function")


def _llvm() -> Check:
    """Compile a function to machine code for this processor and call it."""
    import ctypes

    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "define i32 @twice(i32 %x) {\n  %y = shl i32 %x, 1\n  ret i32 %y\n}"
    machine = llvm.Target.from_default_triple().create_target_machine()
    with llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine) as engine:
        engine.finalize_object()
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(engine.get_function_address("twice"))
        answer = function(21)
    version = ".".join(map(str, llvm.llvm_version_info))
    if answer != 42:
        return Check("LLVM", "problem", f"{version}: compiled code gave {answer} for 42")
    return Check("LLVM", "ok", f"{version}: compiled a function and ran it")
