"""Level 2: passes over graphs of `tw` operators, one file each, and the interpreter that checks them.

`passes.py` has the protocol, the registry and pipelines as text, `rewrite.py` the pattern driver, `matching.py` the
matching of formulas, `interpret.py` the arbiter. The passes, in the order in which the default pipeline runs them:

| pass | what it does |
|---|---|
| specialize | unknown input dimensions become known, all types follow |
| simplify | algebraic simplification, strength reduction, transposes and reshapes |
| fold | operators on constants evaluated, equal constants merged, unused ones dropped |
| cse, dce | common subexpressions; what no output needs |
| match-softmax, match-norm, match-activation, match-gelu | one operator for what exporters decompose |
| match-attention | scaled dot-product attention, masks, grouped heads (after another simplify) |
| fold-batch-norm | batch norm and constant factors into the weights beside them |
| clip-windows | taps of convolutions that never lie inside of the image removed (first of all, and after layout) |
| layout | channels last for convolutions and pools |
| split-windows | dilated convolutions by the regions of their results that the same taps reach |

then simplify, fold, cse and dce once more. A new pass is one file here: see docs/add_a_pass.md.
"""
