"""Which instances stay when a configuration changes.

As in the reference (CORE src/model_config_utils.cc, `ConfigChangeRequiresReload`), an instance stays if its group is
unchanged apart from its count. Here its name has to stay as well, since logs and metrics identify it by name.
"""

from __future__ import annotations

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, instance_groups, instance_names


def kept_names(before: ModelConfig, now: ModelConfig) -> set[str]:
    """The names of the instances that are the same in both configurations."""
    old, new = _identities(before), _identities(now)
    return {name for name, identity in new.items() if old.get(name) == identity}


def _identities(config: ModelConfig) -> dict[str, tuple[object, ...]]:
    groups = instance_groups(config)
    found: dict[str, tuple[object, ...]] = {}
    for each in instance_names(config):
        group = pb.ModelInstanceGroup()
        group.CopyFrom(groups.get(each.name, group))
        for name in ("name", "count", "gpus"):
            group.ClearField(name)
        found[each.name] = (each.kind, each.device_id, group.SerializeToString(deterministic=True))
    return found
