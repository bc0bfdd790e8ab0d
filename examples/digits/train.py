"""Train the demo's small convolutional network and export it to ``digits.onnx`` beside this file.

Its outputs for the test images go to ``digits.expected.npz``, for the tests.

    python examples/digits/train.py        # about ten seconds; needs torch, onnxscript and scikit-learn

The result is in the repository, so the demo needs neither PyTorch nor training.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import torch
from data import load
from torch import nn

EPOCHS = 40
BATCH = 64


class DigitNet(nn.Module):
    """Three convolutions with batch norm, one max pooling, the mean over the image, one linear layer."""

    def __init__(self) -> None:
        super().__init__()

        def unit(channels_in: int, channels_out: int) -> nn.Sequential:
            conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())

        self.features = nn.Sequential(unit(1, 16), unit(16, 32), nn.MaxPool2d(2), unit(32, 32))
        self.classifier = nn.Linear(32, 10)

    def scores(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(image).mean((2, 3)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.scores(image), -1)


def shifted(images: torch.Tensor) -> torch.Tensor:
    """The images moved by up to one pixel, as augmentation."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(images, (down, right), (2, 3))


def train(model: DigitNet, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-2)
    steps = EPOCHS * (-(-len(images) // BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for picked in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model.scores(shifted(images[picked])), labels[picked])
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def export(model: nn.Module, sample: torch.Tensor, path: Path) -> None:
    """Write the model with a free batch dimension, without the exporter's notes on where each node came from."""
    program = torch.onnx.export(
        model,
        (sample,),
        dynamo=True,
        opset_version=18,
        input_names=["image"],
        output_names=["probabilities"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    graph = proto.graph
    for part in [proto, graph, *graph.node, *graph.value_info, *graph.input, *graph.output]:
        del part.metadata_props[:]
    onnx.save(proto, path)


def main() -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # sums in one order: the same weights on every machine of a kind
    (images, labels), (test_images, test_labels) = load()
    model = DigitNet()
    train(model, torch.from_numpy(images), torch.from_numpy(labels))
    with torch.no_grad():
        probabilities = model(torch.from_numpy(test_images)).numpy()
    print(f"test accuracy: {np.mean(probabilities.argmax(1) == test_labels):.2%} of {len(test_labels)} images")

    path = Path(__file__).with_name("digits.onnx")
    export(model, torch.from_numpy(test_images[:2]), path)
    np.savez_compressed(path.with_name("digits.expected.npz"), probabilities=probabilities)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, {sum(p.numel() for p in model.parameters())} weights")


if __name__ == "__main__":
    main()
