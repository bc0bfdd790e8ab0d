"""Language models as packages: weights once, the cache of programs, the cache's pages, and what is refused."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilewright.llm import program
from tilewright.llm.batch import Batch
from tilewright.llm.checkpoint import Checkpoint, FolderSource
from tilewright.llm.layers.rope import frequencies
from tilewright.llm.program import CompiledRunner, ModelPlan, compilations, compile_model, load_model
from tilewright.llm.settings import ModelSettings
from tilewright.schedule.machine import lanes
from tilewright.support.errors import InputError, ModelError, PackageError, UnsupportedError, UsageError
from tilewright.support.lazy_array import LazyArray
from tilewright.support.options import Options
from tilewright.targets.base import find

CONFIG = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
NAMES = {ml_dtypes.bfloat16: "BF16", np.float32: "F32"}
LIMITS = {"context": 64, "sequences": 2, "tokens": 64, "page_length": 4}


def tensors(dtype=ml_dtypes.bfloat16):
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (128, 64), "model.norm.weight": (64,)}
    for i in range(2):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{n}.weight": (64,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{at}.self_attn.{n}_proj.weight": (32 if n in "kv" else 64, 64) for n in "qkvo"}
        shapes |= {f"{at}.mlp.{n}_proj.weight": (64, 128) if n == "down" else (128, 64) for n in ("gate", "up", "down")}
    return {n: (random.standard_normal(s, np.float32) / 4 + (len(s) == 1)).astype(dtype) for n, s in shapes.items()}


def write_file(path, arrays):
    header, at = {}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": NAMES[a.dtype.type], "shape": a.shape, "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))


def write(folder, config=CONFIG, arrays=None, shards=1):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    arrays = tensors() if arrays is None else arrays
    if shards == 1:
        write_file(folder / "model.safetensors", arrays)
        return folder
    parts = {f"model-{k}.safetensors": {n: arrays[n] for n in list(arrays)[k::shards]} for k in range(shards)}
    for name, part in parts.items():
        write_file(folder / name, part)
    index = {"weight_map": {n: name for name, part in parts.items() for n in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def batch(tokens, first=0, table=(3, 1, 6, 2, 7), **changes):
    at = np.arange(first, first + len(tokens), dtype=np.int32)
    pages = np.array([table], np.int32)
    fields = {
        "tokens": np.array(tokens, np.int32),
        "positions": at,
        "slots": pages[0, at // 4] * 4 + at % 4,
        "starts": np.array([0, len(tokens)], np.int32),
        "lengths": np.array([first + len(tokens)], np.int32),
        "table": pages,
        "rows": np.arange(len(tokens), dtype=np.int32),
    }
    return Batch(**fields | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("model"), shards=3)


@pytest.fixture(scope="module")
def runner(folder):
    return load_model(folder, threads=1, cache_dtype="f32", precision="f32", cache=False, **LIMITS)


def large_constants(runner, entry):
    """Where they lie."""
    return {a.ctypes.data for a in runner.executable.entries[entry].package.constants if a.size > 64}


def test_weights_are_there_once_as_the_checkpoint_has_them(folder, runner):
    """Both entries, and the embedding that is the head too; what is more are norms in f32 and steps of the look-up."""
    own = sum(a.nbytes for a in Checkpoint(folder).tensors.values())
    weights = runner.executable.facts()["memory"]["weights"]
    wide = lanes(find("cpu").describe(), "f32") == 16  # a tile of the embedding is one of the product
    copy = 0 if wide else 128 * 64 * 2
    assert own < weights < own + copy + 5 * 64 * 2 + 64 * 4 + 256
    assert large_constants(runner, "decode") == large_constants(runner, "prefill")
    entries = runner.executable.entries
    assert {a.dtype.name for a in entries["decode"].package.constants if a.size > 64} == {"bfloat16"}


def test_a_second_start_loads_what_the_first_has_compiled(folder, runner, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    stages = []
    how = {
        "threads": 1,
        "cache_dtype": "f32",
        "precision": "f32",
        "progress": lambda stage, part: stages.append(part),
    } | LIMITS
    first = load_model(folder, **how)
    begun = compilations()
    assert stages == sorted(stages) and stages[-1] == 1 and begun
    second = load_model(str(folder), **how)
    assert compilations() == begun
    first.save(tmp_path / "model.tw")
    third = load_model(tmp_path / "model.tw", threads=1)
    expected = runner.step(batch([5, 6, 7])).logits
    for other in (first, second, third):
        assert other.limits == runner.limits and other.architecture == "llama"
        np.testing.assert_array_equal(other.step(batch([5, 6, 7])).logits, expected)
    assert second.executable.entries["decode"].package.file is not None  # weights are mapped
    load_model(folder, **how | {"context": 32})  # another program
    assert compilations() > begun


def test_weights_are_read_as_they_are_written(folder, runner, tmp_path, monkeypatch):
    """Nothing that is large is made before: it is mapped, or computed when it is asked for. Where nothing can be
    written the program is in memory."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    seen = []

    def full(packages, path):
        seen.extend(a for p in packages.values() for a in p.constants if a.nbytes > 512)
        raise OSError("no space left")

    monkeypatch.setattr(program, "save_entries", full)
    kept = load_model(folder, threads=1, cache_dtype="f32", precision="f32", **LIMITS)
    lazy = [a for a in seen if isinstance(a, LazyArray)]
    assert len(seen) - len(lazy) <= 2 and sum(a.nbytes for a in lazy) >= 4 * 64 * 64 * 2  # the norms' weights are small
    assert len({id(a) for a in lazy}) * 2 == len(lazy)  # those of two entries are the same
    expected = runner.step(batch([5, 6, 7])).logits
    np.testing.assert_array_equal(kept.step(batch([5, 6, 7])).logits, expected)
    assert large_constants(kept, "decode") == large_constants(kept, "prefill")


def test_pages_are_copied_and_moved(runner):
    runner.step(batch([1, 2, 3, 4, 5, 6]))
    expected = runner.step(batch([7, 8], 6)).logits.copy()
    runner.copy([(3, 10), (1, 11)])
    np.testing.assert_array_equal(runner.step(batch([7, 8], 6, table=(10, 11))).logits, expected)
    saved = runner.read([3, 1])
    assert set(saved) == {"k.0", "v.0", "k.1", "v.1"} and saved["k.0"].shape == (2, 4, 2, 16)
    runner.reset()
    assert not runner.read([3])["k.1"].any()
    runner.write(saved, [20, 21])
    np.testing.assert_array_equal(runner.step(batch([7, 8], 6, table=(20, 21))).logits, expected)


def test_rows_and_tokens_without_a_slot(runner):
    """Logits of the rows that are asked for, in any order; slot -1 writes nothing."""
    tokens = list(range(20))
    every = runner.step(batch(tokens)).logits.copy()
    some = runner.step(batch(tokens, rows=np.array([19, 3], np.int32)))
    np.testing.assert_allclose(some.logits, every[[19, 3]], atol=1e-5)
    assert some.hidden.shape == (2, 64)
    before = runner.read(range(16))
    runner.step(batch(tokens, slots=np.full(20, -1, np.int32)))
    assert all((a == b).all() for a, b in zip(before.values(), runner.read(range(16)).values(), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array([0, 128], np.int32)}, "tokens of a step are 0 to 127"),
        ({"slots": np.array([0, 128], np.int32)}, "slots of a step are -1 to 127"),
        ({"slots": np.array([0, -2], np.int32)}, "slots of a step"),
        ({"table": np.array([[32]], np.int32)}, "table of a step are 0 to 31"),
        ({"table": np.array([3], np.int32)}, r"\[B, N\]"),
        ({"rows": np.array([2], np.int32)}, "rows of a step are 0 to 1"),
        ({"rows": np.zeros(0, np.int32)}, "0 rows"),
        ({"lengths": np.array([1], np.int32)}, "do not begin"),
        ({"lengths": np.array([21], np.int32)}, "lengths of a step are 1 to 4"),
        ({"starts": np.array([1, 2], np.int32)}, "do not begin"),
        ({"positions": np.array([0, 1])}, r"positions of a step are i32 \[2\], got int64"),
        ({"tokens": np.zeros(65, np.int32)}, "1 to 64 tokens"),
    ],
)
def test_steps_that_lead_outside_are_refused(runner, changes, message):
    with pytest.raises(InputError, match=message):
        runner.step(replace(batch([1, 2], table=(3,)), **changes))


def test_activations_in_bf16(folder, runner):
    plan = ModelPlan(pages=32, precision="bf16", dtype="bf16", **LIMITS)
    narrow = compile_model(*FolderSource(folder).read(), plan, Options.of(threads=1))
    assert large_constants(narrow, "decode") == large_constants(narrow, "prefill")
    same = narrow.executable.facts()["memory"]["weights"] - runner.executable.facts()["memory"]["weights"]
    assert abs(same) < 256
    for tokens in ([5, 6, 7], list(range(20))):
        expected = runner.step(batch(tokens)).logits
        assert np.abs(narrow.step(batch(tokens)).logits - expected).max() < 0.03 * np.abs(expected).max()


def without(*names):
    return {n: a for n, a in tensors().items() if n not in names}


@pytest.mark.parametrize(
    ("config", "arrays", "error", "message"),
    [
        ({"model_type": "bloom"}, None, UnsupportedError, "no architecture 'bloom'.*(\n.*)*gemma2.*llama"),
        ({"attention_sink_size": 4}, None, UnsupportedError, "attention_sink_size = 4"),
        ({"quantization_config": {"bits": 4}}, None, UnsupportedError, "quantized by 'None'"),
        ({"vocab_size": 130}, None, ModelError, r"embedding.weight is \[128, 64\], config.json says \[130, 64\]"),
        ({"hidden_act": "mish"}, None, UnsupportedError, "hidden_act = 'mish'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, None, UnsupportedError, "'dynamic'"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "x": 1}},
            None,
            UnsupportedError,
            "not known: {'x': 1}",
        ),
        ({"hidden_size": None}, None, UnsupportedError, "has no 'hidden_size'"),
        ({}, without("model.layers.1.mlp.up_proj.weight"), ModelError, "no weight 'layers.1.mlp.up.weight'"),
        ({}, tensors() | {"model.layers.0.x.weight": np.zeros(2, np.float32)}, UnsupportedError, "model.layers.0.x"),
        ({}, tensors() | {"model.norm.bias": np.zeros(64, np.float32)}, UnsupportedError, "does not use: norm.bias"),
    ],
)
def test_what_would_change_results_is_no_surprise(tmp_path, config, arrays, error, message):
    write(tmp_path, CONFIG | config, arrays)
    with pytest.raises(error, match=message):
        compile_model(*FolderSource(tmp_path).read(), ModelPlan(pages=8, **LIMITS), Options.of(threads=1))


def test_folders_that_are_damaged(tmp_path):
    def refuses(message, error=ModelError):
        with pytest.raises(error, match=message):
            load_model(tmp_path, cache=False, **LIMITS)

    refuses("cannot read .*config.json")
    (tmp_path / "config.json").write_text("{")
    refuses("is not JSON")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    refuses("no safetensors files")
    path = tmp_path / "model.safetensors"
    write(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:4], whole[:300], whole[:-2], b"\xff" * 8 + whole[8:]):
        path.write_bytes(damaged)
        refuses("no safetensors file")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    refuses("lacks b.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    refuses("outside of its folder")
    for wrong in ("{}", '{"weight_map": {"a": 1}}'):
        (tmp_path / "model.safetensors.index.json").write_text(wrong)
        refuses("no weight_map")
    (tmp_path / "model.safetensors.index.json").unlink()
    path.rename(tmp_path / "model-1.safetensors")
    (tmp_path / "model-1.safetensors").write_bytes(whole)
    (tmp_path / "model-2.safetensors").write_bytes(whole)
    refuses("is in model-2.safetensors and in a file before it")
    large = json.dumps({"a": {"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 0]}})
    for header in (large, "[" * 100_000, '{"a": 1}'):
        (tmp_path / "model-2.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
        refuses("no safetensors file")
    (tmp_path / "config.json").write_text("[]")
    refuses("holds no object")
    with pytest.raises(UsageError, match="there is no model"):
        load_model(tmp_path / "nothing")
    with pytest.raises(UsageError, match="dtype is"):
        ModelPlan(dtype="i9")


def test_other_packages_are_no_language_models(runner):
    class Other:
        entries = {"main": None}

    with pytest.raises(PackageError, match="no language model"):
        CompiledRunner(Other())


def test_rotary_scalings_equal_those_of_hugging_face():
    """All kinds and ways of writing them, of heads of 64 numbers."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils", reason="needs transformers").ROPE_INIT_FUNCTIONS
    long = {"short_factor": [1.0 + i / 9 for i in range(32)], "long_factor": [2.0 + i for i in range(32)]}
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 4096}
    cases = [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 256},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 1024, "beta_fast": 16.0,
         "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.1},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False},
        {"rope_type": "longrope", "original_max_position_embeddings": 512, **long},
        {"rope_type": "longrope", "original_max_position_embeddings": 512, "factor": 5.0, **long},
    ]  # fmt: skip
    for given in cases:
        config = transformers.LlamaConfig(**sizes, rope_parameters={"rope_theta": 20000.0, **given})
        for context in (400, 4096):
            rope = ModelSettings({"model_type": "x", **sizes, "rope_theta": 20000.0, "rope_scaling": given}).rope(64)
            expected, attention = functions[given["rope_type"]](config, "cpu", seq_len=context)
            np.testing.assert_allclose(frequencies(rope, context), expected.numpy(), rtol=1e-6)
            assert rope.scaling.attention == pytest.approx(attention, rel=1e-12), given
