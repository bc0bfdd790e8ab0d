"""The zoo: real architectures with random weights that nothing here is tuned for, exported to ONNX by both exporters.

    python benchmarks/zoo_models.py --list
    python benchmarks/zoo_models.py swin_tiny nest_tiny --out DIR      # made if they are not there

Each model is exported in a process of its own, because some exporters fail hard. Families are files: this one has
timm, torchvision and diffusers; `zoo_transformers.py` and `zoo_sklearn.py` the others. A model that says nothing else
is exported by PyTorch's two exporters in turn, one after the other through the list, so that each sees every family.

Needs the packages of the `zoo` extra, and torchvision without its compiled operators (`zoo_shims.py`): for those,
`pip install --no-deps timm torchvision==0.28.0`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "models" / "zoo"
SEED = 20261122
EXPORTERS = ("dynamo", "torchscript")


@dataclass
class Entry:
    """A model of the zoo. `make()` gives a module and its inputs by name, or (sklearn) writes ONNX itself."""

    family: str
    make: Callable[[], Any]
    exporter: str = ""  # empty: by its place in the list
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)


@dataclass
class Made:
    """A module in evaluation mode and its inputs by name, in the order of `forward`."""

    module: Any
    inputs: dict[str, Any]


@dataclass
class MadeOnnx:
    """A model that its own converter wrote, with inputs and what the framework computes for them."""

    proto: Any
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


REGISTRY: dict[str, Entry] = {}


def entry(family: str, name: str = "", exporter: str = "", dynamic: dict[str, dict[int, str]] | None = None):
    """Register the decorated function as a model, under its own name unless another is given."""

    def register(make: Callable[[], Any]):
        REGISTRY[name or make.__name__] = Entry(family, make, exporter, dynamic or {})
        return make

    return register


def image(size: int, channels: int = 3, batch: int = 1):
    import torch

    return torch.randn(batch, channels, size, size)


def settled(module, *sample):
    """The module in evaluation mode, its batch norms with statistics that fit the random weights."""
    from models import settle_batch_norms

    module.eval()
    if any("BatchNorm" in type(m).__name__ for m in module.modules()):
        settle_batch_norms(_Call(module), sample)
    return module.eval()


class _Call:
    """A module that takes its arguments as one tuple, as `settle_batch_norms` calls it."""

    def __init__(self, module) -> None:
        self.module = module

    def __call__(self, arguments):
        return self.module(*arguments)

    def __getattr__(self, name):
        return getattr(self.module, name)


# ---- timm ----

#: architecture of timm -> size of its image
TIMM = {
    **dict.fromkeys(
        [
            "swin_tiny_patch4_window7_224",
            "swinv2_cr_tiny_ns_224",
            "davit_tiny",
            "hiera_tiny_224",
            "nest_tiny",
            "gcvit_xxtiny",
            "coatnet_nano_rw_224",
            "tiny_vit_5m_224",
            "efficientformer_l1",
            "efficientformerv2_s0",
            "ese_vovnet19b_dw",
            "convnext_atto",
            "convnextv2_atto",
            "pvt_v2_b0",
            "mvitv2_tiny",
            "volo_d1_224",
            "efficientnet_b0",
            "mobilenetv3_large_100",
            "mobilenetv4_conv_small",
            "mobilenetv4_hybrid_medium",
            "ghostnet_100",
            "ghostnetv2_100",
            "mixnet_s",
            "regnetx_004",
            "regnety_004",
            "densenet121",
            "res2net50_14w_8s",
            "resnest14d",
            "skresnet18",
            "seresnet50",
            "hrnet_w18_small",
            "dla34",
            "vgg11",
            "repvgg_a0",
            "mobileone_s0",
            "levit_128s",
            "poolformer_s12",
            "convformer_s18",
            "caformer_s18",
            "focalnet_tiny_srf",
            "twins_svt_small",
            "twins_pcpvt_small",
            "cait_xxs24_224",
            "xcit_nano_12_p16_224",
            "deit_tiny_patch16_224",
            "mixer_s32_224",
            "gmlp_ti16_224",
            "resmlp_12_224",
            "repvit_m0_9",
            "starnet_s1",
            "inception_next_atto",
            "efficientvit_m0",
            "sequencer2d_s",
            "dpn68",
            "tinynet_a",
            "rexnet_100",
            "lcnet_050",
            "pit_ti_224",
            "coat_tiny",
            "mambaout_femto",
            "hgnetv2_b0",
            "cspresnet50",
            "gernet_s",
            "shvit_s1",
            "tf_efficientnet_b0",
            "vit_relpos_small_patch16_224",
            "beit_base_patch16_224",
            "nf_regnet_b0",
            "convit_tiny",
        ],
        224,
    ),
    **dict.fromkeys(
        [
            "swinv2_tiny_window8_256",
            "maxvit_pico_rw_256",
            "edgenext_xx_small",
            "mobilevit_xxs",
            "mobilevitv2_050",
            "fastvit_t8",
            "botnet26t_256",
            "halonet26t",
            "lambda_resnet26t",
        ],
        256,
    ),
    "inception_v3": 299,
    "crossvit_tiny_240": 240,
    "eva02_tiny_patch14_224": 224,
}


def _timm(name: str, size: int) -> Made:
    import timm

    return Made(settled(timm.create_model(name), image(size, batch=2)), {"image": image(size)})


for _name, _size in TIMM.items():
    entry("timm", f"timm_{_name}")(lambda name=_name, size=_size: _timm(name, size))


# ---- torchvision ----


def _torchvision(name: str, *shape: int, **options) -> Made:
    import torch
    import torchvision.models as models

    module = models.get_model(name, weights=None, **options)
    return Made(settled(module, torch.randn(2, *shape[1:])), {"image": torch.randn(*shape)})


for _name in ("shufflenet_v2_x1_0", "googlenet", "squeezenet1_1", "mnasnet0_5", "efficientnet_v2_s", "alexnet"):
    _options = {"aux_logits": False, "init_weights": True} if _name == "googlenet" else {}
    entry("torchvision", f"tv_{_name}")(lambda n=_name, o=_options: _torchvision(n, 1, 3, 224, 224, **o))
for _name in ("mc3_18", "swin3d_t"):
    entry("torchvision", f"tv_{_name}")(lambda n=_name: _torchvision(n, 1, 3, 8, 112, 112))


class _Out:
    """Builders of modules that give one field of another's result."""

    @staticmethod
    def field(inner, name: str):
        import torch

        class Field(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x)[name]

        return Field()


def _segmentation(name: str, size: int) -> Made:
    import torchvision.models.segmentation as models

    inner = getattr(models, name)(weights=None, weights_backbone=None, num_classes=21)
    module = _Out.field(inner, "out")
    return Made(settled(module, image(size, batch=2)), {"image": image(size)})


for _name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50", "deeplabv3_resnet50"):
    entry("torchvision", f"tv_{_name}")(lambda n=_name: _segmentation(n, 224))


def _detection(name: str, size: int, **options) -> Made:
    import torch
    import torchvision.models.detection as models

    inner = getattr(models, name)(weights=None, weights_backbone=None, **options).eval()

    class Detector(torch.nn.Module):
        """Boxes, scores and labels of one image."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):
            (found,) = self.inner([x])
            return found["boxes"], found["scores"], found["labels"]

    return Made(Detector().eval(), {"image": torch.rand(3, size, size)})


entry("torchvision", "tv_ssdlite320", exporter="torchscript")(lambda: _detection("ssdlite320_mobilenet_v3_large", 320))
entry("torchvision", "tv_retinanet", exporter="torchscript")(
    lambda: _detection("retinanet_resnet50_fpn_v2", 256, min_size=256, max_size=256)
)


# ---- diffusers ----


class _Sample:
    @staticmethod
    def of(inner, names: Sequence[str]):
        """A diffusers model that gives its sample, called with named tensors."""
        import torch

        class Sample(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, *tensors):
                return self.inner(**dict(zip(names, tensors, strict=True)), return_dict=False)[0]

        return Sample().eval()


@entry("diffusers")
def diffusers_unet() -> Made:
    import torch
    from diffusers import UNet2DModel

    inner = UNet2DModel(sample_size=32, layers_per_block=1, block_out_channels=(64, 128, 128), norm_num_groups=16,
                        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
                        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
    inputs = {"sample": image(32), "timestep": torch.tensor([17])}
    return Made(_Sample.of(inner, list(inputs)), inputs)


@entry("diffusers")
def diffusers_unet_condition() -> Made:
    import torch
    from diffusers import UNet2DConditionModel

    inner = UNet2DConditionModel(sample_size=32, layers_per_block=1, block_out_channels=(64, 128), norm_num_groups=16,
                                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=96,
                                 up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8)  # fmt: skip
    inputs = {
        "sample": image(32, 4),
        "timestep": torch.tensor([17]),
        "encoder_hidden_states": torch.randn(1, 20, 96),
    }
    return Made(_Sample.of(inner, list(inputs)), inputs)


@entry("diffusers")
def diffusers_vae_decoder() -> Made:
    from diffusers import AutoencoderKL

    inner = AutoencoderKL(block_out_channels=(32, 64, 128), latent_channels=4, norm_num_groups=16,
                          down_block_types=("DownEncoderBlock2D",) * 3,
                          up_block_types=("UpDecoderBlock2D",) * 3)  # fmt: skip
    return Made(_Decode.of(inner), {"latent": image(24, 4)})


class _Decode:
    @staticmethod
    def of(inner):
        import torch

        class Decode(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, latent):
                return self.inner.decode(latent, return_dict=False)[0]

        return Decode().eval()


@entry("diffusers")
def diffusers_dit() -> Made:
    import torch
    from diffusers import DiTTransformer2DModel

    inner = DiTTransformer2DModel(num_attention_heads=6, attention_head_dim=48, in_channels=4, out_channels=8,
                                  num_layers=4, sample_size=32, norm_num_groups=4)  # fmt: skip
    inputs = {"hidden_states": image(32, 4), "timestep": torch.tensor([17]), "class_labels": torch.tensor([3])}
    return Made(_Sample.of(inner, list(inputs)), inputs)


@entry("diffusers")
def diffusers_unet_1d() -> Made:
    import torch
    from diffusers import UNet1DModel

    inner = UNet1DModel(sample_size=256, in_channels=2, out_channels=2, extra_in_channels=16,
                        block_out_channels=(32, 32, 64),
                        down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
                        up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"))  # fmt: skip
    inputs = {"sample": torch.randn(1, 2, 256), "timestep": torch.tensor([17])}
    return Made(_Sample.of(inner, list(inputs)), inputs)


# ---- export ----


def load_families() -> None:
    """Fill the registry with the models of all files."""
    import zoo_sklearn  # noqa: F401
    import zoo_transformers  # noqa: F401


def exporter_of(name: str) -> str:
    """Which exporter a model goes through."""
    given = REGISTRY[name].exporter
    return given or EXPORTERS[list(REGISTRY).index(name) % len(EXPORTERS)]


def export(name: str, out: Path) -> None:
    """Write ``NAME.onnx``, ``NAME.inputs.npz`` and ``NAME.expected.npz``; the model last, so that one that is there is
    whole."""
    import onnx
    import torch

    chosen = REGISTRY[name]
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    made = chosen.make()
    part = out / f".{name}.{os.getpid()}.onnx"
    if isinstance(made, MadeOnnx):
        inputs, expected = made.inputs, made.expected
        onnx.save(made.proto, part)
    else:
        made.module.eval().requires_grad_(False)
        with torch.no_grad():
            results = made.module(*made.inputs.values())
        results = [results] if torch.is_tensor(results) else list(results)
        outputs = [f"output_{i}" for i in range(len(results))]
        _export_torch(made, outputs, exporter_of(name), part, chosen.dynamic)
        inputs = {k: v.numpy() for k, v in made.inputs.items()}
        expected = {k: v.numpy() for k, v in zip(outputs, results, strict=True)}
    there = {i.name for i in onnx.load(part, load_external_data=False).graph.input}
    for kind, values in (("inputs", {k: v for k, v in inputs.items() if k in there}), ("expected", expected)):
        scratch = out / f".{name}.{os.getpid()}.npz"
        np.savez(scratch, **values)
        scratch.replace(out / f"{name}.{kind}.npz")
    part.replace(out / f"{name}.onnx")


def _export_torch(made: Made, outputs: list[str], exporter: str, path: Path, dynamic: dict) -> None:
    """By the exporter that is asked for, or by the other one if that fails; the file says which it was."""
    import onnx

    for chosen in (exporter, *(e for e in EXPORTERS if e != exporter)):
        try:
            _export_by(chosen, made, outputs, path, dynamic)
        except Exception as e:
            if chosen != exporter:
                raise
            print(f"{exporter}: {type(e).__name__}: {str(e)[:300]}", file=sys.stderr)
            continue
        proto = onnx.load(path)
        proto.metadata_props.add(key="exporter", value=chosen)
        onnx.save(proto, path)
        return


def _export_by(exporter: str, made: Made, outputs: list[str], path: Path, dynamic: dict) -> None:
    import torch

    names = {"input_names": list(made.inputs), "output_names": outputs}
    arguments = tuple(made.inputs.values())
    if exporter == "torchscript":
        torch.onnx.export(
            made.module, arguments, str(path), dynamo=False, opset_version=17, dynamic_axes=dynamic or None, **names
        )
        return
    shapes = None
    if dynamic:
        dims = {d: torch.export.Dim(d) for axes in dynamic.values() for d in axes.values()}
        shapes = [{axis: dims[d] for axis, d in dynamic.get(n, {}).items()} for n in made.inputs]
    program = torch.onnx.export(
        made.module, arguments, dynamo=True, opset_version=18, external_data=False, verbose=False,
        dynamic_shapes=tuple(shapes) if shapes else None, **names,
    )  # fmt: skip
    assert program is not None
    program.save(str(path))


def ensure(name: str, out: Path, timeout: float = 900.0) -> str:
    """Export a model in a process of its own if it is not there; why that failed, or nothing."""
    if (out / f"{name}.onnx").exists():
        return ""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(HERE / "zoo_models.py"), name, "--out", str(out), "--here"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no model after {timeout:.0f} s"
    finally:
        for left in out.glob(f".{name}.*"):
            left.unlink()
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines[-1][:300] if lines else f"exit {done.returncode}")


def main(
    names: Annotated[list[str] | None, typer.Argument(help="models (default: all)")] = None,
    out: Annotated[Path, typer.Option(help="folder of the files")] = DEFAULT_OUT,
    show: Annotated[bool, typer.Option("--list", help="print the names, families and exporters, and stop")] = False,
    here: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Export models of the zoo that are not there yet."""
    load_families()
    unknown = [n for n in names or [] if n not in REGISTRY]
    if unknown:
        raise typer.BadParameter(f"no model {', '.join(unknown)}; see --list")
    failed = 0
    for name in names or REGISTRY:
        if show:
            print(f"{name:40} {REGISTRY[name].family:14} {exporter_of(name)}")
        elif here:
            _quiet()
            export(name, out)
        else:
            start = time.perf_counter()
            problem = ensure(name, out)
            failed += bool(problem)
            print(f"{name}: {problem or 'there'} ({time.perf_counter() - start:.0f} s)", flush=True)
    sys.exit(1 if failed else 0)


def _quiet() -> None:
    import zoo_shims
    from models import quiet

    zoo_shims.install()
    quiet()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.modules["zoo_models"] = sys.modules["__main__"]
    typer.run(main)
