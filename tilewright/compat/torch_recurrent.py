"""LSTM, GRU and RNN of `torch.compile`: whole operators in inference.

TorchDynamo leaves these modules to eager PyTorch, and where it may not, PyTorch makes one operator of every step. For
this backend, and where no gradients are wanted, it takes them in, and they become operators of ours that have an import
function; PyTorch runs them where that refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..frontends.torch.recurrent import KINDS

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

_FLAGS = "bool biases, int layers, float dropout, bool train, bool bidirectional, bool batch_first"
_library = torch.library.Library("tilewright", "DEF")


def _define(kind: str) -> CustomOpDef:
    """The operator of a kind: as ``aten::lstm.input``, with a list of states."""
    results = ", ".join(["Tensor"] * (3 if kind == "lstm" else 2))
    _library.define(f"{kind}(Tensor x, Tensor[] states, Tensor[] params, {_FLAGS}) -> ({results})")

    def run(
        x: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *flags: object
    ) -> tuple[torch.Tensor, ...]:
        made = getattr(torch._VF, kind)(x, states if kind == "lstm" else states[0], params, *flags)
        return tuple(t.contiguous() for t in made)

    def described(
        x: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *flags: object
    ) -> tuple[torch.Tensor, ...]:
        directions = 2 if flags[4] else 1
        y = x.new_empty((*x.shape[:2], states[0].shape[2] * directions))
        return (y, *[s.new_empty(s.shape) for s in states])

    _library.impl(kind, run, "CPU")
    torch.library.register_fake(f"tilewright::{kind}", described, lib=_library)
    return getattr(torch.ops.tilewright, kind).default


_OPERATORS = {getattr(torch._VF, kind): (kind, _define(kind)) for kind in KINDS}


def keep_whole(module: torch.fx.GraphModule) -> None:
    """Put our operators in place of PyTorch's in a graph of TorchDynamo's that needs no gradients, but for packed
    sequences and those that drop something."""
    if torch.is_grad_enabled():
        return
    for node in module.graph.nodes:
        kind, called = _OPERATORS.get(node.target, ("", None)) if node.op == "call_function" else ("", None)
        if called is None or len(node.args) != 9 or not isinstance(node.args[2], (list, tuple)):
            continue
        x, states, params, biases, layers, dropout, train, *flags = node.args
        if not (train and dropout):
            node.target = called
            given = list(states) if kind == "lstm" else [states]
            node.args = (x, given, list(params), biases, layers, 0.0, False, *flags)
    module.recompile()


def take_in(backend: Callable[..., Any]) -> None:
    """Have TorchDynamo trace these modules for this backend where no gradients are wanted; for others it does what it
    did."""
    from torch._dynamo import config
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables.builder import VariableBuilder

    if not hasattr(config, "allow_rnn") or not hasattr(VariableBuilder, "wrap_module"):
        return  # a version of PyTorch that has another way
    wrap = VariableBuilder.wrap_module

    def ours() -> bool:
        called: Any = InstructionTranslator.current_tx().output.compiler_fn
        while called is not None and called is not backend:
            called = getattr(called, "_torchdynamo_orig_backend", None) or getattr(called, "compiler_fn", None)
        return called is backend

    @functools.wraps(wrap)
    def wrap_module(self: Any, value: torch.nn.Module) -> Any:
        if isinstance(value, torch.nn.RNNBase) and not torch.is_grad_enabled() and ours():
            with config.patch(allow_rnn=True):
                return wrap(self, value)
        return wrap(self, value)

    VariableBuilder.wrap_module = wrap_module  # type: ignore[method-assign]


__all__ = ["keep_whole", "take_in"]
