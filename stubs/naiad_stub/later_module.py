"""Lets a module of ours yield to another one of the same name, which comes later on `sys.path`."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def import_later_module(name: str, file: str) -> bool:
    """Put the next module *name* on `sys.path` in the place of ours, which is being imported from *file*.

    Returns:
        Whether there is one; `import` then returns it.
    """
    folders = [os.path.realpath(folder) for folder in sys.path]
    here = os.path.dirname(os.path.realpath(file))
    # Only later folders: two copies of our module would find each other without end.
    later = folders[folders.index(here) + 1 :] if here in folders else folders
    spec = PathFinder.find_spec(name, [folder for folder in later if folder != here])
    if spec is None or spec.loader is None:
        return False
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return True
