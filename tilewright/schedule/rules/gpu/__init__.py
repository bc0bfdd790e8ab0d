"""Rules for machines with a grid of blocks whose units share a memory. What they do not take, the others do: their
loops over threads are shared out among all units."""
