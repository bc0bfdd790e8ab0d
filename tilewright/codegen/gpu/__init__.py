"""What all GPU code generators share: which thread runs which statement of a loop nest, and the address of each
element."""
