"""The operator set of level 2, one file a family. Importing this package registers every operator.

To add an operator, add a class to the family's file (see docs/add_an_operator.md).
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
