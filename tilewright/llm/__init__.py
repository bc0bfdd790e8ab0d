"""Language models: checkpoints in, text out. Decoders of many architectures, block-quantized weights, a paged cache, an
engine that serves many requests at a time, and a server. An extra: ``pip install tilewright[llm]``."""
