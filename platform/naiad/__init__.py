"""naiad serves models written in Python, each in its own Python.

The folders of this package are the stages of the job and import only downward; `docs/explanation/architecture.md`
lists them with one line of purpose each.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("naiad")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
