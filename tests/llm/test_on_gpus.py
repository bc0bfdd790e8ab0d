"""Language models on GPUs: OpenCL by whatever driver is here, and CUDA in the emulator, beside the processor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from llm import test_architectures as folders
from llm.test_program import batch
from support.cuda_driver import EmulatedDriver
from support.cuda_emulator import needs_compiler
from support.gpus import device_of

from tilewright.llm.engine.engine import LLMEngine
from tilewright.llm.gguf.model import GgufSource
from tilewright.llm.program import ModelPlan, compilations, compile_model, load_model
from tilewright.llm.request import GenerationRequest, Sampling
from tilewright.support.options import Options
from tilewright.targets.cuda import device as cuda
from tilewright.targets.cuda import stages as cuda_stages
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.gpu.states import DeviceState

LIMITS = {"context": 64, "sequences": 2, "tokens": 64, "page_length": 4}
#: a target, a folder, the type of its weights in a GGUF file (none: the folder), type of the cache, precision
CASES = [
    ("opencl:kind=gpu", "qwen3", "Q4_0", "bf16", "auto"),
    ("opencl:kind=gpu", "qwen3_next", "", "f32", "f32"),
    ("opencl", "qwen3_moe", "Q8_0", "int8", "auto"),
]


def saved(case, kind, folder):
    folders.saved(case, folder)
    if not kind:
        return folder
    pytest.importorskip("gguf", reason="gguf is not installed")
    from llm import gguf_files

    gguf_files.write(folder, folder / "model.gguf", kind)
    return folder / "model.gguf"


def served(runner, prompts, path):
    """Texts of prompts, with a prefix that is shared, chunks, and a state that is saved and read again."""
    ask = [GenerationRequest(p, Sampling(max_tokens=10, temperature=0)) for p in prompts]
    with LLMEngine(runner, step_tokens=24) as engine:
        first = [list(engine.submit(r)) for r in ask[:1]]
        streams = [engine.submit(r) for r in ask[1:]]
        texts = [*first, *map(list, streams)]
        engine.save_prefix(prompts[0], path)
        engine.call(engine.cache.clear)
        engine.load_prefix(path)
        texts.append(list(engine.submit(ask[0])))
        metrics = engine.metrics()
    assert metrics["requests_failed"] == 0 and metrics["prompt_tokens_cached"]
    return [[t for p in pieces for t in p.tokens] for pieces in texts]


@pytest.mark.parametrize("target, case, kind, dtype, precision", CASES)
def test_texts_are_those_of_the_processor(target, case, kind, dtype, precision, tmp_path, monkeypatch):
    """And states stay on the device, weights are there once for both entries, and nothing is compiled in service."""
    device = device_of("opencl")
    path = saved(case, kind, tmp_path)
    options = {"cache_dtype": dtype, "precision": precision, "snapshots": 8, "cache": False, **LIMITS}
    rng = np.random.default_rng(0)
    shared = rng.integers(1, 99, 21).tolist()
    prompts = [[*shared, *rng.integers(1, 99, n).tolist()] for n in (1, 9)] + [rng.integers(1, 99, 30).tolist()]
    found, fetched = {}, []
    monkeypatch.setattr(DeviceState, "fetch", lambda self, array: fetched.append(self.host.tensor.name))
    for name in ("cpu", target):
        runner = load_model(path, target=name, threads=1, **options)
        begun, programs = compilations(), len(device.programs)
        fetched.clear()
        found[name] = served(runner, prompts, tmp_path / f"{name[:3]}.state")
        assert compilations() == begun and len(device.programs) == programs
        assert not fetched
    assert found[target] == found["cpu"]
    entries = runner.executable.entries.values()
    assert not any(s.swapped for e in entries for s in e.package.program.states)
    decode, prefill = ({id(c.buffer) for c in e._runner.constants if c.array.nbytes > 1024} for e in entries)
    assert decode == prefill
    runner.close()


@needs_compiler
def test_steps_in_the_emulator_of_nvidias_threads(tmp_path, monkeypatch):
    """A chunk of a prompt, and a token after it."""
    path = saved("qwen3", "Q4_0", tmp_path)
    emitted, original = {}, cuda_stages.emit

    def recorded(nest, machine):  # kernels of both entries have the same names
        name = f"{nest.name}_{len(emitted)}"
        emitted[name] = original(replace(nest, name=name), machine)
        return emitted[name]

    monkeypatch.setattr(cuda_stages, "emit", recorded)
    plan = ModelPlan(64, sequences=2, tokens=64, page_length=4, pages=24, dtype="f32")
    runners = []
    for target in ("cpu", "cuda"):
        runners.append(compile_model(*GgufSource(path).read(), plan, Options.of(target=target, threads=1, cache=False)))
    device = cuda.CudaDevice(Driver(EmulatedDriver(emitted)))
    for entry in runners[1].executable.entries.values():
        entry._runner.find = lambda: device
    for given in (batch(list(range(3, 20)), rows=np.array([16], np.int32)), batch([5], 17)):
        want, found = (r.step(given).logits.copy() for r in runners)
        np.testing.assert_allclose(found, want, atol=1e-5, rtol=0)
    for runner in runners:  # rows of states
        runner.copy([(3, 10), (10, 11)])
        runner.write(runner.read([1, 11]), [12, 13])
    want, found = (r.read([13, 12]) for r in runners)
    assert all(want[n].any() and np.allclose(found[n], want[n], atol=1e-5) for n in want)
