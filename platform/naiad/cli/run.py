"""`naiad run`: loads one model in its own environment, sends it one request and prints the responses.

The command builds the same engine and loader as a server (`naiad.server.app`) and submits the request through the
engine's facade, without a port. `run_input` makes the request of the command line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from naiad.cli.command_line import EXIT_FAILURE, CommandLine, run_command, server_flag, wrong_arguments
from naiad.cli.json_output import json_option, print_json
from naiad.cli.run_input import example_of, read_request, sequence_id_type
from naiad.cli.serve import log_settings, open_log, with_default_build
from naiad.config.server.command_line import read_options
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import Kind
from naiad.config.server.option_group import flags_of, own_option
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.core.errors import NaiadError, OptionError
from naiad.frontends.kserve_http.json_tensors import split_strings
from naiad.models.repository.layout import explain_no_directory
from naiad.models.resolution.tables import failed_models
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InferResponse, OutputTensor, SubmittedRequest
from naiad.protocol.metadata import ModelMetadata, ModelStatistics
from naiad.protocol.numpy_types import NUMPY_TYPES

_PROGRAM = "naiad run MODEL_DIR"
_QUIET_LOGGERS = ("naiad.engine", "naiad.app")  # their lines about loading say nothing to the person who started it
_DEBUGGER = re.compile(r"pdb|debugpy(:\d{1,5})?")
_NO_TIME_LIMIT_SECONDS = 1_000_000
_SHOWN_ELEMENTS = 24
_NS_PER_MS = 1e6
_ROUNDED_SECOND_MS = 999.5  # what rounds to a second with three digits
_BF16_SHIFT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The flags of `naiad run`."""

    inputs: list[str] = own_option(
        "input",
        "The request: a JSON file as for POST .../infer, - for standard input, or name=value (JSON, text or @file.npy) "
        "for each input.",
        repeatable=True,
    )
    version: int | None = own_option("version", "Run this version; default: the highest.", Kind.INTEGER)
    others: list[str] = own_option(
        "with", "Load this model of the same repository, too, for the model to call.", repeatable=True
    )
    is_json: bool = json_option()
    # `pdb`, `debugpy` or `debugpy:PORT`; empty for none.
    debugger: str = own_option(
        "debug",
        "Run under a debugger, without time limits: pdb, or debugpy[:port].",
        default="pdb",
        read=lambda values, name: values.text(name) if values.has(name) else "",
    )


OWN_FLAGS = flags_of("Run (also takes the server's flags about loading models)", RunOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrintedResponse:
    """One response, copied out of the guest's memory; *after_ms* are milliseconds since the request."""

    outputs: dict[str, tuple[str, np.ndarray[Any, Any]]]
    parameters: dict[str, Any]
    error: NaiadError | None
    after_ms: float


@dataclass(slots=True, kw_only=True)
class _RunResult:
    """The result of one run; timings are in milliseconds, by phase in order."""

    model: str
    version: str
    responses: list[_PrintedResponse] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)


# -- the command line -------------------------------------------------------------------------------------------------


def run(arguments: Sequence[str]) -> int:
    """Run a model once; returns the exit code: 1 if it cannot be loaded or asked, or a response is an error."""
    # `--debug` alone means `--debug=pdb`. getopt's long flags either require a value or take none.
    spelled = ["--debug=pdb" if argument == "--debug" else argument for argument in arguments]
    return run_command(spelled, RunOptions, OWN_FLAGS, _PROGRAM, "run", _run)


def _run(line: CommandLine, own: RunOptions) -> int:
    if len(line.positional) != 1:
        raise wrong_arguments(_PROGRAM, "one model directory", line.positional)
    directory = Path(line.positional[0]).absolute()
    if not directory.is_dir():
        raise OptionError(f"cannot run a model from '{directory}': {explain_no_directory(directory)}")
    if own.debugger and not _DEBUGGER.fullmatch(own.debugger):
        raise OptionError(f"--debug={own.debugger}: unknown debugger; use pdb, debugpy or debugpy:PORT")
    options = _server_options(directory, line, own)

    def is_shown(record: logging.LogRecord) -> bool:
        """Whether a line is not that about the failed load: the command prints the same error at its end."""
        start = f"failed to load '{directory.name}'"
        return record.levelno != logging.ERROR or not record.getMessage().startswith(start)

    # Lines of the model are printed as it wrote them: a person reads this log.
    with ExitStack() as stack:
        stack.enter_context(open_log(replace(log_settings(options), escape=False)))
        for name in _QUIET_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        engine_log = logging.getLogger("naiad.engine")
        engine_log.addFilter(is_shown)
        stack.callback(engine_log.removeFilter, is_shown)
        result = asyncio.run(_load_and_infer(directory, own, options))
        (_print_json if own.is_json else _print_plainly)(result)
        sys.stdout.flush()
        return EXIT_FAILURE if any(response.error is not None for response in result.responses) else 0


def _server_options(directory: Path, line: CommandLine, own: RunOptions) -> ServerOptions:
    """The options of a server that loads this model, and those of `--with`, from the model's repository."""
    repository = (server_flag("model-repository"), str(directory.parent))
    options = with_default_build(read_options([repository, *line.server], environ=os.environ), EnvBuild.ALLOWED)
    startup = tuple(dict.fromkeys((directory.name, *own.others)))
    models = replace(options.models, control_mode=ModelControlMode.EXPLICIT, startup_models=startup)
    exit_timeout = _NO_TIME_LIMIT_SECONDS if own.debugger else options.general.exit_timeout_secs
    return replace(options, models=models, general=replace(options.general, exit_timeout_secs=exit_timeout))


# -- the request ------------------------------------------------------------------------------------------------------


def _with_last_line(error: NaiadError, why: str) -> NaiadError:
    """The error of a load with what failed as its last line, below the lines of the model's code that led to it."""
    text = error.message.rstrip("\n;")
    return NaiadError(f"{text}\n\ncannot run: {why}", code=error.code) if why and "\n" in text else error


async def _load_and_infer(directory: Path, own: RunOptions, options: ServerOptions) -> _RunResult:
    from naiad.server.app import build_engine, build_loader

    name, version = directory.name, -1 if own.version is None else own.version
    engine = build_engine(options, build_loader(options, debugged=(name, own.debugger) if own.debugger else None))
    try:
        started = time.monotonic_ns()
        failures = await engine.start()
        load_ns = time.monotonic_ns() - started
        if failures:
            raise _with_last_line(failures[0], failed_models(engine.outcomes()))
        metadata = engine.model_metadata(name, version)
        if not own.inputs:
            _reject_missing_inputs(metadata)
        request = read_request(own.inputs, metadata)
        request.model_version = version
        id_type = sequence_id_type(engine.model_config(name, version))
        if id_type is not None and not request.correlation_id:
            request.correlation_id, request.flags = id_type(1), SEQUENCE_START | SEQUENCE_END  # one request's sequence
        sink = _ResponseSink()
        sink.submitted = engine.submit(request, sink)
        await sink.ended
        (statistics,) = engine.statistics(name, int(metadata.versions[-1]))
        return _RunResult(
            model=name,
            version=metadata.versions[-1],
            responses=sink.responses,
            timings_ms=_timings(load_ns, sink.total_ns, statistics),
        )
    finally:
        _explain_unknown_models(engine.services.calls.unknown, directory)
        await engine.stop()


def _explain_unknown_models(unknown: Iterable[tuple[str, str]], directory: Path) -> None:
    """Say what to add to the command line for models that a model has called and that are not loaded."""
    for caller, called in sorted(unknown):
        known = called in {path.name for path in directory.parent.iterdir() if path.is_dir()}
        what = f"add --with={called}" if known else f"its repository {directory.parent} has no such model"
        print(f"'{caller}' called '{called}', which is not loaded: {what}", file=sys.stderr)


def _reject_missing_inputs(metadata: ModelMetadata) -> None:
    wanted = [tensor for tensor in metadata.inputs if tensor.required]
    if wanted:
        examples = " ".join(f"--input {shlex.quote(example_of(tensor))}" for tensor in wanted)
        raise OptionError(f"cannot run '{metadata.name}' without its inputs; for example, add {examples}")


class _ResponseSink:
    """The engine's sink for the responses of one request."""

    def __init__(self) -> None:
        self.responses: list[_PrintedResponse] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done after the last response
        self.submitted: SubmittedRequest | None = None
        self.total_ns = 0  # nanoseconds between the request and the latest response
        self._loop = asyncio.get_running_loop()
        self._started = time.monotonic_ns()

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the protocol's signature
        self.total_ns = time.monotonic_ns() - self._started
        if response is not None:
            self.responses.append(_copy_response(response, self.total_ns))
            # Later, not now: the engine may call `send` before `submit` has returned.
            self._loop.call_soon(self._confirm)
        if final and not self.ended.done():
            self.ended.set_result(None)

    def _confirm(self) -> None:
        assert self.submitted is not None
        self.submitted.confirm_sent()


def _copy_response(response: InferResponse, after_ns: int) -> _PrintedResponse:
    return _PrintedResponse(
        outputs={tensor.name: (tensor.datatype.name, _copy_array(tensor)) for tensor in response.outputs},
        parameters=dict(response.parameters),
        error=response.error,
        after_ms=after_ns / _NS_PER_MS,
    )


def _copy_array(tensor: OutputTensor) -> np.ndarray[Any, Any]:
    """A copy of an output that numpy can print: BYTES as text, BF16 as FP32."""
    array: np.ndarray[Any, Any]
    if tensor.datatype is Datatype.BYTES:
        strings = [element.decode("utf-8", "replace") for element in split_strings(tensor.data)]
        array = np.empty(len(strings), np.object_)
        array[:] = strings
    elif tensor.datatype is Datatype.BF16:
        # BF16 is the upper half of FP32.
        array = (np.frombuffer(tensor.data, "<u2").astype("<u4") << _BF16_SHIFT).view("<f4")
    else:
        array = np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).copy()
    return array.reshape(tensor.shape)


def _timings(load_ns: int, total_ns: int, statistics: ModelStatistics) -> dict[str, float]:
    """Milliseconds by phase; the phases of the request are known only if it succeeded."""
    phases = {"load": load_ns}
    if statistics.success.count:
        phases |= {
            "queue": statistics.queue.ns,
            "input": statistics.compute_input.ns,
            "execute": statistics.compute_infer.ns,
            "output": statistics.compute_output.ns,
        }
    phases["total"] = total_ns
    return {name: ns / _NS_PER_MS for name, ns in phases.items()}


# -- the output -------------------------------------------------------------------------------------------------------


def _print_plainly(result: _RunResult) -> None:
    print(f"{result.model} version {result.version}")
    is_numbered = len(result.responses) != 1
    if is_numbered:
        print(f"{len(result.responses)} responses")
    for number, response in enumerate(result.responses, 1):
        if is_numbered:
            print(f"response {number} after {duration(response.after_ms)}")
        _print_response(response)
    print("  ".join(f"{name} {duration(ms)}" for name, ms in result.timings_ms.items()))


def duration(ms: float) -> str:
    """A duration with three digits, in seconds from one second on."""
    if ms < _ROUNDED_SECOND_MS:
        return f"{ms:.3g} ms"
    return f"{ms / 1000:#.3g} s" if ms < 1000 * _ROUNDED_SECOND_MS else f"{ms / 1000:.0f} s"


def _print_response(response: _PrintedResponse) -> None:
    if response.error is not None:
        print(f"  error ({response.error.code.value}): {response.error.message.rstrip()}")
    width = max(map(len, response.outputs), default=0)
    for name, (datatype, array) in response.outputs.items():
        shown = np.array2string(array, threshold=_SHOWN_ELEMENTS, separator=", ", prefix=" " * (width + 4))
        print(f"  {name:{width}}  {datatype} {list(array.shape)}  {shown}")
    if response.parameters:
        print(f"  parameters: {orjson.dumps(response.parameters).decode()}")


def _print_json(result: _RunResult) -> None:
    document = {
        "model_name": result.model,
        "model_version": result.version,
        "responses": [_as_json(response) for response in result.responses],
        "timings_ms": result.timings_ms,
    }
    print_json(document, is_indented=False)


def _as_json(response: _PrintedResponse) -> dict[str, Any]:
    if response.error is not None:
        return {"error": response.error.message, "code": response.error.code.value, "after_ms": response.after_ms}
    return {
        "outputs": [
            {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, (datatype, array) in response.outputs.items()
        ],
        "parameters": response.parameters,
        "after_ms": response.after_ms,
    }
