"""Changes of `instance_group` alone: instances are added and removed while the others of the version serve.

That is so for versions with all instances in the coordinator. Others are loaded again: their instances would have to
change in all processes in one step.
"""

from __future__ import annotations

import os
from dataclasses import replace

from naiad_stub.process_limits import usable_processors

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, freeze, instance_groups, instance_names
from naiad.engine.serving.version import ModelVersion
from naiad.guests.launch import LaunchSpec
from naiad.models.polling import Signature

# The variables that say to the usual libraries how many threads to start.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def threads_each(instances: int) -> str:
    """The number of threads that shares the processors of this server among *instances*."""
    return str(max(1, usable_processors() // instances))


def changed_instances(loaded: ModelVersion, now: pb.ModelConfig) -> ModelConfig | None:
    """The configuration of *loaded* with the instances of *now*; None if the version has to be loaded again.

    *now* differs from what *loaded* was loaded from in its instances alone.
    """
    if not may_change(loaded):  # an instance may have been given up since the load began
        return None
    message = pb.ModelConfig()
    message.CopyFrom(loaded.config.message)
    del message.instance_group[:]
    message.instance_group.extend(now.instance_group)
    message.ClearField("version_policy")
    if now.HasField("version_policy"):
        message.version_policy.CopyFrom(now.version_policy)
    config = freeze(message)
    names = [instance.name for instance in instance_names(config)]
    if len(set(names)) < len(names):
        return None
    if loaded.replicas is not None and any(each.state == "given up" for each in loaded.replicas.statuses()):
        return None
    is_spread = loaded.replicas is not None or (loaded.place is not None and loaded.place(config).is_spread)
    if is_spread and message != loaded.config.message:
        return None
    if not _resource_needs(config) <= _resource_needs(loaded.config):
        return None  # a need that no instance has yet may be one that can never be granted
    if message.HasField("sequence_batching"):
        kept = _kept_names(loaded.config, config)
        removed = {instance.name for instance in loaded.instances} - kept
        # A reload lets the sequences of the old instances end. While instances are started, sequences may begin.
        if removed and (set(names) - kept or loaded.is_in_use(removed)):
            return None
    return config


def are_instances_alone(before: pb.ModelConfig, now: pb.ModelConfig) -> bool:
    """Whether two configurations of a version differ in their instances alone."""
    return _without_instances(before) == _without_instances(now)


def may_change(loaded: ModelVersion) -> bool:
    """Whether instances of a version can be added and removed, as far as that depends on the version alone."""
    if loaded.reason or any(instance.reason for instance in loaded.instances):
        return False  # a load is also how an instance that was given up is tried again at once
    # The instances of a native model may share one process.
    return loaded.resolution is not None and loaded.resolution.library is None


def specs_with(loaded: ModelVersion, config: ModelConfig) -> tuple[list[LaunchSpec], set[str]]:
    """How to start each instance of *config*, and the names of the instances that stay.

    Interpreter, environment and files are those of the version's other instances.
    """
    template = loaded.instances[0].spec
    count = len(instance_names(loaded.config))
    instances = instance_names(config)
    environ = template.environ  # with thread counts for the largest number, where that follows the load
    if config.settings.scaling is None:
        environ = _with_threads(template, count, len(instances))
    specs = [
        replace(
            template,
            name=each.name,
            device=each.device_id,
            environ=environ,
            load=template.load.for_instance(each.name, each.kind.value, each.device_id, config.json_text),
        )
        for each in instances
    ]
    return specs, _kept_names(loaded.config, config)


def has_other_changes(before: Signature | None, now: Signature | None, config_file: str, version: int) -> bool:
    """Whether more than the configuration and other versions' directories differs; *before* is None if unknown."""
    if before is None or now is None:
        return True
    changed = {path for path in {*before, *now} if before.get(path) != now.get(path)} - {config_file}
    parts = {path.partition("/")[0] for path in changed}
    return any(not (part.isascii() and part.isdecimal()) or int(part) == version for part in parts)


def _without_instances(message: pb.ModelConfig) -> pb.ModelConfig:
    rest = pb.ModelConfig()
    rest.CopyFrom(message)
    rest.ClearField("instance_group")
    rest.ClearField("version_policy")
    return rest


def _resource_needs(config: ModelConfig) -> set[tuple[int, bytes]]:
    groups = instance_groups(config)
    needs: set[tuple[int, bytes]] = set()
    for each in instance_names(config):
        group = groups.get(each.name)
        if group is not None and group.rate_limiter.resources and not group.passive:
            needs.add((each.device_id, group.rate_limiter.SerializeToString(deterministic=True)))
    return needs


def _with_threads(template: LaunchSpec, before: int, now: int) -> dict[str, str]:
    """The variables of *template*, with thread counts for *now* instances where it had those for *before*."""
    environ = dict(template.environ)
    for name in THREAD_VARIABLES:
        if name not in os.environ and environ.get(name) == threads_each(before):
            environ[name] = threads_each(now)
    return environ


def _kept_names(before: ModelConfig, now: ModelConfig) -> set[str]:
    """The names of the instances that are the same in both configurations.

    As in the reference (CORE src/model_config_utils.cc, `ConfigChangeRequiresReload`), an instance stays if its group
    is unchanged apart from its count. Here its name has to stay as well, since logs and metrics identify it by name.
    """
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
