"""GGUF files of small random models are the same model as the folder of Hugging Face that they were made of: records of
the configuration and weights are equal, and so is what is compiled of them."""

import contextlib
import struct

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from llm import gguf_files  # noqa: E402
from llm import test_architectures as folders  # noqa: E402
from llm.test_gguf_blocks import random_tensor  # noqa: E402

from tilewright.llm.architectures import find  # noqa: E402
from tilewright.llm.checkpoint import Checkpoint, FolderSource  # noqa: E402
from tilewright.llm.gguf.architectures import ARCHITECTURES  # noqa: E402
from tilewright.llm.gguf.model import GgufSource  # noqa: E402
from tilewright.llm.gguf.reader import read_gguf  # noqa: E402
from tilewright.llm.layers.rope import frequencies  # noqa: E402
from tilewright.ops.block_weights import BlockWeights  # noqa: E402
from tilewright.support.errors import ModelError, UnsupportedError  # noqa: E402

#: what files cannot say
UNSAID = {
    "use_sliding_window": False, "query_pre_attn_scalar": 8, "scale_attn_by_inverse_layer_idx": False,
    "mlp_only_layers": [],
}  # fmt: skip
KNOWN = {a.model_type for a in ARCHITECTURES.values()} | {"mistral", "deepseek_v3", "llama_yarn_tied"}
CASES = [case for case in folders.CASES if case in KNOWN]


@pytest.fixture
def sayable(monkeypatch):
    for case, (name, fields) in list(folders.CASES.items()):
        said = fields | {k: v for k, v in UNSAID.items() if k in fields}
        monkeypatch.setitem(folders.CASES, case, (name, said))


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_the_model_of_its_folder(case, tmp_path, sayable):
    folders.saved(case, tmp_path)
    gguf_files.write(tmp_path, tmp_path / "model.gguf")
    model, weights = FolderSource(tmp_path).read()
    source = GgufSource(tmp_path / "model.gguf")
    found, arrays = source.read()
    if case == "llama":  # the file has the factors that the config computes
        for layer, other in zip(model.layers, found.layers, strict=True):
            ropes = layer.blocks[0].body.rope, other.blocks[0].body.rope
            np.testing.assert_allclose(*(frequencies(r, model.context) for r in ropes), rtol=1e-6)
    else:
        assert found == model
    for name in [n for n in weights if n.endswith("qkvz.weight")]:  # lie in two tensors
        arrays[name] = np.concatenate([arrays.pop(name.replace("qkvz", part)) for part in ("qkv", "z")])
    assert set(arrays) == set(weights)
    for name, array in weights.items():
        np.testing.assert_allclose(np.asarray(arrays[name], np.float32), array, atol=1e-7, rtol=2e-7, err_msg=name)
    assert source.digest() == GgufSource(tmp_path / "model.gguf").digest()


def test_files_in_parts_and_damaged_ones(tmp_path, sayable):
    folders.saved("qwen3", tmp_path)
    whole = tmp_path / "model.gguf"
    gguf_files.write(tmp_path, whole, "Q8_0")
    file = read_gguf(whole)
    tensors = list(file.tensors.values())
    for i in range(3):
        part = gguf.GGUFWriter(tmp_path / f"m-0000{i + 1}-of-00003.gguf", "qwen3")
        for key, value in (("split.no", i), ("split.count", 3)):
            part.add_uint16(key, value)
        part.add_int32("split.tensors.count", len(tensors))
        if i == 0:
            gguf_files._metadata(part, gguf_files.config_of(tmp_path))
        for t in tensors[i::3]:
            part.add_tensor(t.name, np.array(t.data), raw_dtype=gguf.GGMLQuantizationType[t.kind])
        part.write_header_to_file()
        part.write_kv_data_to_file()
        part.write_tensors_to_file()
        part.close()
    first = tmp_path / "m-00001-of-00003.gguf"
    (model, weights), (found, arrays) = GgufSource(whole).read(), GgufSource(first).read()
    assert found == model
    q = "layers.1.mlp.gate.weight"
    assert isinstance(arrays[q], BlockWeights)
    np.testing.assert_array_equal(arrays[q].words, weights[q].words)
    (tmp_path / "m-00002-of-00003.gguf").rename(tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="parts of the model are missing: m-00002"):
        read_gguf(first)
    with pytest.raises(ModelError, match="is one of 3 parts"):
        read_gguf(tmp_path / "other.gguf")

    data = whole.read_bytes()
    bad = tmp_path / "bad.gguf"
    for cut in (*range(0, 2000, 97), len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:cut])
        with pytest.raises(ModelError):
            read_gguf(bad)
    rng = np.random.default_rng(0)
    start = len(data) - sum(t.data.nbytes for t in tensors)
    for _ in range(300):  # headers with a few other bytes are read, or are one clear error
        changed = bytearray(data)
        for place in rng.integers(0, start, 3):
            changed[place] = rng.integers(256)
        bad.write_bytes(changed)
        with contextlib.suppress(ModelError, UnsupportedError):
            GgufSource(bad).read()
    bad.write_bytes(b"PK\x03\x04" + data[4:])
    with pytest.raises(ModelError, match="does not begin with 'GGUF'"):
        read_gguf(bad)
    bad.write_bytes(data[:4] + struct.pack(">I", 3) + data[8:])
    with pytest.raises(UnsupportedError, match="big-endian"):
        read_gguf(bad)


#: a type for each product of the two layers, as files mix them
MIXED = {
    "attn_q": ("Q4_K", "IQ4_XS"), "attn_k": ("Q4_K", "Q5_K"), "attn_v": ("Q6_K", "Q4_K"), "token_embd": ("Q6_K",),
    "attn_output": ("Q5_0", "Q8_0"), "ffn_gate": ("Q4_0", "Q2_K"), "ffn_up": ("Q4_0", "Q3_K"),
    "ffn_down": ("Q5_K", "MXFP4"),
}  # fmt: skip


def test_quantized_files_compute_what_their_weights_say(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="needs torch")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "tie_word_embeddings": True, "num_key_value_heads": 4}
    name, fields = folders.CASES["llama"]
    monkeypatch.setitem(folders.CASES, "llama", (name, fields | sizes))
    model, source = folders.saved("llama", tmp_path), Checkpoint(tmp_path)
    state = model.state_dict()

    def quantized(tensor, array):
        if array.ndim < 2:
            return None
        *at, part, _ = tensor.split(".")
        number = int(at[1]) if at else 0
        blocks = random_tensor(MIXED[part][number], *array.shape, seed=len(tensor) + number, scale=1e-3)
        return blocks.kind, blocks.data

    gguf_files.write(tmp_path, tmp_path / "model.gguf", change=quantized)
    found, weights = GgufSource(tmp_path / "model.gguf").read()
    assert sum(isinstance(w, BlockWeights) for w in weights.values()) == 15
    for key in state:
        to, _ = find(source.config)._place(key)
        if isinstance(weights.get(to), BlockWeights):
            state[key].copy_(torch.from_numpy(weights[to].dequantized()))
    tokens = np.random.default_rng(0).integers(1, 99, 21).tolist()
    with torch.no_grad():
        wanted = model(torch.tensor([tokens])).logits[0].numpy()
    plan = folders.ModelPlan(context=64, sequences=1, tokens=64, page_length=4, pages=40, dtype="f32", precision="f32")
    runner = folders.compile_model(found, weights, plan, folders.Options.of(threads=1))
    sequences = folders.Sequences(runner, 1)
    got = np.concatenate([sequences.step({0: tokens[:18]})[0], sequences.step({0: tokens[18:]})[0]])
    np.testing.assert_allclose(got, wanted, atol=1e-4 * wanted.std(), rtol=0)
