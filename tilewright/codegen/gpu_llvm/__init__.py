"""Loop nests on the units of a GPU to LLVM IR: what GPUs of all vendors share. Each has a folder for its own part."""
