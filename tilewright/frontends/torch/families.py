"""All import functions: loading this registers them."""

from __future__ import annotations


def load() -> None:
    from . import (  # noqa: F401
        attention,
        backward,
        bessel,
        complex_numbers,
        control,
        conv,
        create,
        data_sizes,
        elementwise,
        fft,
        histogram,
        index,
        linalg,
        linear,
        norm,
        order,
        packed_weights,
        polynomials,
        pool,
        quantized,
        recurrent,
        reduce,
        sampling_backward,
        segments,
        shape,
        special,
    )
