"""naiad on Ray: Ray Serve places, replaces and scales servers; clients send their requests to the servers."""

from naiad_operations.ray.application import app, build
from naiad_operations.ray.server_list import ServerList

__all__ = ["ServerList", "app", "build"]
