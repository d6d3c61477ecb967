"""Creates the scheduler of a model from its configuration."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.engine.scheduling.dynamic.batch_rule import BatchRule
from naiad.engine.scheduling.dynamic.scheduler import DynamicScheduler
from naiad.engine.scheduling.fifo import FifoScheduler
from naiad.engine.scheduling.interface import Instance, Item, Scheduler
from naiad.engine.scheduling.sequences.controls import Controls
from naiad.engine.scheduling.sequences.rules import SequenceRules
from naiad.engine.scheduling.sequences.scheduler import SequenceScheduler
from naiad.engine.scheduling.sequences.slots import Direct, Oldest, Strategy
from naiad.engine.scheduling.sequences.states import StateTensor

_IDLE_US = 1_000_000
# Each slot is an object of the host. More sequences wait in the backlog.
_MAX_SLOTS = 1 << 16


def scheduler_for(config: ModelConfig, states: Sequence[StateTensor] = ()) -> Scheduler[Instance, Item]:
    """The scheduler of a model; *states* are the tensors of its implicit state."""
    if config.message.HasField("sequence_batching"):
        return sequence_scheduler_for(config, states)
    if config.message.HasField("dynamic_batching"):
        return DynamicScheduler.of(config)
    return FifoScheduler()


def sequence_scheduler_for(
    config: ModelConfig, states: Sequence[StateTensor] = ()
) -> SequenceScheduler[Instance, Item]:
    """The scheduler of a model with `sequence_batching`; direct where no strategy is given."""
    batching = config.message.sequence_batching
    controls = Controls(config)
    slots = max(config.max_batch_size, 1)
    strategy: Strategy
    if batching.HasField("oldest"):
        oldest = batching.oldest
        strategy = Oldest(
            BatchRule(config.max_batch_size, oldest.preferred_batch_size, oldest.max_queue_delay_microseconds)
        )
        slots = oldest.max_candidate_sequences if oldest.max_candidate_sequences > 0 else slots
    else:
        strategy = Direct(
            slots,
            pads=controls.has_ready,
            delay_us=batching.direct.max_queue_delay_microseconds,
            minimum_slot_utilization=batching.direct.minimum_slot_utilization,
        )
    return SequenceScheduler(
        SequenceRules(config.name, is_iterative=batching.iterative_sequence),
        strategy,
        controls,
        min(slots, _MAX_SLOTS),
        batching.max_sequence_idle_microseconds or _IDLE_US,
        states,
    )


def preserves_order(config: ModelConfig) -> bool:
    """Whether responses leave in the order of their requests (see `response_order.ResponseOrder`)."""
    message = config.message
    if message.HasField("sequence_batching"):
        return message.sequence_batching.oldest.preserve_ordering
    return message.dynamic_batching.preserve_ordering
