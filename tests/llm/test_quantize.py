"""Quantized models: formats, GPTQ and activation-aware scales against plain rounding, the folder that is written."""

import json

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed")

from llm import test_architectures as folders

from tilewright.cli import main
from tilewright.llm.checkpoint import FolderSource
from tilewright.llm.program import ModelPlan, compile_model
from tilewright.llm.quantize.awq import scaled
from tilewright.llm.quantize.calibrate import LayerProgram, embedded, step_inputs
from tilewright.llm.quantize.gptq import gptq
from tilewright.llm.quantize.quantize import perplexity, quantize
from tilewright.llm.quantize.rounding import Format
from tilewright.ops.block_weights import BlockWeights
from tilewright.support.errors import ModelError, UsageError
from tilewright.support.options import Options

FORMATS = [Format(4, 32), Format(4, 64, True), Format(8, 128), Format(8, 16, True)]


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((24, 256)).astype(np.float32) * np.exp(rng.standard_normal((24, 1))).astype(np.float32)
    w[3, : form.block] = 0
    q = form.rounded(w)
    step = np.repeat(np.abs(q.scale.astype(np.float32)), form.block, 1)
    # half a step, and what scales lose in f16: positive numbers of the largest size have no code of their own
    error = np.abs(q.dequantized() - w)
    assert (error <= step * 1.01 + np.abs(w) * 2e-3).all() and (error <= step * 0.51 + np.abs(w) * 2e-3).mean() > 0.98
    assert not q.dequantized()[3, : form.block].any()
    assert q.nbytes == w.size * form.bits // 8 + q.scale.size * (4 if form.minimum else 2)
    x = rng.standard_normal((400, 30)) @ rng.standard_normal((30, 256)) * np.exp(rng.standard_normal(256))
    x = (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)

    def lost(q):
        return float(np.linalg.norm(x @ (q.dequantized() - w).T))

    assert lost(form.rounded(w, (x**2).mean(0))) <= 1.01 * lost(q)
    assert lost(gptq(w, x.T @ x, form)) < 0.5 * lost(q)
    x[:, 7] = 0  # what no input has is lost, and nothing else
    assert lost(gptq(w, x.T @ x, form)) < 0.5 * lost(q)


def test_formats_that_are_not_possible():
    for bits, block in ((3, 32), (4, 48), (8, 256)):
        with pytest.raises(UsageError, match="are possible"):
            Format(bits, block)
    assert Format(4, 128).fitting(96).block == 32 and Format(4, 128).fitting(40) is None


@pytest.mark.parametrize("case", ["llama", "gemma2", "phi3", "olmo"])
def test_scales_change_nothing_that_is_computed(case, tmp_path):
    folders.saved(case, tmp_path)
    model, weights = FolderSource(tmp_path).read()
    tokens = np.random.default_rng(0).integers(1, 99, (2, 20))
    x, inputs = embedded(model, weights, tokens), step_inputs(2, 20)
    with LayerProgram(model, 0, weights, inputs, 1) as program:
        y, given = program(x)
    better, scales = scaled(model.layers[0], 0, weights, given, Format(4, 16))
    assert any(np.ptp(s) > 0.1 for s in scales.values())
    with LayerProgram(model, 0, {**weights, **better}, inputs, 1) as program:
        again, given_then = program(x)
    np.testing.assert_allclose(again, y, atol=2e-4 * np.abs(y).max(), rtol=0)
    for names, s in scales.items():
        np.testing.assert_allclose(given_then[names] * s, given[names], atol=2e-4 * np.abs(given[names]).max(), rtol=0)


def test_a_quantized_folder(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch")
    source = tmp_path / "source"
    model = folders.saved("llama", source)
    (source / "tokenizer.json").write_text("{}")
    tokens = np.random.default_rng(1).integers(1, 99, 400).tolist()
    with torch.no_grad():
        wanted = model(torch.tensor([tokens[300:340]])).logits[0].numpy()
    lost = {}
    for method in ("rtn", "awq", "gptq"):
        stages = []
        before, after = quantize(
            source, tmp_path / method, method, Format(4, 16), calibration=tokens[:256], threads=1,
            progress=lambda *now, to=stages: to.append(now),
        )  # fmt: skip
        assert after < 0.4 * before and stages[0] == ("layer 1 of 2", 0.0)
        assert sorted(p.name for p in (tmp_path / method).iterdir()) == [
            "config.json", "generation_config.json", *(f"model-0000{i}.safetensors" for i in range(3)),
            "model.safetensors.index.json", "tokenizer.json",
        ]  # fmt: skip
        found, weights = FolderSource(tmp_path / method).read()
        assert found == FolderSource(source).read()[0]
        assert sum(isinstance(w, BlockWeights) for w in weights.values()) == 16
        assert (
            weights["head.weight"].bits == weights["embedding.weight"].bits == 8
            and weights["layers.1.mlp.up.weight"].bits == 4
        )
        floats = {n: w.dequantized() if isinstance(w, BlockWeights) else w for n, w in weights.items()}
        plan = ModelPlan(context=64, sequences=1, tokens=64, page_length=folders.PAGE, pages=folders.PAGES, dtype="f32")
        runner = compile_model(found, floats, plan, Options.of(threads=1))
        if method == "rtn":
            assert 80 < perplexity(runner, tokens) < 130  # of a random model
        got = folders.Sequences(runner, 1).step({0: tokens[300:340]})[0]
        lost[method] = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert lost["gptq"] < lost["awq"] < lost["rtn"] < 0.15
    with pytest.raises(UsageError, match="is there already"):
        quantize(source, tmp_path / "rtn")
    with pytest.raises(UsageError, match="is quantized already"):
        quantize(tmp_path / "rtn", tmp_path / "twice")
    with pytest.raises(UsageError, match="awq needs text"):
        quantize(source, tmp_path / "none", "awq")
    config = json.loads((tmp_path / "rtn" / "config.json").read_text())
    config["tilewright_quantization"]["form"] = 9
    (tmp_path / "rtn" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="in the form 9"):
        FolderSource(tmp_path / "rtn").read()


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_experts(method, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch")
    model = folders.saved("qwen3_moe", tmp_path / "source")
    tokens = np.random.default_rng(1).integers(1, 99, 200).tolist()
    quantize(tmp_path / "source", tmp_path / "out", method, Format(8, 16), calibration=tokens, threads=1)
    found, weights = FolderSource(tmp_path / "out").read()
    at = "layers.1.mlp.experts.5"
    assert all(isinstance(weights[f"{at}.{n}.weight"], BlockWeights) for n in ("gate", "up"))
    assert not isinstance(weights[f"{at}.down.weight"], BlockWeights)  # its rows of 24 numbers are no blocks
    assert not isinstance(weights["layers.1.mlp.router.weight"], BlockWeights)
    plan = ModelPlan(
        context=64, sequences=1, tokens=64, page_length=folders.PAGE, pages=folders.PAGES, dtype="f32", precision="f32"
    )
    runner = compile_model(found, weights, plan, Options.of(threads=1))
    got = folders.Sequences(runner, 1).step({0: tokens[:20]})[0]
    with torch.no_grad():
        wanted = model(torch.tensor([tokens[:20]])).logits[0].numpy()
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.03


def test_the_command(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    source = tmp_path / "source"
    folders.saved("qwen3", source)
    text = " ".join(f"{w} does what {v} does not" for w in "abcdefgh" for v in ("one", "two", "three"))
    hf = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    hf.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "isolated")
    hf.train_from_iterator([text], tokenizers.trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>"]))
    hf.save(str(source / "tokenizer.json"))
    file = tmp_path / "text.txt"
    file.write_text(text * 3)
    out = tmp_path / "out"
    command = ["quantize-llm", str(source), "-o", str(out), "--tokens", "128", "--threads", "1"]
    assert main([*command, "--method", "awq"]) == 2 and "--calibration" in capsys.readouterr().err
    assert main([*command, "--bits", "8", "--block", "16", "--text", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["MB", "perplexity"] and [r[0] for r in rows[1:]] == ["before", "after"]
    before, after = (float(r[2]) for r in rows[1:])
    assert abs(after / before - 1) < 0.01 and (out / "tokenizer.json").exists()
