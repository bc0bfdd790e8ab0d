"""Another name of the module `tilewright.lang.te`."""

import sys

from .lang import te
from .lang.te import *  # noqa: F403 (for type checkers)

sys.modules[__name__] = te
