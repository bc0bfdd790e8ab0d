"""What torchvision needs where its compiled operators cannot be loaded (they are built for another PyTorch).

timm imports torchvision, and torchvision's import fails without the operators' declarations. Detection models also
call `nms` and `roi_align`: these are plain PyTorch here, which is enough to export a model and to compute what it
should give.
"""

from __future__ import annotations

import torch

_DECLARED = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_KEPT: list[torch.library.Library] = []


def install() -> None:
    """Declare the operators; call it before torchvision is imported. Does nothing the second time."""
    if _KEPT:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, signature in _DECLARED.items():
        library.define(name + signature)
    library.impl("nms", nms, "CPU")
    _KEPT.append(library)
    import torchvision.ops

    torchvision.ops.boxes._assert_has_ops = lambda: None  # `nms` is there now


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Indices (i64) of the boxes (n, 4) that no better one overlaps by more than `iou_threshold`, best first.

    >>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    >>> nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    order = scores.argsort(descending=True, stable=True)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept = []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = order[shared <= iou_threshold * (areas[best] + areas[order] - shared)]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)
