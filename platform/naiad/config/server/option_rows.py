"""The server's options as rows of the table that is logged at its start, in the reference's names and order.

Source: CORE src/tritonserver.cc.
"""

from __future__ import annotations

from collections.abc import Iterator

from naiad.config.model.environment_source import redact
from naiad.config.server.options import SERVER_FLAGS, ServerOptions
from naiad.protocol.metadata import ServerMetadata

_EVERY_DEVICE = -1


def option_rows(options: ServerOptions, server: ServerMetadata) -> Iterator[tuple[str, str]]:
    """Names and values of the options; those of GPUs, which have no effect here, as they were given."""
    models, limits = options.models, options.rate_limit.resources
    yield "server_id", server.name
    yield "server_version", server.version
    yield "server_extensions", " ".join(server.extensions)
    for index, repository in enumerate(models.repositories):
        yield f"model_repository_path[{index}]", redact(str(repository))
    yield "model_control_mode", f"MODE_{models.control_mode.name}"
    for index, model in enumerate(models.startup_models):
        yield f"startup_models_{index}", model
    yield "strict_model_config", str(int(not models.auto_complete))
    yield "model_config_name", models.config_name
    yield "rate_limit", "OFF" if limits is None else "EXEC_COUNT"
    for index, limit in enumerate(limits or ()):
        device = _EVERY_DEVICE if limit.device is None else limit.device
        value = f'{{"name":"{limit.name}", "count":{limit.count} "device":{device}}}'
        yield f"rate_limit_resource[{index}]", value
    yield "pinned_memory_pool_byte_size", _given(options, "pinned-memory-pool-byte-size")
    yield "min_supported_compute_capability", _given(options, "min-supported-compute-capability")
    yield "strict_readiness", str(int(options.general.strict_readiness))
    yield "exit_timeout", str(options.general.exit_timeout_secs)
    yield "cache_enabled", str(int(options.cache.size > 0))


def _given(options: ServerOptions, name: str) -> str:
    given = [text.partition("=")[2] for text in options.command_line if text.startswith(f"--{name}=")]
    return given[-1] if given else next(flag.default for flag in SERVER_FLAGS if flag.name == name)
