"""Every eighth of the 500 damaged ONNX files; `make mutations` tries all of them."""

from __future__ import annotations

from conformance_suite import TIMEOUT  # noqa: F401  (prepares sys.path)
from mutations import MODELS, mutate, run, try_file


def test_the_models_are_sound_before_they_are_damaged():
    for build in MODELS:
        assert try_file((build.__name__, build().SerializeToString())).outcome == "compiled"


def test_damaged_files_end_in_a_clear_error():
    outcomes = run([mutate(i) for i in range(3, 500, 8)])
    assert not [o for o in outcomes if o.outcome not in ("compiled", "refused")]
    assert sum(o.outcome == "refused" for o in outcomes) > len(outcomes) / 2
