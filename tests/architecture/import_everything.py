"""Import every module of the host under whatever Python runs this; what others provide is made up.

Only what the interpreter itself makes of our modules is of interest here, so that no packages need be there.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class MadeUpType(type):
    """A class that has any attribute, may be called, subscripted, or'ed and be a base."""

    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return made_up(name)

    def __call__(cls, /, *args, **kwargs):
        decorates = len(args) == 1 and not kwargs and isinstance(args[0], type)
        return args[0] if decorates else cls

    def __getitem__(cls, key):
        return cls

    def __setitem__(cls, key, value):
        pass

    def __or__(cls, other):
        return cls

    __ror__ = __and__ = __add__ = __radd__ = __mul__ = __or__

    def __iter__(cls):
        return iter(())

    def __index__(cls):
        return 0

    def __lt__(cls, other):
        return False

    __gt__ = __le__ = __ge__ = __lt__


def made_up(name):
    return MadeUpType(name, (), {})


class MadeUpModule(ModuleType):
    __path__ = ()
    __all__ = ()

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return made_up(name)


class MadeUp(MetaPathFinder, Loader):
    """The finder of what is not there."""

    def find_spec(self, fullname, path=None, target=None):
        top = fullname.partition(".")[0]
        is_ours = top.startswith("naiad") or top in sys.stdlib_module_names
        if is_ours and not fullname.endswith("_pb2"):  # what protobuf would fill is made up, too
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return MadeUpModule(spec.name)

    def exec_module(self, module):
        pass


def main():
    sys.dont_write_bytecode = True
    sys.path[:0] = sys.argv[1:]
    sys.meta_path.insert(0, MadeUp())
    root = Path(sys.argv[1])
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.glob("naiad*/**/*.py"))]
    failures = []
    for name in names:
        if name.endswith(("__main__", "_script")):
            continue  # they run when they are imported
        try:
            importlib.import_module(name)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    print(f"{len(names)} modules")
    sys.exit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
