"""Another name of the module `tilewright.support.errors`."""

import sys

from .support import errors
from .support.errors import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = errors
