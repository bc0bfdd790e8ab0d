"""The module `tilewright.compat.onnx_backend` under the name it had before, with a warning."""

import sys
import warnings

from .compat import onnx_backend
from .compat.onnx_backend import *  # noqa: F403 (for type checkers)

warnings.warn("tilewright.onnx_backend is tilewright.compat.onnx_backend now", DeprecationWarning, stacklevel=2)
sys.modules[__name__] = onnx_backend
