"""Tests that end in an UnsupportedError, by name pattern, with the reason.

One that passes fails the run, so that the table stays true; a wrong result, a crash or a hang is never expected.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

STRINGS = "string tensors are not element types of Tilewright"
IMAGES = "images in files are decoded before the model, not by it"
TRAINING = "gradients are not computed: models are compiled for inference"

KNOWN_FAILURES: dict[str, str] = {
    "test_ai_onnx_ml_label_encoder_string_*": STRINGS,
    "test_ai_onnx_ml_label_encoder_tensor_*": STRINGS,
    "test_equal_string*": STRINGS,
    "test_regex_full_match_*": STRINGS,
    "test_string_*": STRINGS,
    "test_strnorm*": STRINGS,
    "test_image_decoder_*": IMAGES,
    "test_gradient_of_*": TRAINING,
}


RANDOM = "the expected numbers come from NumPy's generator; shape and type are compared"
NOISE = "the exact result is 0, the expected one is rounding of the reference's f32 transform"

#: tests whose expected numbers cannot be met: pattern -> (reason, absolute tolerance; None: any number)
NOT_COMPARABLE: dict[str, tuple[str, float | None]] = {
    "test_bernoulli*": (RANDOM, None),
    "test_training_dropout": (RANDOM, None),
    "test_training_dropout_default": (RANDOM, None),
    "test_training_dropout_mask": (RANDOM, None),
    "test_training_dropout_default_mask": (RANDOM, None),
    "test_dft_inverse": (NOISE, 1e-6),
    "test_dft_inverse_opset19": (NOISE, 1e-6),
}


#: of targets other than cpu, beside those
KNOWN_ON: dict[str, dict[str, str]] = {}


def reason_of(name: str, target: str = "cpu") -> str | None:
    """Why a test is expected to be refused, None if it is expected to pass."""
    table = KNOWN_FAILURES | KNOWN_ON.get(target, {})
    return next((reason for pattern, reason in table.items() if fnmatchcase(name, pattern)), None)


def not_comparable(name: str) -> tuple[str, float | None] | None:
    """The reason and tolerance of a test whose expected numbers cannot be met."""
    return next((entry for pattern, entry in NOT_COMPARABLE.items() if fnmatchcase(name, pattern)), None)
