"""`generate()` of transformers with its default cache, which grows with every token: Tilewright and inductor.

    python benchmarks/torch_generate.py [--models llama,t5,whisper] [--backends tilewright,inductor] [--tokens 16]
                                        [--modes default,dynamic=True]

Small random models: a Llama of two layers, a T5 with three beams, a Whisper. Each model, mode and backend is a process
of its own with empty caches. Counted: graphs of TorchDynamo, programs that are compiled in the first call of
`generate()` and in a second one, whether tokens are eager's. CPU time of both calls, and of the whole process. Writes
`results/torch_generate.json` and `.md`, in which rows of other models, modes and backends stay. inductor needs a C++
compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MODES = {"dynamic=True": True, "default": None}


def llama(tokens: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    mask = torch.ones(2, 7, dtype=torch.int64)
    given = {"attention_mask": mask, "max_new_tokens": tokens, "do_sample": False}
    return LlamaForCausalLM(config).eval(), (torch.randint(3, 96, (2, 7)),), given


def t5(tokens: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=None,
        decoder_start_token_id=0,
    )  # fmt: skip
    mask = torch.ones(2, 9, dtype=torch.int64)
    given = {"attention_mask": mask, "max_new_tokens": tokens, "num_beams": 3, "do_sample": False}
    return T5ForConditionalGeneration(config).eval(), (torch.randint(3, 96, (2, 9)),), given


def whisper(tokens: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=96, num_mel_bins=16, encoder_layers=2, encoder_attention_heads=4, decoder_layers=2,
        decoder_attention_heads=4, decoder_ffn_dim=64, encoder_ffn_dim=64, d_model=32, max_source_positions=50,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=95, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    return model, (torch.randn(2, 16, 100),), {"max_new_tokens": tokens}


MODELS: dict[str, Callable[[int], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "llama": llama,
    "t5": t5,
    "whisper": whisper,
}


def cpu_seconds() -> float:
    """Of this process and of all that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def measure(model: str, mode: str, backend: str, tokens: int) -> dict[str, Any]:
    """One model in this process."""
    import torch
    import transformers
    from torch._dynamo.utils import counters

    from tilewright.compat import torch_backend

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, given, named = MODELS[model](tokens)
    want = module.generate(*given, **named)
    compiled: list[int] = []
    compile_graph = torch_backend.compile_graph
    torch_backend.compile_graph = lambda *a: compiled.append(1) or compile_graph(*a)
    chosen = torch_backend.backend if backend == "tilewright" else backend
    module.forward = torch.compile(module.forward, backend=chosen, dynamic=MODES[mode])
    row: dict[str, Any] = {"model": model, "mode": mode, "backend": backend, "equal": True}
    for run in ("first", "second"):
        before, programs = cpu_seconds(), len(compiled)
        row["equal"] &= bool(torch.equal(module.generate(*given, **named), want))
        row[f"{run}_cpu_s"] = round(cpu_seconds() - before, 2)
        row[f"{run}_programs"] = len(compiled) - programs if backend == "tilewright" else None
        row[f"{run}_graphs"] = counters["stats"]["unique_graphs"]
    return row


def in_a_process(model: str, mode: str, backend: str, tokens: int) -> dict[str, Any] | None:
    """The same in a process of its own, with empty caches; None where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TILEWRIGHT_CACHE": f"{folder}/ours", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, __file__, "--one", model, mode, backend, "--tokens", str(tokens)],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    row["process_cpu_s"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    return row


def page(rows: list[dict[str, Any]], tokens: int) -> str:
    """The results as a table."""
    import torch
    import transformers

    lines = [
        "# generate() with a cache that grows",
        "",
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}; 1 thread, "
        f"{tokens} tokens. `benchmarks/torch_generate.py`: small random models, each in a process of its own with "
        "empty caches, on a machine on which others worked too. CPU seconds: of the first call of `generate()` (traces "
        "and compiles) and of the second one in the process itself, and of the whole process with its compiling "
        "children, imports and eager PyTorch's run included.",
        "",
        "| model | mode | backend | graphs | programs | in the second run | tokens are eager's | first, s | second, s "
        "| whole process, s |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for r in rows:
        programs = ["" if r[f"{run}_programs"] is None else str(r[f"{run}_programs"]) for run in ("first", "second")]
        lines.append(
            f"| {r['model']} | {r['mode']} | {r['backend']} | {r['first_graphs']} | {' | '.join(programs)} "
            f"| {'yes' if r['equal'] else 'NO'} | {r['first_cpu_s']} | {r['second_cpu_s']} | {r['process_cpu_s']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default="tilewright,inductor")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(*chosen.one, chosen.tokens)))
        return
    path = RESULTS / "torch_generate.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    rows = found["rows"] if found.get("tokens") == chosen.tokens else []
    for mode in chosen.modes.split(","):
        for model in chosen.models.split(","):
            for backend in chosen.backends.split(","):
                if (row := in_a_process(model, mode, backend, chosen.tokens)) is None:
                    continue
                print(row, flush=True)
                rows = sorted([r for r in rows if _key(r) != _key(row)] + [row], key=_key)
                path.write_text(json.dumps({"tokens": chosen.tokens, "rows": rows}, indent=1) + "\n")
                path.with_suffix(".md").write_text(page(rows, chosen.tokens))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (list(MODES).index(row["mode"]), list(MODELS).index(row["model"]), row["backend"] != "tilewright")


if __name__ == "__main__":
    main()
