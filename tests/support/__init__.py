"""What several tests share: machines, models, kernels, comparisons. Tests import it as `support` (pyproject.toml)."""
