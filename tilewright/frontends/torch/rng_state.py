"""Operators that PyTorch runs under a state of its generator of random numbers, for gradient checkpointing computes
them a second time."""

from __future__ import annotations

from typing import Any

import torch

from .node import result_of

_SAVE, _RESTORE = "run_and_save_rng_state", "run_with_rng_state"
_empty = torch.ops.aten.empty.memory_format


def without_rng_state(module: torch.fx.GraphModule) -> None:
    """Call operators that draw nothing as they are: PyTorch takes attention for one that draws, with dropout or
    without. What is kept of the state for the second time is empty then.
    """
    changed = False
    for node in list(module.graph.nodes):
        name = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
        if name not in (_SAVE, _RESTORE):
            continue
        called, *args = node.args[name == _RESTORE :]
        if _draws(called, args, node.kwargs):
            continue
        changed = True
        with module.graph.inserting_before(node):
            made = module.graph.call_function(called, tuple(args), dict(node.kwargs))
            made.meta = {**node.meta, "val": result_of(node)}
            if name == _RESTORE:
                node.replace_all_uses_with(made)
            for user in list(node.users):
                if user.args[1] == 1:
                    made.meta = {**user.meta, "val": result_of(user)}
                    user.replace_all_uses_with(made)
                else:
                    state = module.graph.call_function(_empty, ([0],), {"dtype": torch.uint8})
                    state.meta["val"] = user.meta["val"].new_empty(0)
                    user.replace_all_uses_with(state)
                module.graph.erase_node(user)
        module.graph.erase_node(node)
    if changed:
        module.graph.lint()
        module.recompile()


def _draws(called: Any, args: list[Any], kwargs: Any) -> bool:
    """Whether an operator draws random numbers: not where the part that it drops is 0."""
    names = [a.name for a in called._schema.arguments]
    given = {a.name: a.default_value for a in called._schema.arguments} | dict(zip(names, args, strict=False)) | kwargs
    return next((given[n] != 0 for n in ("dropout_p", "p") if n in given), True)


__all__ = ["without_rng_state"]
