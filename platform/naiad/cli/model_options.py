"""The server options of commands that load one model in their own process: `naiad run` and `naiad bench`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naiad.cli.command_line import server_flag
from naiad.cli.serve import with_default_build
from naiad.config.server.command_line import read_options
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import Flag
from naiad.config.server.options import ModelControlMode, ServerOptions

__all__ = ["QUIET_LOGGERS", "options_for_model"]

QUIET_LOGGERS = ("naiad.engine", "naiad.app", "naiad.environments")
"""Loggers whose lines about loading say nothing to the person who started the command."""


def options_for_model(directory: Path, flags: Sequence[tuple[Flag, str]], others: Sequence[str]) -> ServerOptions:
    """The options of a server that loads one model of its repository, and those that it calls.

    Args:
        directory: The model's directory.
        flags: The server's flags of the command line.
        others: Names of models of the same repository to load, too.

    Raises:
        OptionError: If a flag is invalid.
    """
    repository = (server_flag("model-repository"), str(directory.parent))
    options = with_default_build(read_options([repository, *flags], environ=os.environ), EnvBuild.ALLOWED)
    return replace(
        options,
        models=replace(
            options.models,
            control_mode=ModelControlMode.EXPLICIT,
            startup_models=tuple(dict.fromkeys((directory.name, *others))),
        ),
    )
