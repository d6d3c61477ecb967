"""Completes a model's configuration from the interface that its targets describe."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Dict, List, Optional, Tuple

import triton_python_backend_utils as pb_utils

from naiad_remote import settings
from naiad_remote.caller import connect
from naiad_remote.errors import CallError, Cause
from naiad_remote.listed import read_list
from naiad_remote.settings import Settings, Target
from naiad_remote.watch import Limit, Watch
from naiad_remote.wire import Description, TensorDescription

_SECONDS = 10.0  # most time for one target to describe itself


def complete(config: Any, directory: str) -> Any:
    """Add inputs, outputs, the batch size and the transaction policy, which all targets must share."""
    written: Dict[str, Any] = config.as_dict()
    given = settings.read(written, directory)
    name = written["name"]
    described, failures = _ask(given)
    if failures and described:
        pb_utils.Logger.log_warn(f"the remote model '{name}' was not compared with all targets: {'; '.join(failures)}")
    if not described:
        if not (written.get("input") and written.get("output")):
            raise ValueError(
                f"cannot complete the configuration of the remote model '{name}': {'; '.join(failures)}; start the "
                "target, correct the parameter 'url', or write input, output and max_batch_size in config.pbtxt"
            )
        pb_utils.Logger.log_warn(f"the remote model '{name}' was compared with no target: {'; '.join(failures)}")
        return config
    first, description = described[0]
    for target, other in described[1:]:
        difference = find_difference(description, other)
        if difference:
            raise ValueError(f"the targets of the remote model '{name}' differ: {first} {difference} {target}")
    _check_names(written, description, first)
    if description.is_decoupled and not all(target.is_grpc for target, _ in described):
        raise ValueError(
            f"the remote model '{name}' is decoupled at {first}, and HTTP has one response for a request: give all "
            "targets as addresses of gRPC, such as grpc://host:8001"
        )
    try:
        _apply(config, description)
    except ValueError as error:
        raise ValueError(f"the configuration of the remote model '{name}' contradicts {first}: {error}") from None
    return config


def _ask(given: Settings) -> Tuple[List[Tuple[Target, Description]], List[str]]:
    """What the targets describe, and why others did not."""
    described: List[Tuple[Target, Description]] = []
    failures: List[str] = []
    targets = given.targets
    if given.servers:
        try:
            targets = read_list(given, "").targets
        except CallError as error:
            return described, [error.text]
        if not targets:
            return described, [f"{given.servers} lists no ready server"]
    with closing(Watch()) as watch:
        for target in targets:
            limit = Limit(min(given.timeout or _SECONDS, _SECONDS), Cause.TIMEOUT, [], time.monotonic())
            with closing(connect(target, given)) as caller:
                watch.add(limit)
                try:
                    described.append((target, caller.describe(list(given.headers), limit)))
                except CallError as error:
                    failures.append(error.text)
                finally:
                    watch.remove(limit)
    return described, failures


def find_difference(one: Description, other: Description) -> str:
    """How two descriptions differ, to be written between the names of their targets; empty if they do not."""
    if one.max_batch_size != other.max_batch_size:
        return f"has max_batch_size {one.max_batch_size}, not {other.max_batch_size} as"
    if one.is_decoupled != other.is_decoupled:
        return "is decoupled, unlike" if one.is_decoupled else "is not decoupled, unlike"
    for kind, mine, theirs in (("input", one.inputs, other.inputs), ("output", one.outputs, other.outputs)):
        others = {tensor.name: tensor for tensor in theirs}
        for tensor in mine:
            found: Optional[TensorDescription] = others.pop(tensor.name, None)
            if found is None:
                return f"has the {kind} '{tensor.name}', unlike"
            if found != tensor:
                return f"has the {kind} {_show(tensor)}, not {_show(found)} as"
        for missing in others:
            return f"has no {kind} '{missing}', unlike"
    return ""


def _show(tensor: TensorDescription) -> str:
    optional = ", optional" if tensor.is_optional else ""
    return f"'{tensor.name}' ({tensor.data_type} {list(tensor.dims)}{optional})"


def _check_names(written: Dict[str, Any], description: Description, target: Target) -> None:
    for kind, tensors in (("input", description.inputs), ("output", description.outputs)):
        known = [tensor.name for tensor in tensors]
        for tensor in written.get(kind, ()):
            if tensor["name"] not in known:
                raise ValueError(
                    f"the configuration of the remote model '{written['name']}' has the {kind} '{tensor['name']}', "
                    f"which {target} does not have; it has {', '.join(known)}"
                )


def _apply(config: Any, description: Description) -> None:
    if description.max_batch_size:
        # A smaller one is the operator's choice: a limit for the batches that this server forms.
        config.set_max_batch_size(config.as_dict()["max_batch_size"] or description.max_batch_size)
        if config.as_dict()["max_batch_size"] > description.max_batch_size:
            config.set_max_batch_size(description.max_batch_size)  # raises
    elif config.as_dict()["max_batch_size"]:
        raise ValueError(f"it has max_batch_size {config.as_dict()['max_batch_size']}, and the target has none")
    for tensor in description.inputs:
        entry = {"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)}
        if tensor.is_optional:
            entry["optional"] = True
        config.add_input(entry)
    for tensor in description.outputs:
        config.add_output({"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)})
    config.set_model_transaction_policy({"decoupled": description.is_decoupled})
