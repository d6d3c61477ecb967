"""`tritonserver` and `naiad serve`: from a command line to a running server and its exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.cli.command_line import is_directory, report_option_error, server_flag, stray_argument, usage
from naiad.config.model.environment_source import redact
from naiad.config.server.command_line import read_options
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS, LogFormat, ServerOptions
from naiad.core import garbage_collection, heap
from naiad.core.errors import OptionError, RepositoryError
from naiad.core.logs import ActiveLog, LogSettings, configure, escapes_messages

if TYPE_CHECKING:
    from naiad.server.app import Supervisor

_log = logging.getLogger("naiad.cli")
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def naiad_serve(arguments: Sequence[str]) -> int:
    """Run `naiad serve` until the server stops; returns the exit code."""
    return serve(arguments, "naiad serve")


def serve(arguments: Sequence[str], program: str, supervisor: Supervisor | None = None) -> int:
    """Run the server that a command line describes until it stops; returns the exit code."""
    try:
        found, positional = split_arguments(arguments, SERVER_FLAGS, program)
        if any(flag.name == HELP for flag, _ in found):
            print(usage("naiad serve [FILE]..." if program == "naiad serve" else program, SERVER_FLAGS), end="")
            return 0
        with _repository_of(positional, program) as repository:
            return _serve(
                [*found, *((server_flag("model-repository"), one) for one in repository)], program, supervisor
            )
    except OptionError as error:
        return report_option_error(error, program)


@contextmanager
def _repository_of(positional: Sequence[str], program: str) -> Iterator[list[str]]:
    """A temporary repository with the files of frameworks that a command line names; none if it names no file."""
    if not positional:
        yield []
        return
    # Imported here: a server of a repository needs none of it.
    from naiad.models.repository.saved_files import may_be_saved_file, read_saved_file, temporary_repository

    for argument in positional:
        if program != "naiad serve" or not may_be_saved_file(argument):
            raise stray_argument(argument, is_repository=is_directory(argument))
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_repository([read_saved_file(Path(one)) for one in positional]))
        except RepositoryError as error:
            cause, _, hint = error.message.rpartition("; ")
            raise UsageError(error.message, preface=f"{program}: {cause}", hint=hint) from None
        yield [str(folder)]


def _serve(found: Sequence[tuple[Flag, str]], program: str, supervisor: Supervisor | None) -> int:
    options = read_options(found, environ=os.environ)
    # A person at a terminal tries models; a server in production must never resolve requirements on its own.
    is_tried = program != "tritonserver" and sys.stdin.isatty() and sys.stderr.isatty()
    options = with_default_build(options, EnvBuild.ALLOWED if is_tried else EnvBuild.LOCKED)
    _limit_blas_threads()
    with open_log(log_settings(options), is_queued=True) as log:
        _log_notices(options)
        garbage_collection.pause()  # `app` resumes it
        heap.fix_thresholds()
        # Imported here, so that `--help` and errors of the command line do not pay for it.
        from naiad.server.app import serve as run_server

        return run_server(options, log, supervisor, is_brief=program != "tritonserver")


def with_default_build(options: ServerOptions, build: EnvBuild) -> ServerOptions:
    """The options with a value for `--env-build` if it was not given."""
    environments = options.environments
    return replace(options, environments=replace(environments, build=environments.build or build))


def _limit_blas_threads() -> None:
    """Keep numpy from starting threads for linear algebra; the server computes none.

    OpenBLAS threads spin for a while before they sleep, on cores that the starting guests need. `putenv` changes the
    environment for C libraries of this process only: guests inherit `os.environ`, which keeps the user's value.
    `putenv` is not thread-safe, so this runs before any other thread starts.
    """
    os.putenv(_BLAS_THREADS, "1")


def open_log(settings: LogSettings, *, is_queued: bool = False) -> ActiveLog:
    """The log, opened with these settings, written by a thread if *is_queued*; close it to restore the previous one."""
    try:
        return configure(settings, is_queued=is_queued)
    except OSError as error:
        raise OptionError(f"--log-file={settings.file}: cannot be opened: {error.strerror or error}") from error


def log_settings(options: ServerOptions) -> LogSettings:
    """The settings of the log, from the options and the environment variables."""
    return LogSettings(
        verbose=options.log.verbosity,
        info=options.log.info,
        warning=options.log.warning,
        error=options.log.error,
        iso8601=options.log.format is LogFormat.ISO8601,
        escape=escapes_messages(os.environ),
        file=options.log.file,
    )


def _log_notices(options: ServerOptions) -> None:
    """Log the given flags, and the notices about flags without effect, before the server starts."""
    _log.debug("started with %s", " ".join(map(redact, options.command_line)) or "no flags")
    for notice in options.notices:
        _log.info("%s", notice)
