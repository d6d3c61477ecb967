"""Which options exclude each other, in the reference's words where it has some."""

from __future__ import annotations

from itertools import combinations

from naiad.config.server.flag import UsageError
from naiad.config.server.given import GivenFlags
from naiad.config.server.server_options import ModelControlMode, ServerOptions
from naiad.errors import OptionError

__all__ = ["check_exclusions", "check_options"]


def check_exclusions(given: GivenFlags) -> None:
    """Check flags that cannot be given together, or not with that text.

    Raises:
        UsageError: If two exclude each other, or one is empty.
        OptionError: If one asks for what this version does not do.
    """
    if given.has("response-cache-byte-size") and given.has("cache-config"):
        raise UsageError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    if given.has("model-config-name") and not given.text("model-config-name"):
        raise given.bad("model-config-name", "Error: empty argument for --model-config-name")
    given.check_refusals()


def check_options(options: ServerOptions) -> None:
    """Check values that contradict each other.

    Raises:
        UsageError: If two services would listen at one place, or models are named in the wrong mode.
        OptionError: If the server could not be created.
    """
    _check_ports(options)
    _check_load_models(options)
    # Last, as for the reference: what else is wrong is found without a repository.
    _check_repositories(options)


def _check_ports(options: ServerOptions) -> None:
    openai = None if options.openai_shares_http else options.openai
    services = [
        (name, address, port)
        for allowed, name, address, port in (
            (options.allow_http, "HTTP", options.http_address, options.http_port),
            (options.allow_grpc, "GRPC", options.grpc_address, options.grpc_port),
            (options.allow_metrics, "metrics", options.metrics_address, options.metrics_port),
            (openai is not None, "OpenAI", *((openai.address, openai.port) if openai else ("", 0))),
        )
        # Port 0 is any free port, another one for each service.
        if allowed and port
    ]
    for (first, *place), (second, *other) in combinations(services, 2):
        if place == other:
            raise UsageError(
                f"The server cannot listen to {first} requests and {second} requests at the same address and port "
                f"{place[0]}:{place[1]}"
            )


def _check_load_models(options: ServerOptions) -> None:
    if options.load_models and options.model_control_mode is not ModelControlMode.EXPLICIT:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in options.load_models and len(options.load_models) > 1:
        raise OptionError(
            "error: creating server: Invalid argument - Wildcard model name '*' must be the ONLY startup model "
            "if specified at all."
        )


def _check_repositories(options: ServerOptions) -> None:
    if not options.model_repositories:
        raise OptionError("error: creating server: Invalid argument - --model-repository must be specified")
