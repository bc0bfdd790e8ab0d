"""Exports a small BERT and a small Llama, and what ONNX Runtime's optimizers and quantizer make of them:
`python make_transformers.py FOLDER`. PyTorch stays out of the test process."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import onnx
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer

SIZES = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 128, "max_position_embeddings": 32, "attn_implementation": "eager"}


class Bert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.BertModel(transformers.BertConfig(**SIZES))

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


class Llama(torch.nn.Module):
    """With its mask given, as the exporter cannot trace how transformers makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.LlamaModel(transformers.LlamaConfig(num_key_value_heads=2, **SIZES))

    def forward(self, ids, mask):
        bias = (1 - mask[:, None, None].float()) * -1e9 + torch.triu(torch.full((16, 16), -1e9), 1)
        places = torch.arange(16)[None]
        embedded = self.model.embed_tokens(ids)
        return self.model(
            inputs_embeds=embedded, attention_mask=bias, position_ids=places, use_cache=False
        ).last_hidden_state


def export(make, folder: Path) -> None:
    arguments = (torch.zeros(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.long))
    path, names = str(folder / f"{make.__name__}.onnx"), {"input_names": ["ids", "mask"], "output_names": ["y"]}
    torch.onnx.export(make().eval(), arguments, path, opset_version=17, dynamo=False, **names)


def extended(path):
    """As ONNX Runtime saves a model that it has optimized, without what depends on the processor."""
    new = path.replace(".onnx", ".extended.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = new
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return new


def fused(path):
    """By the fusions for transformers."""
    new = path.replace(".onnx", ".fused.onnx")
    kind = "bert" if "Bert" in path else "gpt2"
    optimizer.optimize_model(path, model_type=kind, num_heads=4, hidden_size=64, opt_level=0).save_model_to_file(new)
    return new


def quantized(path):
    new = path.replace(".onnx", ".quantized.onnx")
    quantize_dynamic(
        path, new, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT}
    )
    return new


def main(folder: Path) -> None:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for make in (Bert, Llama):
        export(make, folder)
    bert, llama = (str(folder / f"{make.__name__}.onnx") for make in (Bert, Llama))
    extended(bert)
    extended(quantized(fused(bert)))
    fused(llama)
    extended(quantized(llama))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
