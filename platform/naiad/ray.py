"""naiad on Ray, under the name that configurations of Ray have: the public name of `naiad_operations.ray`."""

from naiad_operations import ray as _package
from naiad_operations.ray import ServerList, app, build

__all__ = ["ServerList", "app", "build"]

__path__ = _package.__path__
"""Configurations name `naiad.ray.policy`, too."""
