"""Whether a model that is to be loaded again is what it was: then there is nothing to do, as for the reference.

The reference compares times of the model's folder alone. A backend that many models share, and an environment, lie
elsewhere, and who changed one of them and asks for a load wants to have it: so these count, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from naiad.config.model.environment_source import EnvironmentSource
from naiad.engine.registry import ModelRecord
from naiad.engine.serving.handover import newest
from naiad.engine.serving.version import ModelVersion
from naiad.lifecycle.polling import Signature
from naiad.repository.repositories import directory_signature
from naiad.resolution.decision import Resolution

__all__ = ["is_whole", "look_around"]

_OF_ENVIRONMENTS = ("bin/python", "conda-meta/history", "pyvenv.cfg", "lib/python*/site-packages")
"""What changes in a folder that is an environment when packages come or go: it is too large to look at all of it."""


def is_whole(model: ModelRecord) -> bool:
    """Whether all versions that were loaded still serve."""
    serving = model.serving()
    return bool(serving) and not model.reason and not any(version.reason for version in serving)


def look_around(own: Signature | None, model: ModelRecord) -> Signature | None:
    """What a model's own files look like, and what its versions use besides; None if that cannot be told. Blocks."""
    if own is None:
        return None
    signature = dict(own)
    for version in model.serving():
        loaded = newest(version)
        resolution = loaded.resolution if isinstance(loaded, ModelVersion) else None
        if resolution is None or not _add(signature, resolution):
            return None
    return signature


def _add(signature: dict[str, tuple[object, ...]], resolution: Resolution) -> bool:
    environment = resolution.environment
    if isinstance(environment, EnvironmentSource):
        if environment.is_mutable:
            return False  # only fetching it would tell
        environment = environment.path
    if environment is not None:
        places = [environment, *(found for each in _OF_ENVIRONMENTS for found in environment.glob(each))]
        signature.update(_times(places))
    if resolution.backend_dir is not None:
        found = directory_signature(resolution.backend_dir)
        if found is None:
            return False
        # Not as parts of the model: no change of one of these is that of a single version.
        signature.update({f"{resolution.backend_dir}/{path}": state for path, state in found.items()})
    return True


def _times(places: Iterable[Path]) -> dict[str, tuple[object, ...]]:
    times: dict[str, tuple[object, ...]] = {}
    for place in places:
        try:
            status = place.stat()
        except OSError:
            times[str(place)] = ("gone",)
        else:
            times[str(place)] = (status.st_mtime_ns, status.st_size)
    return times
