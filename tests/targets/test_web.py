"""Sites for WebGPU: what is in them, that their steps mean the model, and in a browser where there is one."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from support.gpus import device_of

import tilewright as tw
from tilewright.codegen.gpu.open_launch import Launch
from tilewright.support.errors import UnsupportedError, UsageError
from tilewright.targets.gpu.device import BufferSlice, Dispatch, Move, Run
from tilewright.targets.gpu.kernels import GpuKernel


@pytest.fixture(scope="module")
def site(compile_digits, tmp_path_factory):
    """The digits as a site, without WebAssembly."""
    folder = tmp_path_factory.mktemp("site")
    compile_digits("web").export(folder, fallback="no")
    return folder


def test_what_is_in_a_site(site):
    names = {p.name for p in site.iterdir()}
    assert {"index.html", "runner.js", "backends.js", "webgpu.js", "webgpu.json", "webgpu.bin", "model.json"} <= names
    manifest = json.loads((site / "model.json").read_text())
    assert list(manifest["backends"]) == ["webgpu"]
    assert manifest["backends"]["webgpu"]["weights"]["bytes"] == (site / "webgpu.bin").stat().st_size
    rest = sum(p.stat().st_size for p in site.iterdir() if p.suffix != ".bin")
    assert rest < 200_000


def test_the_steps_of_a_site_mean_the_model(site, digits_cases):
    """As webgpu.js runs them, on a device of Vulkan."""
    device = device_of("vulkan")
    program = json.loads((site / "webgpu.json").read_text())
    weights = np.frombuffer((site / "webgpu.bin").read_bytes(), np.uint8)
    buffers = {space: [device.allocate(n) for n in sizes] for space, sizes in program["buffers"].items()}
    ends = [*program["constants"][1:], weights.size]
    for buffer, begin, end in zip(buffers["constant"], program["constants"], ends, strict=True):
        device.write(buffer, weights[begin:end])

    def part(place):
        space, i, offset, size = place
        return BufferSlice(buffers[space][i], offset, size)

    steps = []
    for step in program["steps"]:
        if "copy" in step:
            steps.append(Move(*map(part, step["copy"])))
            continue
        k = program["kernels"][step["kernel"]]
        n = k["arguments"]
        own = GpuKernel(k["entry"], k["text"], Launch(grid=tuple(k["grid"])), (True,) * n, pieces=(1,) * n)
        steps.append(Dispatch(own, tuple(map(part, step["arguments"]))))
    images, probabilities, _ = digits_cases
    device.write(buffers["input"][0], images[:1].copy().view(np.uint8).reshape(-1))
    device.run(device.record(Run(tuple(steps))), (), ())
    out = np.empty(40, np.uint8)
    device.read(buffers["output"][0], out)
    np.testing.assert_allclose(out.view("f4"), probabilities[0], atol=1e-4)


def test_webassembly_stands_beside_it(compile_digits, tmp_path, need):
    need("wasm-ld")
    compile_digits("web").export(tmp_path, beside=[compile_digits("wasm")])
    backends = json.loads((tmp_path / "model.json").read_text())["backends"]
    assert set(backends) == {"webgpu", "wasm", "wasm-threads"} or set(backends) == {"webgpu", "wasm"}
    rest = sum(p.stat().st_size for p in tmp_path.iterdir() if p.suffix != ".bin")
    assert rest < 200_000


def test_code_for_browsers_does_not_run_here(compile_digits):
    with pytest.raises(UsageError, match="code for web does not run in this process"):
        compile_digits("web")(np.zeros((1, 1, 8, 8), "f4"))


def test_numbers_that_browsers_lack():
    from onnx import parser

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> m (double[4] x) => (double[4] y) { y = Exp(x) }'
    )
    with pytest.raises(UnsupportedError, match="dtype f64 cannot be written in WGSL"):
        tw.compile(model, target="web")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_in_a_browser(site, digits_cases):
    """The page finds WebGPU, and the runner gives the model's probabilities."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt install chromium")
    images, probabilities, _ = digits_cases
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = """async (image) => {
        const { load } = await import("./runner.js");
        const model = await load("./", { backend: "webgpu" });
        const { outputs } = await model.run({ image: Float32Array.from(image) });
        return Array.from(Object.values(outputs)[0]);
    }"""
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--enable-unsafe-webgpu"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        if page.evaluate("async () => !navigator.gpu || !(await navigator.gpu.requestAdapter())"):
            pytest.skip("this chromium has no WebGPU")
        got = page.evaluate(run, images[0].reshape(-1).tolist())
        browser.close()
    server.shutdown()
    np.testing.assert_allclose(got, probabilities[0], atol=1e-4)


#: which backend a page gets, with adapters that say such things of themselves; where files are looked for
CHOICES = """
import { WebFiles, backends, load } from "./runner.js";
const manifest = { format: 1, inputs: [], outputs: [], backends: { webgpu: {} } };
const files = { bytes: async () => new TextEncoder().encode(JSON.stringify(manifest)) };
const told = {};
for (const b of backends) b.open = async () => ({});
const wasm = backends.filter((b) => b.name !== "webgpu");
async function chosen(info, more = {}, there = true, options = {}) {
  const adapter = info && { info, ...more };
  const gpu = { requestAdapter: async () => adapter };
  Object.defineProperty(globalThis, "navigator", { value: { gpu }, configurable: true });
  for (const b of wasm) b.missing = () => (there ? "" : "none");
  return (await load("./", { files, ...options })).backend;
}
told.hardware = await chosen({ vendor: "nvidia", architecture: "ampere", isFallbackAdapter: false });
told.silent = await chosen({ vendor: "", architecture: "" });
told.swiftshader = await chosen({ vendor: "google", architecture: "swiftshader" });
told.llvmpipe = await chosen({ vendor: "mesa", description: "llvmpipe (LLVM 15.0.6, 256 bits)" });
told.flagged = await chosen({ isFallbackAdapter: true });
told.old = await chosen({}, { isFallbackAdapter: true });
told.alone = await chosen({ isFallbackAdapter: true }, {}, false);
told.asked = await chosen({ isFallbackAdapter: true }, {}, true, { backend: "webgpu" });
globalThis.location = { href: "http://site.org/page/index.html" };
told.places = ["./m/digits", "./m/digits/", "./", "http://site.org/m/model.json", "x.v2?k"].map(
  (base) => new URL("model.json", new WebFiles(base).base).href,
);
globalThis.fetch = async () => ({ ok: false, status: 404, statusText: "Not Found" });
told.missing = await load("./m/digits").catch((e) => e.message);
console.log(JSON.stringify(told));
"""


def test_a_software_adapter_comes_after_webassembly(need, tmp_path):
    """SwiftShader takes 13 ms for what WebAssembly does in 0.04."""
    need("node")
    targets = Path(tw.__file__).parent / "targets"
    for part in ("wasm", "web"):  # of the two, the target web has the list of all backends
        shutil.copytree(targets / part / "site", tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "choices.js").write_text(CHOICES)
    done = subprocess.run(["node", "choices.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout or f'"{done.stderr[-500:]}"')
    assert [told.pop(n) for n in ("hardware", "silent", "alone", "asked")] == ["webgpu"] * 4
    assert told.pop("places") == [
        "http://site.org/page/m/digits/model.json",
        "http://site.org/page/m/digits/model.json",
        "http://site.org/page/model.json",
        "http://site.org/m/model.json",
        "http://site.org/page/x.v2/model.json",
    ]
    assert told.pop("missing") == "cannot read http://site.org/page/m/digits/model.json: 404 Not Found"
    assert set(told.values()) == {"wasm-threads"}
