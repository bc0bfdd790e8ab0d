"""Tensors of PyTorch as arrays and back, without copies where that is possible."""

from __future__ import annotations

import numpy as np
import torch

from ...support.dtypes import NUMPY
from ...support.errors import UnsupportedError
from .node import COMPLEX, DTYPES

#: dtypes by their names here
TORCH = {name: dtype for dtype, name in DTYPES.items()}


def view(tensor: torch.Tensor) -> np.ndarray:
    """The array of a tensor; it shares the tensor's memory where that lies in this machine's. Complex numbers become
    pairs, in a dimension more.

    >>> view(torch.ones(2, dtype=torch.bfloat16)).dtype
    dtype(bfloat16)
    """
    tensor = tensor.detach()
    if tensor.dtype in COMPLEX:
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided:
        raise UnsupportedError(f"tensors of {tensor.dtype} ({tensor.layout}) are not supported", stage="import")
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(NUMPY["bf16"])
    return tensor.numpy()


def tensor(array: np.ndarray, pairs: bool = False) -> torch.Tensor:
    """The tensor of an array, which shares its memory; with `pairs` it is complex.

    >>> tensor(np.ones(2, np.float16)).dtype
    torch.float16
    """
    if array.dtype == NUMPY["bf16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    made = torch.from_numpy(array)
    if not pairs:
        return made
    return torch.view_as_complex(made if made.stride(-1) == 1 else made.clone(memory_format=torch.contiguous_format))
