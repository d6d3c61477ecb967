"""Which package installs a module: the names differ for some."""

from __future__ import annotations

import importlib.metadata

__all__ = ["package_of"]

_KNOWN = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Common packages that may not be installed beside naiad, whose metadata names the others."""


def package_of(module: str) -> str:
    """The package to install for a module, by the metadata of this Python's packages; else the module's own name."""
    top = module.partition(".")[0]
    if top in _KNOWN:
        return _KNOWN[top]
    found = importlib.metadata.packages_distributions().get(top, ())
    return found[0] if found else top
