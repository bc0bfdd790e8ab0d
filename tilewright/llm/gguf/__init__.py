"""GGUF files: metadata, tensors of all live quantized types, tokenizers."""
