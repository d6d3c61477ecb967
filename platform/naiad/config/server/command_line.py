"""From a command line to `ServerOptions`: conflicts between flags are errors, probable mistakes are warnings.

Each option is declared in `options`; this module has what concerns several of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from naiad.config.server.access import Api
from naiad.config.server.backend_settings import GLOBAL, KNOWN_SETTINGS
from naiad.config.server.console_options import console_warnings
from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.hardened import hardened_flags, hardened_warnings, hardening_of
from naiad.config.server.metrics_options import metrics_warnings
from naiad.config.server.option_group import read_group
from naiad.config.server.options import (
    OPTION_GROUPS,
    SERVER_FLAGS,
    BackendOptions,
    ModelControlMode,
    ModelOptions,
    ServerOptions,
)
from naiad.config.server.trace_options import trace_warnings
from naiad.core.errors import OptionError

_PYTHON = "python"
_THERE_ARE = f"there are {', '.join(KNOWN_SETTINGS)}"


def read_options(given: Sequence[tuple[Flag, str]], *, environ: Mapping[str, str]) -> ServerOptions:
    """The options of a server that is started with these flags and their texts."""
    values = FlagValues(given, SERVER_FLAGS, environ)
    command_line = values.as_written()
    hardening = hardening_of(values)
    hardened_lines: list[str] = []
    if hardening is not None:
        added, hardened_lines = hardened_flags(values, hardening)
        known = {flag.name: flag for flag in SERVER_FLAGS}
        values = FlagValues([*((known[name], text) for name, text in added), *given], SERVER_FLAGS, environ)
    _check_flags(values)
    options = ServerOptions(
        **{name: read_group(group, values) for name, (_, group) in OPTION_GROUPS.items()},
        hardening=hardening,
        command_line=command_line,
        notices=(*hardened_lines, *values.notices()),
    )
    options = replace(options, warnings=(*_warnings(values, options), *_unguarded_warnings(options)))
    _check_ports(options)
    _check_startup_models(options.models)
    if options.models.requires_signature and options.environments.trusted_keys is None:
        raise OptionError(
            "cannot check signatures for --require-signature: no keys are trusted; name the file of their public keys "
            "with --env-trust (`naiad env keygen` prints its lines)"
        )
    # Last, as in the reference: other mistakes are reported without a repository, too.
    if not options.models.repositories:
        raise UsageError(
            "error: creating server: Invalid argument - --model-repository must be specified",
            cause="no model repository is named",
            hint="add --model-repository=DIRECTORY",
            is_of_form=False,
        )
    return options


# Errors. Texts are the reference's where it has some (SRV src/command_line_parser.cc).


def _check_flags(values: FlagValues) -> None:
    if values.has("response-cache-byte-size") and values.has("cache-config"):
        raise UsageError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other.",
            cause="--response-cache-byte-size and --cache-config exclude each other",
            hint="give one of them",
        )
    if values.has("model-config-name") and not values.text("model-config-name"):
        raise values.invalid("model-config-name", "Error: empty argument for --model-config-name")
    values.reject_unsupported()


def _check_ports(options: ServerOptions) -> None:
    http, grpc, metrics, openai = options.http, options.grpc, options.metrics, options.openai
    services = [
        (name, address, port)
        for is_enabled, name, address, port in (
            (http.is_enabled, "HTTP", http.address, http.port),
            (grpc.is_enabled, "GRPC", grpc.address, grpc.port),
            (metrics.is_enabled, "metrics", metrics.address, metrics.port),
            (not options.openai_shares_http, "OpenAI", openai.address, openai.port),
        )
        # Port 0 is any free port, a different one for each service.
        if is_enabled and port
    ]
    for (first, *place), (second, *other) in combinations(services, 2):
        if place == other:
            raise UsageError(
                f"The server cannot listen to {first} requests and {second} requests at the same address and port "
                f"{place[0]}:{place[1]}",
                cause=f"{first} and {second} requests have the same address and port, {place[0]}:{place[1]}",
                hint=f"give one of them another port: --{first.lower()}-port or --{second.lower()}-port",
            )


def _check_startup_models(models: ModelOptions) -> None:
    if models.startup_models and models.control_mode is not ModelControlMode.EXPLICIT:
        raise UsageError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
            cause="--load-model needs explicit model control",
            hint="add --model-control-mode=explicit",
        )
    if "*" in models.startup_models and len(models.startup_models) > 1:
        raise OptionError(
            "error: creating server: Invalid argument - Wildcard model name '*' must be the ONLY startup model "
            "if specified at all."
        )


# Warnings: flags that are valid and probably do not have the effect that the operator expects.


def _warnings(values: FlagValues, options: ServerOptions) -> Iterator[str]:
    yield from values.deprecations()
    yield from values.shortened()
    yield from trace_warnings(values)
    yield from metrics_warnings(values)
    # No errors, as in the reference: models with their own code need no backend, and it may be mounted later.
    yield from _directory_warnings(values, "backend-directory", "no model will find its backend there")
    yield from _directory_warnings(values, "env-directory", "no model will find an environment there")
    yield from _trace_file_warnings(values)
    yield from _backend_config_warnings(options.backends)
    yield from _openai_warnings(values)
    yield from hardened_warnings(values)
    yield from console_warnings(values)
    if options.environments.store_location.warning:
        yield options.environments.store_location.warning
    if values.environ.get("AIP_MODE") == "PREDICTION":
        yield (
            "AIP_MODE=PREDICTION is set, but the API of Vertex AI is not implemented in this version of naiad: "
            "HTTP and gRPC are served as the flags say"
        )


def _unguarded_warnings(options: ServerOptions) -> Iterator[str]:
    """API keys guard `/v1` only: warn if the other protocols run the same models without them."""
    keys = options.openai.api_keys
    if options.openai.port is None or not (keys.variable or keys.file):
        return
    hardening = options.hardening
    http, grpc = options.http.restrictions, options.grpc.restrictions
    if hardening is not None:
        http, grpc = hardening.http(http), hardening.grpc(grpc)
    is_open = {
        "/v2/models/NAME/generate and /infer": options.http.is_enabled and Api.INFERENCE not in http,
        "gRPC": options.grpc.is_enabled and Api.INFERENCE not in grpc,
    }
    ways = " and by ".join(way for way, is_one in is_open.items() if is_one)
    if ways:
        yield (
            f"the API keys guard /v1 only: every client can run the same models without a key by {ways}; "
            "set --hardened, or restrict inference with --http-restricted-api and --grpc-restricted-protocol"
        )


def _directory_warnings(values: FlagValues, flag: str, consequence: str) -> Iterator[str]:
    for path in values.paths(flag):
        if problem := _directory_problem(path):
            yield f"--{flag}={path} {problem}: {consequence}"


def _trace_file_warnings(values: FlagValues) -> Iterator[str]:
    # The file is opened with the first trace, which may be long after the start.
    prefix = "triton,file="
    files = [text for text in values.texts("trace-config") if text.startswith(prefix)]
    file = Path(files[-1].removeprefix(prefix) if files else values.text("trace-file"))
    if file.name and (problem := _directory_problem(file.parent)):
        yield f"traces cannot be written to {file}: {file.parent} {problem}"


def _directory_problem(path: Path) -> str:
    if path.is_dir():
        return ""
    return f"{'is not a directory' if path.exists() else 'does not exist'} ({path.absolute()})"


def _backend_config_warnings(backends: BackendOptions) -> Iterator[str]:
    for backend, settings in backends.configs.items():
        for key, value in settings.items():
            name = f"--backend-config={backend and f'{backend},'}{key}={value}"
            if backend not in (GLOBAL, _PYTHON):
                near = difflib.get_close_matches(backend, [_PYTHON], n=1, cutoff=0.7)
                if near and not _is_in_python(backend, backends.directories):
                    yield f"{name} may have no effect: did you mean {near[0]}?"
            elif key not in KNOWN_SETTINGS:
                near = difflib.get_close_matches(key, KNOWN_SETTINGS, n=1, cutoff=0.7)
                yield f"{name} has no effect: {f'did you mean {near[0]}?' if near else _THERE_ARE}"


def _is_in_python(backend: str, directories: Iterable[Path]) -> bool:
    """Whether a backend is a shared one in Python. A native one, which may be beside a model, gets its settings."""
    found = [directory / backend for directory in directories if (directory / backend).is_dir()]
    is_native = any((place / f"libtriton_{backend}.so").exists() for place in found)
    return not is_native and any((place / "model.py").exists() for place in found)


def _openai_warnings(values: FlagValues) -> Iterator[str]:
    if values.has("openai-port"):
        if values.has("openai-metrics") and not values.switch("allow-metrics"):
            yield "--openai-metrics has no effect: --allow-metrics=false"
        if values.has("mcp-models") and not values.has("mcp"):
            yield "--mcp-models has no effect: tools are served only with --mcp"
        return
    unused = [
        f"--{flag.name}" for flag in SERVER_FLAGS if flag.name.startswith(("openai-", "mcp")) and values.has(flag.name)
    ]
    if unused:
        verb = "has" if len(unused) == 1 else "have"
        yield f"{', '.join(unused)} {verb} no effect: OpenAI's API is served only with --openai-port"
