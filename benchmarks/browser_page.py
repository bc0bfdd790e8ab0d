"""Exported sites in headless Chromium: by WebGPU and by WebAssembly, against the expected results.

    python benchmarks/browser_page.py [--models digits,...] [--backends webgpu,wasm-threads] [--runs 5] [--out DIR]

For each model: the bytes of its site besides the weights, when the example page shows its first result (counted from
the begin of its loading), and, for each backend by the runner's interface: loading, the first run, the shortest of the
runs after it, and the largest error of an output, relative to its largest value, against PyTorch (digits: against
native code). Without a GPU Chromium's WebGPU runs on SwiftShader, which is a processor's: those times say nothing of
GPUs. Needs Chromium, playwright and wasm-ld.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from browser import given  # noqa: E402
from quantized import processor  # noqa: E402

import tilewright as tw  # noqa: E402

MODELS = ("digits", "mobilenet_v2", "bert_two_layers")
BACKENDS = ("webgpu", "wasm-threads", "wasm")
#: as WebGPU and threads of WebAssembly want it
FLAGS = ("--no-sandbox", "--enable-unsafe-webgpu")
HEADERS = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
PATIENCE = 300_000
_RUN = """async ([backend, told, runs]) => {
  const { load, arrayOf } = await import("./runner.js");
  const begin = performance.now();
  const model = await load("./", { backend });
  const loaded = performance.now() - begin;
  const inputs = {};
  for (const tensor of model.inputs) {
    const bytes = Uint8Array.from(atob(told[tensor.name]), (c) => c.charCodeAt(0));
    inputs[tensor.name] = new (arrayOf(tensor))(bytes.buffer);
  }
  const taken = [];
  let last;
  for (let i = 0; i < runs; i++) {
    last = await model.run(inputs);
    taken.push(last.milliseconds);
  }
  const outputs = model.outputs.map(({ name }) => {
    const own = last.outputs[name];
    let text = "";
    const bytes = new Uint8Array(own.buffer, own.byteOffset, own.byteLength);
    for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
    return btoa(text);
  });
  model.close();
  return { loaded, taken, outputs };
}"""
_SHOWN = "() => document.getElementById('timing').textContent ? performance.now() : 0"


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder's files."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def measure(name: str, browser: Any, options: argparse.Namespace) -> dict[str, Any]:
    path, inputs, expected = given(name)
    shapes = {n: a.shape for n, a in inputs.items()}
    web, wasm = (tw.compile(onnx.load(path), target=t, inputs=shapes) for t in ("web", "wasm"))
    wanted = list(expected.values()) or list(tw.compile(onnx.load(path), inputs=shapes).run(inputs))
    with tempfile.TemporaryDirectory() as folder:
        sizes = {f.name: f.stat().st_size for f in web.export(folder, beside=[wasm])}
        weights = sum(n for f, n in sizes.items() if f.endswith(".bin"))
        row: dict[str, Any] = {"model": name, "site": sum(sizes.values()) - weights, "weights": sizes["weights.bin"]}
        with served(Path(folder)) as address:
            row["first_result_ms"] = first_result(browser, address)
            for backend in options.backends.split(","):
                row[backend] = by(browser, address, backend, inputs, wanted, options.runs)
    return row


def first_result(browser: Any, address: str) -> float | None:
    """Until the example page shows one; None for a page that waits for a click."""
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("#image:not([hidden]), #numbers:not([hidden]), .error", timeout=PATIENCE)
    if error := page.query_selector(".error"):
        raise SystemExit(f"the page says: {error.inner_text()}")
    shown = None
    if page.query_selector("#image:not([hidden])"):
        shown = page.wait_for_function(_SHOWN, timeout=PATIENCE).json_value()
    page.close()
    return shown


def by(browser: Any, address: str, backend: str, inputs: Any, wanted: list[np.ndarray], runs: int) -> dict[str, float]:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}README.md")  # any file of the site: the example page would load the model too
    told = {n: base64.b64encode(np.ascontiguousarray(a).tobytes()).decode() for n, a in inputs.items()}
    found = page.evaluate(_RUN, [backend, told, runs])
    page.close()
    error = 0.0
    for text, w in zip(found["outputs"], wanted, strict=True):
        got = np.frombuffer(base64.b64decode(text), w.dtype).reshape(w.shape)
        error = max(error, float(np.abs(got.astype("f8") - w).max() / np.abs(w).max()))
    first, *rest = found["taken"]
    return {"loading_ms": found["loaded"], "first_ms": first, "run_ms": min(rest, default=first), "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium is not installed: apt install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("playwright is not installed: pip install playwright") from None
    rows = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=list(FLAGS))
        for name in options.models.split(","):
            rows.append(measure(name, browser, options))
            print(rows[-1], flush=True)
        write(rows, browser.version, options)
        browser.close()


def write(rows: list[dict[str, Any]], version: str, options: argparse.Namespace) -> None:
    options.out.mkdir(exist_ok=True)
    data = {"machine": processor(), "date": time.strftime("%Y-%m-%d"), "chromium": version, "rows": rows}
    (options.out / "browser_page.json").write_text(json.dumps(data, indent=1) + "\n")
    names = [b for b in BACKENDS if b in rows[0]]
    lines = [
        "# Sites in a browser",
        "",
        f"{processor()}, {data['date']}; headless Chromium {version}, whose WebGPU runs on the processor here "
        "(SwiftShader): its times say nothing of GPUs. Made by `benchmarks/browser_page.py`. *Site*: bytes besides the "
        "weights. *First result*: of the example page, from the begin of its loading. A run: the shortest of "
        f"{options.runs - 1}, after the first. Errors are relative to an output's largest value, against PyTorch "
        "(digits: against native code).",
        "",
        "| model | site (bytes) | weights | first result (ms) | by | loading (ms) | first run | run | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = "on a click" if row["first_result_ms"] is None else f"{row['first_result_ms']:.0f}"
        cells = [row["model"], f"{row['site']:,}", f"{row['weights']:,}", shown]
        for b in names:
            one = row[b]
            times = [f"{one[k]:.3g}" for k in ("loading_ms", "first_ms", "run_ms")]
            lines.append("| " + " | ".join([*cells, b, *times, f"{one['error']:.1e}"]) + " |")
            cells = [""] * 4
    (options.out / "browser_page.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
