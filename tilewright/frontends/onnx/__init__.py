"""The ONNX front end: a model file, its bytes or a `ModelProto` becomes a level-2 `Graph`; see `operators`."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...support import providers
from ...support.discovery import installed_version
from ...support.mapped_file import map_file
from ..protocol import Wanted, existing, is_a, path_of

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...runtime.parts import Source, StoredSource
    from .operators import load as load
    from .registry import supported as supported

#: how a file begins that is not called .onnx: with the number of its format's version
BEGIN = b"\x08"


class Onnx:
    """See `protocol.FrontEnd`, `Digesting` and `Staging`."""

    name = "onnx"
    doc = "an .onnx file, the bytes of one, an onnx.ModelProto"
    checks_indices = True

    def accepts(self, source: object) -> bool:
        if isinstance(source, (bytes, bytearray, memoryview)):
            return True
        path = path_of(source)
        if path is None or path.suffix.lower() == ".onnx":
            return path is not None or is_a(source, "onnx", "ModelProto") or is_a(source, f"{__name__}.reader", "Model")
        if path.suffix == ".tw" or not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(1) == BEGIN

    def load(self, source: object, wanted: Wanted) -> Graph:
        from .operators import load

        return load(_there(source), inputs=wanted.shapes, lazy=wanted.lazy, check_indices=wanted.check_indices)

    def digest(self, source: object) -> str | None:
        registry = providers.loaded(f"{__name__}.registry")  # what was not imported yet has nothing added to it
        path = path_of(source)
        ours = registry is None or registry.all_ours()
        return map_file(path).digest() if ours and path is not None and os.path.isfile(path) else None

    def versions(self) -> tuple[str, ...]:
        return _versions()

    def open(self, source: object, check_indices: bool) -> Source:
        from .reader import read
        from .staging import OnnxSource

        return OnnxSource(read(_there(source)), check_indices)

    def restore(self, stored: StoredSource, check_indices: bool) -> Source:
        from .staging import OnnxSource
        from .stored import restore

        source = OnnxSource(restore(stored), check_indices)
        source.restore(stored.bodies)
        return source


def _there(source: object) -> Any:
    path = path_of(source)
    return source if path is None else existing(path)


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    return (f"onnx {installed_version('onnx')}",)


def __getattr__(name: str) -> Any:
    if name in ("load", "supported"):
        return getattr(import_module(f"{__name__}.operators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


FRONT_END = Onnx()
