"""Which GPUs instance groups may be placed on, and what happens to those for GPUs where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from naiad.config.model import model_config_pb2 as pb


@dataclass(frozen=True, slots=True)
class GpuPlacement:
    """The rules for instance groups of KIND_GPU."""

    count: Callable[[], int]  # how many GPUs models may use; called only if a group is for GPUs
    # Whether groups for GPUs are placed on the CPU where there is no GPU (`--gpu-fallback=cpu`).
    falls_back: bool = False


def place_on_cpu(message: pb.ModelConfig, gpus: GpuPlacement) -> None:
    """Place the groups for GPUs on the CPU, if the rules say so and there is no GPU."""
    kinds = pb.ModelInstanceGroup
    if not gpus.falls_back or all(group.kind != kinds.KIND_GPU for group in message.instance_group) or gpus.count():
        return
    for group in message.instance_group:
        if group.kind == kinds.KIND_GPU:
            group.kind = kinds.KIND_CPU
            del group.gpus[:]
