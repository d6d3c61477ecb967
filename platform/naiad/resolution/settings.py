"""What resolution takes from a server's options: the same for the server and for every command that explains it."""

from __future__ import annotations

from naiad.config.server.options import ServerOptions
from naiad.resolution.decision import ResolutionSettings
from naiad.resolution.layout import lay_out_guest

__all__ = ["resolution_settings"]


def resolution_settings(options: ServerOptions) -> ResolutionSettings:
    """The settings that options stand for; lays the default guest out if it is not there yet.

    Raises:
        ResolutionError: If that cannot be written.
    """
    return ResolutionSettings(
        backend_directories=options.backends.directories,
        guest=lay_out_guest(options.environments.guest_directory),
        backend_configs=options.backends.configs,
        auto_complete=options.models.auto_complete,
        environment_directories=options.environments.directories,
    )
