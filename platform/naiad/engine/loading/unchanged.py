"""Whether a model is unchanged since it was loaded: then, as in the reference, a load request does nothing.

The reference compares the modification times of the model's directory alone. Shared backends and environments are
elsewhere. A user who changes one of these and requests a load expects it to take effect, so they are compared, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from naiad.config.model.environment_source import EnvironmentSource
from naiad.engine.registry import ModelRecord
from naiad.engine.serving.version import ModelVersion
from naiad.models.polling import Signature
from naiad.models.repository.repositories import directory_signature
from naiad.models.resolution.decision import Resolution

# Paths in an environment that change when packages are installed or removed; all its files would be too many.
_OF_ENVIRONMENTS = (
    "bin/python",
    "conda-meta/history",
    "pyvenv.cfg",
    "lib/python*/site-packages",
    "etc/conda/activate.d",
)


def is_whole(model: ModelRecord) -> bool:
    """Whether all versions that were loaded still serve."""
    serving = model.serving()
    return bool(serving) and not model.reason and not any(version.reason for version in serving)


def version_signature(own: Signature | None, resolution: Resolution | None) -> Signature | None:
    """The signature of a model's own files and of what a resolution names besides; None if it is unknown. Blocks."""
    if own is None or resolution is None:
        return None
    signature = dict(own)
    return signature if _add(signature, resolution) else None


def environments_signature(model: ModelRecord) -> Signature:
    """The times of the environments' files outside the model's directory, for poll mode. Blocks.

    Directories are left out: unlike an archive, which is replaced as a whole, they change while somebody works in them.
    """
    signature: dict[str, tuple[object, ...]] = {}
    if model.is_on_demand:  # they take effect when it is loaded again; and loading it must not look like a change
        return signature
    for loaded in model.serving():
        resolution = loaded.resolution if isinstance(loaded, ModelVersion) else None
        environment = None if resolution is None else resolution.environment
        path = environment.path if isinstance(environment, EnvironmentSource) else environment
        if resolution is None or path is None or path.is_dir() or path.is_relative_to(resolution.model_dir):
            continue
        # With absolute paths, as in `version_signature`: all versions are loaded again.
        signature.update(_times([path]))
    return signature


def _add(signature: dict[str, tuple[object, ...]], resolution: Resolution) -> bool:
    environment = resolution.environment
    if isinstance(environment, EnvironmentSource):
        if environment.is_mutable:
            return False  # it may change remotely: only fetching would show it
        environment = environment.path
    if environment is not None:
        places = [environment, *(found for each in _OF_ENVIRONMENTS for found in environment.glob(each))]
        signature.update(_times(places))
    if resolution.outside_dir is not None:
        found = directory_signature(resolution.outside_dir)
        if found is None:
            return False
        # With absolute paths: a relative one would be taken for a file of a single version of the model.
        signature.update({f"{resolution.outside_dir}/{path}": state for path, state in found.items()})
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
