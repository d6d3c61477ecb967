"""A model's configuration with the settings of a candidate: as JSON for the server, and as text for its file."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import ConfigError
from naiad_operations.tune.search import Candidate

_BATCHING, _DELAY, _PREFERRED = "dynamic_batching", "max_queue_delay_microseconds", "preferred_batch_size"


def check_tunable(config: Mapping[str, Any]) -> None:
    """Reject a model that has none of the settings."""
    if config.get("platform") == "ensemble" or "ensemble_scheduling" in config:
        raise ConfigError(
            f"cannot tune model '{config['name']}': it is an ensemble, which has no instances; tune the models of its "
            "steps"
        )


def candidate_of(config: Mapping[str, Any]) -> Candidate:
    """The settings that a configuration has, as the server prints it."""
    groups = config.get("instance_group", ())
    batching = config.get(_BATCHING)
    return Candidate(
        instances=max((int(group.get("count", 1)) for group in groups), default=1),
        batch=int(config.get("max_batch_size", 0)) if batching is not None else 0,
        delay_us=int((batching or {}).get(_DELAY, 0)),
    )


def with_candidate(config: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """The configuration in JSON with the settings of a candidate; all others stay."""
    groups = config.get("instance_group") or [{}]
    changed: dict[str, Any] = {
        **config,
        "instance_group": [{**group, "count": candidate.instances} for group in groups],
    }
    if candidate.batch:
        own = {key: value for key, value in (config.get(_BATCHING) or {}).items() if key != _PREFERRED}
        changed |= {"max_batch_size": candidate.batch, _BATCHING: {**own, _DELAY: candidate.delay_us}}
    else:
        changed.pop(_BATCHING, None)
    return changed


def with_candidate_text(message: pb.ModelConfig, candidate: Candidate) -> str:
    """The text of `config.pbtxt` with the settings of a candidate; what the file does not say stays unsaid."""
    changed = deepcopy(message)
    if not changed.instance_group:
        changed.instance_group.add()
    for group in changed.instance_group:
        group.count = candidate.instances
    if candidate.batch:
        changed.max_batch_size = candidate.batch
        del changed.dynamic_batching.preferred_batch_size[:]
        changed.dynamic_batching.max_queue_delay_microseconds = candidate.delay_us
    else:
        changed.ClearField("dynamic_batching")
    return str(text_format.MessageToString(changed))
