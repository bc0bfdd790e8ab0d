"""Graph partitioning around unsupported operators: the graph is cut into parts that can be compiled and
parts that PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.passes.split_module import split_module

from ...ir.types import Type
from ...support.errors import UnsupportedError
from ...support.sizes import Undecided
from .importer import TorchImporter
from .node import DTYPES, FAILED, FxTensor, ImportFailure, NotImported, is_complex, place_of, result_of
from .symbols import NoFormula


class Trial(TorchImporter):
    """An importer that continues where an operator cannot be imported, as if its results were inputs. `failed` has the
    nodes, `failures` say why; results of types that we do not have fail whatever takes them."""

    loops = False
    #: operators that are left to PyTorch although they could be imported
    leave: Callable[[torch.fx.Node], bool] = staticmethod(lambda node: False)

    def __init__(self, inputs: Any, known: Any, sizes: Any) -> None:
        super().__init__(inputs, known, sizes)
        self.failed: set[torch.fx.Node] = set()

    def _call(self, node: torch.fx.Node) -> Any:
        if self.depth > 1:
            return self._inside(node)
        if self.leave(node):
            return self._stands_in(node)
        before = len(self.failures)
        try:
            made = super()._call(node)
        except UnsupportedError as e:
            self.failures.append(ImportFailure(self._name(node), place_of(node), e.message))
            made = FAILED
        if made is not FAILED:
            return made
        known = len(self.failures) > before or not self.failed.isdisjoint(node.all_input_nodes)
        if not known:  # what a failed one gives is no fault of who takes it
            self.failures.append(ImportFailure(self._name(node), place_of(node), "of complex or quantized tensors"))
        return self._stands_in(node)

    def _inside(self, node: torch.fx.Node) -> Any:
        """The same in the graph of a branch or a loop, which is PyTorch's as a whole if one node of it is."""
        before = len(self.failures)
        made = FAILED if self.leave(node) else super()._call(node)
        if made is not FAILED:
            return made
        found = self.failures[before:]
        del self.failures[before:]
        raise NotImported(f"with {found[0].operator} {found[0].reason}".rstrip() if found else f"with {node.target}")

    def _wait(self, node: torch.fx.Node, nested: bool) -> Any:
        """What needs the host is PyTorch's."""
        raise NotImported

    def _type(self, value: object) -> Type | None:
        if is_complex(value):
            raise NotImported("of complex tensors")
        return super()._type(value)

    def _attribute(self, found: Any) -> Any:
        return FAILED if is_complex(found) else super()._attribute(found)

    def _stands_in(self, node: torch.fx.Node) -> Any:
        """New inputs in place of the results of a node."""
        self.failed.add(node)
        value = result_of(node)
        if isinstance(value, (list, tuple)):
            return [self._input(node, v) for v in value]
        return self._input(node, value)

    def _input(self, node: torch.fx.Node, value: object) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
            return value if value is None else FAILED
        try:
            t = Type(tuple(self.size(d) for d in value.shape), DTYPES[value.dtype])
        except (NotImported, NoFormula, Undecided):
            return FAILED
        return FxTensor(self.make.input(f"{node.name}.{len(self.make.names)}", t), t)


def random_operator(node: torch.fx.Node) -> bool:
    """Whether a node draws from PyTorch's generator of random numbers."""
    called = node.target
    tags = getattr(called, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def cut(module: torch.fx.GraphModule, failed: set[torch.fx.Node]) -> tuple[torch.fx.GraphModule, list[str]]:
    """The module as calls of parts, and the names of the parts without any of these nodes.

    The parts are levels: a node is as early as what it needs allows, odd levels have the failed nodes. An operator that
    writes to its arguments comes after all that stand before it, and before those after it.
    """
    levels: dict[torch.fx.Node, int] = {}
    least = 0
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        needed = [levels[n] for n in node.all_input_nodes if n in levels]
        if node.target is operator.getitem:
            levels[node] = max(needed, default=least)
            continue
        writes = _writes(node)
        odd = node in failed or writes
        level = max([least, *needed, *(levels.values() if writes else ())])
        levels[node] = level + (level % 2 != odd)
        if writes:
            least = levels[node]
    made = split_module(module, module, lambda node: levels[node], keep_original_order=False)
    numbers = sorted(set(levels.values()))
    names = {name: int(name.removeprefix("submod_")) for name, _ in made.named_children() if name.startswith("submod_")}
    assert set(names.values()) == set(numbers)
    return made, [name for name, level in names.items() if level % 2 == 0]


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def trial(leave: Callable[[torch.fx.Node], bool] | None) -> type[Trial]:
    """The class `Trial`, which leaves more to PyTorch."""
    return Trial if leave is None else type("Trial", (Trial,), {"leave": staticmethod(leave)})


__all__ = ["Trial", "cut", "random_operator", "trial"]
