"""Exports a package as a static web site.

model.json           inputs and outputs, sizes, and which modules there are (`manifest`)
model.wasm           for one thread; model.threads.wasm for several
weights.bin          the weights, as they lie in memory
runner.js            loads and runs the model, with the scripts beside it (`RUNNER`); its types are in runner.d.ts
index.html           an example page: with page.js and style.css
serve.py, README.md  how to look at it, and how to put it into a page of one's own
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...program.package import Package
from ...program.program import TensorInfo, align_up
from .description import WasmDescription
from .module import MOST_THREADS, STACK, Module, link
from .program import barrier_count, scratch_stride, weight_offsets

#: raised whenever `site/runner.js` of an older version cannot read it
FORMAT = 1
ALONE, THREADS = "wasm", "wasm-threads"
MODULES = {ALONE: "model.wasm", THREADS: "model.threads.wasm"}
SITE = Path(__file__).with_name("site")
RUNNER = ("runner.js", "runner.d.ts", "backends.js", "tensors.js", "wasm.js", "worker.js")
#: of the example page; a Python file of a site is none of this package
PAGE = {"index.html": "index.html", "page.js": "page.js", "style.css": "style.css", "serve.py": "serve.py.txt"}


def site(package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
    """Every file of the site by name."""
    modules = {ALONE: link(package, threads=False)}
    if settings.get("threads", "yes") == "yes" and package.program.parallel:
        modules[THREADS] = link(package, threads=True)
    files = {MODULES[name]: module.data for name, module in modules.items()}
    files["model.json"] = (json.dumps(manifest(package, modules), indent=1) + "\n").encode()
    files["weights.bin"] = b"".join(weights(package))
    return files | around(package, settings)


def around(package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
    """What is the same for all backends: the runner, the page, README.md."""
    files = {name: (SITE / name).read_bytes() for name in RUNNER}
    if settings.get("page", "yes") == "yes":
        files.update((name, (SITE / source).read_bytes()) for name, source in PAGE.items())
    files["README.md"] = readme(package).encode()
    return files


def manifest(package: Package, modules: Mapping[str, Module]) -> dict[str, Any]:
    """What the runner needs to know about a model, as JSON data."""
    p = package.program
    relaxed = bool(modules) and WasmDescription.from_json(package.description).relaxed
    backends: dict[str, Any] = {
        name: {"module": MODULES[name], "pages": m.pages, "mostPages": m.most_pages, "stack": STACK, "relaxed": relaxed}
        for name, m in modules.items()
    }
    if THREADS in backends:
        backends[THREADS].update(threads=MOST_THREADS, barriers=barrier_count(p))
    return {
        "format": FORMAT,
        "name": str(package.report.get("model", "model")),
        "compiler": f"tilewright {__version__}",
        "inputs": [_tensor(t) for t in p.inputs],
        "outputs": [_tensor(t) for t in p.outputs],
        "states": [{**_tensor(s.tensor), "swapped": s.swapped} for s in p.states],
        "weights": {"file": "weights.bin", "bytes": weight_offsets(p)[-1]},
        "memory": {"arena": align_up(p.arena_size), "scratch": scratch_stride(p)},
        "backends": backends,
    }


def _tensor(t: TensorInfo) -> dict[str, object]:
    return {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "bytes": t.nbytes}


def weights(package: Package) -> Iterator[bytes]:
    """The bytes of ``weights.bin``, a weight at a time."""
    ends = weight_offsets(package.program)[1:]
    begin = 0
    for array, end in zip(package.constants, ends, strict=True):
        data = np.ascontiguousarray(array).tobytes()
        yield data + bytes(end - begin - len(data))
        begin = end


def readme(package: Package) -> str:
    """The text of ``README.md``."""
    p = package.program
    return (
        (SITE / "README.md.txt")
        .read_text(encoding="utf-8")
        .format(
            name=package.report.get("model", "model"),
            inputs="\n".join(f"- input `{t}`" for t in p.inputs),
            outputs="\n".join(f"- output `{t}`" for t in p.outputs),
        )
    )
