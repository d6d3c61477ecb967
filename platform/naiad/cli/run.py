"""`naiad run`: load one model in its own environment, give it one request, print what comes back."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from naiad.cli.run_input import read_request
from naiad.cli.run_report import Answer, Report, answer_of, print_json, print_plainly, timings
from naiad.cli.serve import log_settings, open_log
from naiad.cli.usage import report, usage, with_help
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError, parse_value
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS, ModelControlMode, ServerOptions
from naiad.errors import NaiadError, OptionError
from naiad.protocol.inference import InferResponse

__all__ = ["run"]

_PROGRAM = "naiad run MODEL_DIR"
_GROUP = "Run (flags of the server that say how models are loaded work, too)"
_INPUT = Flag(
    "input",
    Kind.STRING,
    "",
    "The request: a file of JSON as for POST .../infer, - for standard input, or name=value (JSON, text or @file.npy) "
    "for each input.",
    repeatable=True,
)
_VERSION = Flag("version", Kind.INTEGER, "", "Run this version; the highest unless given.")
_WITH = Flag(
    "with", Kind.STRING, "", "Load this model of the same repository, too, for the model to call.", repeatable=True
)
_JSON = Flag("json", Kind.NOTHING, "", "Print one JSON object.")
_DEBUG = Flag("debug", Kind.STRING, "pdb", "Run it under a debugger, without time limits: pdb, or debugpy[:port].")
_OWN_FLAGS = tuple(replace(flag, group=_GROUP, own=True) for flag in (_INPUT, _VERSION, _WITH, _JSON, _DEBUG))
_SHOWN_FLAGS = with_help(_OWN_FLAGS, _GROUP)
_DEBUGGER = re.compile(r"pdb|debugpy(:\d{1,5})?")
_FAILED, _REQUEST_FAILED = 1, 2
_NO_LIMIT = 1_000_000.0
_QUIET = ("naiad.engine", "naiad.app", "naiad.environments")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What the command line asks for.

    Attributes:
        directory: The model's directory.
        inputs: Uses of `--input`.
        version: The version, -1 for the highest.
        as_json: Whether to print JSON.
        debugger: `pdb`, `debugpy` or `debugpy:PORT`; empty for none.
    """

    directory: Path
    inputs: tuple[str, ...]
    version: int
    as_json: bool
    debugger: str


def run(arguments: Sequence[str]) -> int:
    """Run a model once; the exit code: 1 if it could not be loaded or asked, 2 if it answered with an error."""
    try:
        # The one flag whose value may be left out, which getopt's long flags do not have.
        spelled = ["--debug=pdb" if argument == "--debug" else argument for argument in arguments]
        found, others = split_arguments(spelled, (*_OWN_FLAGS, *SERVER_FLAGS), _PROGRAM)
        if any(flag.name == HELP for flag, _ in found):
            print(usage(_PROGRAM, _SHOWN_FLAGS), end="")
            return 0
        if len(others) != 1:
            raise OptionError(f"{_PROGRAM}: name one model's directory. Got {', '.join(others) or 'none'}")
        wanted = _wanted(Path(others[0]).absolute(), found)
        options = _options(wanted, found)
        # Lines as the model wrote them: a person reads this log.
        with open_log(replace(log_settings(options), escape=False)):
            for name in _QUIET:
                logging.getLogger(name).setLevel(logging.WARNING)
            return _run(wanted, options)
    except UsageError as error:
        return report(error, _PROGRAM, _SHOWN_FLAGS)
    except NaiadError as error:
        print(error.message, file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return 130


def _wanted(directory: Path, found: Sequence[tuple[Flag, str]]) -> _Wanted:
    if not directory.is_dir():
        raise OptionError(f"there is no model in '{directory}': it is not a directory")
    versions = [parse_value(flag, text) for flag, text in found if flag.name == _VERSION.name]
    debugger = _texts(found, _DEBUG)[-1:]
    if debugger and not _DEBUGGER.fullmatch(debugger[0]):
        raise OptionError(f"--debug={debugger[0]}: there are pdb, debugpy and debugpy:PORT")
    return _Wanted(
        directory=directory,
        inputs=_texts(found, _INPUT),
        version=int(versions[-1]) if versions else -1,
        as_json=any(flag.name == _JSON.name for flag, _ in found),
        debugger=debugger[0] if debugger else "",
    )


def _options(wanted: _Wanted, found: Sequence[tuple[Flag, str]]) -> ServerOptions:
    own = {flag.name for flag in _OWN_FLAGS}
    repository = next(flag for flag in SERVER_FLAGS if flag.name == "model-repository")
    given = [(flag, text) for flag, text in found if flag.name not in own]
    options = read_options([(repository, str(wanted.directory.parent)), *given], environ=os.environ)
    exit_timeout = int(_NO_LIMIT) if wanted.debugger else options.general.exit_timeout_secs
    return replace(
        options,
        general=replace(options.general, exit_timeout_secs=exit_timeout),
        models=replace(
            options.models,
            control_mode=ModelControlMode.EXPLICIT,
            startup_models=tuple(dict.fromkeys((wanted.directory.name, *_texts(found, _WITH)))),
        ),
    )


def _texts(found: Sequence[tuple[Flag, str]], wanted: Flag) -> tuple[str, ...]:
    return tuple(text for flag, text in found if flag.name == wanted.name)


def _run(wanted: _Wanted, options: ServerOptions) -> int:
    done = asyncio.run(_ask(wanted, options))
    (print_json if wanted.as_json else print_plainly)(done)
    sys.stdout.flush()
    return _REQUEST_FAILED if done.has_failed else 0


async def _ask(wanted: _Wanted, options: ServerOptions) -> Report:
    """Load, send the request, wait for its end, unload."""
    from naiad.app import build_engine, build_loader

    name = wanted.directory.name
    engine = build_engine(options, build_loader(options, debugged=(name, wanted.debugger) if wanted.debugger else None))
    try:
        started = time.monotonic_ns()
        failures = await engine.start()
        load_ns = time.monotonic_ns() - started
        if failures:
            raise failures[0]
        metadata = engine.model_metadata(name, wanted.version)
        request = read_request(wanted.inputs, metadata)
        request.model_version = wanted.version
        responses = _Responses(engine)
        responses.ticket = engine.submit(request, responses)
        await responses.ended
        (statistics,) = engine.statistics(name, int(metadata.versions[-1]))
        return Report(
            model=name,
            version=metadata.versions[-1],
            answers=responses.answers,
            timings_ms=timings(load_ns, responses.total_ns, statistics),
        )
    finally:
        await engine.stop()


class _Responses:
    """Takes the responses of one request.

    Attributes:
        answers: The responses so far.
        ended: Done when there are no more.
        ticket: The request's ticket.
        total_ns: When it ended.
    """

    def __init__(self, engine: Any) -> None:
        self.answers: list[Answer] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ticket = 0
        self.total_ns = 0
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic_ns()

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the protocol's signature
        """Take one response."""
        self.total_ns = time.monotonic_ns() - self._started
        if response is not None:
            self.answers.append(answer_of(response, self.total_ns))
            self._loop.call_soon(lambda: self._engine.confirm_sent(self.ticket))
        if final and not self.ended.done():
            self.ended.set_result(None)
