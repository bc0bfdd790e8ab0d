"""Names that programs import: those of the package and of its rooms, and modules under the names they had before."""

import subprocess
import sys

import pytest

import tilewright as tw

SAME = {
    "tilewright.errors": "tilewright.support.errors",
    "tilewright.te": "tilewright.lang.te",
    "tilewright.ort_like": "tilewright.compat.onnxruntime",
    "tilewright.onnx_backend": "tilewright.compat.onnx_backend",
}


def python(code: str, *options: str) -> str:
    """What code prints in a process of its own, where nothing of the package has been imported yet."""
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_under_their_old_names_are_the_same_modules():
    for old, new in SAME.items():
        python(f"import sys, {old}, {new}\nassert {old} is {new} is sys.modules[{old!r}]")
    python(
        "from tilewright import errors, te\nfrom tilewright.errors import UsageError\nimport tilewright.te as other\n"
        "import tilewright as tw\n"
        "assert errors.UsageError is UsageError is tw.errors.UsageError and te is other is tw.te and te.compute"
    )


def test_only_those_of_compat_ask_to_be_renamed():
    python("import tilewright.errors, tilewright.te", "-W", "error::DeprecationWarning:__main__")
    for old, new in list(SAME.items())[2:]:
        code = "import warnings\nwith warnings.catch_warnings(record=True) as seen:\n"
        code += f"    warnings.simplefilter('always')\n    import {old}\nprint(*(w.message for w in seen))"
        assert f"{old} is {new} now" in python(code)


@pytest.mark.parametrize("module", [tw, tw.tune], ids=lambda m: m.__name__)
def test_every_name_of_all_is_there(module):
    for name in module.__all__:
        assert getattr(module, name) is not None
