"""Parameters of Triton's backends for saved models that have no effect in those that ship with naiad.

The backends warn of them at load; a person who plans a migration wants to know before.
"""

from __future__ import annotations

from collections.abc import Iterator

from naiad.config.model.model_config import ModelConfig
from naiad.models.resolution.decision import Resolution
from naiad_operations.doctor.findings import Finding, Severity

__all__ = ["examine_parameters"]

_FALSE = frozenset({"", "0", "false", "off", "no"})
_WITHOUT_EFFECT = {
    "pytorch": {
        "ENABLE_WEIGHT_SHARING": (
            "each instance is a process with weights of its own",
            "use one instance with dynamic_batching where memory is short",
        ),
    },
    "fil": dict.fromkeys(
        ("layout", "chunk_size", "transfer_threshold", "use_experimental_optimizations", "algo", "threads_per_tree"),
        ("Treelite computes on processors", "remove it"),
    ),
}
"""By backend and parameter: why it has no effect, and what to do."""


def examine_parameters(config: ModelConfig, resolution: Resolution, where: str) -> Iterator[Finding]:
    """A note for each parameter without effect."""
    if not resolution.is_shared:
        return
    for name, (why, advice) in _WITHOUT_EFFECT.get(config.backend, {}).items():
        if config.parameters.get(name, "").strip().lower() not in _FALSE:
            yield Finding(
                severity=Severity.NOTE,
                code="without-effect",
                message=f"the parameter {name} has no effect: {why}",
                advice=advice,
                where=where,
            )
