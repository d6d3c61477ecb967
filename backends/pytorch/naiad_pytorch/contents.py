"""What a file of PyTorch holds, by the names in its archive: nothing in it is run to find out."""

from __future__ import annotations

import zipfile
from enum import Enum
from pathlib import Path


class Content(Enum):
    """What a file holds; the value describes it for errors."""

    SCRIPT = "TorchScript, which torch.jit.save writes"
    WEIGHTS = "what torch.save writes: weights or a pickled object, without the code of a model"
    COMPILED = "a package that torch._inductor.aoti_compile_and_package writes"
    EXPORTED = "a program that torch.export.save writes"
    UNKNOWN = "no archive that PyTorch writes"


def content_of(path: Path) -> Content:
    """What the file holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return Content.UNKNOWN
    if any(name.startswith("data/aotinductor/") for name in names):
        return Content.COMPILED
    if "models/model.json" in names or "serialized_exported_program.json" in names:
        return Content.EXPORTED
    if "constants.pkl" in names:
        return Content.SCRIPT
    return Content.WEIGHTS if "data.pkl" in names else Content.UNKNOWN
