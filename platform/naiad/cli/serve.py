"""`tritonserver` and `naiad serve`: from a command line to a running server and its exit code."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from naiad.cli.usage import report, usage
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import UsageError, format_flag
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS, LogFormat, ServerOptions
from naiad.errors import OptionError
from naiad.logs import ActiveLog, LogSettings, configure, escapes_messages

__all__ = ["log_settings", "open_log", "serve"]

_log = logging.getLogger("naiad.cli")
_BUNDLE = "bundle"
_ALGEBRA = "OPENBLAS_NUM_THREADS"


def serve(arguments: Sequence[str], program: str) -> int:
    """Run the server that a command line describes until it ends; the exit code."""
    try:
        found, others = split_arguments(arguments, SERVER_FLAGS, program)
        if any(flag.name == HELP for flag, _ in found):
            print(usage(program, SERVER_FLAGS), end="")
            return 0
        if others:
            raise UsageError(f"Unexpected argument: {others[0]}")
        bundled = [text for flag, text in found if flag.name == _BUNDLE]
        if bundled:
            from naiad.cli.unbundle import start

            rest = [(flag, text) for flag, text in found if flag.name != _BUNDLE]
            stores = [text for flag, text in rest if flag.name == "env-store"]
            return start(Path(bundled[-1]), [format_flag(flag, text) for flag, text in rest], ["", *stores][-1])
        options = read_options(found, environ=os.environ)
        log = open_log(log_settings(options))
    except OptionError as error:
        return report(error, program)
    with log:
        _say(options)
        # Here, as `--help` and errors of the command line are to be quick.
        # What it makes stays; the collector would look through it again and again. `app` turns it on again.
        gc.disable()
        _calm_algebra()
        from naiad.app import serve as run

        return run(options, log)


def _calm_algebra() -> None:
    """Let numpy, which is imported while guests start, have no threads for linear algebra: the server does none.

    They wait for work without sleep at first, on a core that is wanted for starting. Only this process's libraries see
    it: not `os.environ`, which guests inherit. Here, as no other thread may read the variables meanwhile.
    """
    os.putenv(_ALGEBRA, "1")


def open_log(settings: LogSettings) -> ActiveLog:
    """Send the log where the settings say, until the result is closed.

    Raises:
        OptionError: If its file cannot be opened.
    """
    try:
        return configure(settings)
    except OSError as error:
        raise OptionError(f"--log-file={settings.file}: cannot be opened: {error.strerror or error}") from error


def log_settings(options: ServerOptions) -> LogSettings:
    """What the options and the environment say about the log."""
    return LogSettings(
        verbose=options.log.verbosity,
        info=options.log.info,
        warning=options.log.warning,
        error=options.log.error,
        iso8601=options.log.format is LogFormat.ISO8601,
        escape=escapes_messages(os.environ),
        file=options.log.file,
    )


def _say(options: ServerOptions) -> None:
    """Log what is to be said about flags before anything starts."""
    _log.debug("started with %s", " ".join(options.command_line) or "no flags")
    for notice in options.notices:
        _log.info("%s", notice)
