"""The planner for sums of products (matmul, convolution) and other reductions whose results are contiguous.

`product` says what is summed, `plan` how, `instructions` what the machine multiplies with. `candidates` lists plans,
`cycles` estimates one, `choose` takes the best, or what a tuner decides, and `apply` carries it out, step by step.
"""
