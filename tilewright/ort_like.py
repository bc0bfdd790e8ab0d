"""The module `tilewright.compat.onnxruntime` under the name it had before, with a warning."""

import sys
import warnings

from .compat import onnxruntime
from .compat.onnxruntime import *  # noqa: F403 (for type checkers)

warnings.warn("tilewright.ort_like is tilewright.compat.onnxruntime now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = onnxruntime
