"""The primitives of a schedule, by kind: what they have in common, loops, blocks, reductions, memory."""
