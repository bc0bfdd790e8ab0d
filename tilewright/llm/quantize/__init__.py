"""Weights of language models in 4 or 8 bits: rounded to nearest, with scales that know the activations, or by GPTQ."""
