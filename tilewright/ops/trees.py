"""Decision trees: the leaf index of every sample."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.errors import OpError
from .common import need, need_shape, same_dtype

#: bits of `test`: go to `yes` where the feature is less than, equal to, greater than the split, or is NaN
LESS, EQUAL, GREATER, NAN = 1, 2, 4, 8
#: tests that are one comparison, as MLIR names it
COMPARISONS = {
    1: "olt", 2: "oeq", 3: "ole", 4: "ogt", 6: "oge", 9: "ult", 11: "ule", 12: "ugt", 13: "une", 14: "uge",
}  # fmt: skip


class TreeLeaves(Operator):
    """The node (i32) in which every example x [N, F] ends in every tree, after `depth` steps from `roots` [T]: [N, T].

    Node i compares feature[i] of the example with split[i]; test[i] says (by bits, see above) when it goes on to
    yes[i], otherwise to no[i]. Leaves lead to themselves. All are i32 but `split`, which has the dtype of x. Where
    all nodes but leaves test the same, and that is one of `COMPARISONS`, `always` may give it: then `test` need not be
    read. Opaque: has a loop nest of its own.
    """

    kind = "opaque"

    @staticmethod
    def infer(x, feature, split, test, yes, no, roots, *, depth: int, always: int = 0):
        need("float", x)
        same_dtype(x, split)
        if x.rank != 2 or roots.rank != 1 or split.rank != 1:
            raise OpError(f"takes examples [N, F], nodes [M] and roots [T], got {x}, {split} and {roots}")
        if always and always not in COMPARISONS:
            raise OpError(f"test {always} is no single comparison, those are {', '.join(map(str, COMPARISONS))}")
        for name, v in (("feature", feature), ("test", test), ("yes", yes), ("no", no), ("roots", roots)):
            if v.dtype != "i32":
                raise OpError(f"{name} is i32, got {v}")
            if name != "roots":
                need_shape(name, v, split.shape)
        return Type((x.shape[0], roots.shape[0]), "i32")

    @staticmethod
    def reference(x, feature, split, test, yes, no, roots, *, depth, always):
        node = np.broadcast_to(roots, (len(x), len(roots))).copy()
        rows = np.arange(len(x))[:, None]
        for _ in range(depth):
            v, s = x[rows, feature[node]], split[node]
            found = (v < s) * LESS + (v == s) * EQUAL + (v > s) * GREATER + np.isnan(v) * NAN
            node = np.where(found & test[node], yes[node], no[node]).astype(np.int32)
        return node
