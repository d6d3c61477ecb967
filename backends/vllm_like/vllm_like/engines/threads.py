"""The default number of an engine's threads: one core stays free for the server, clients and other models."""

from __future__ import annotations

from naiad_stub.process_limits import usable_processors

_FEW_CORES = 2  # of so few cores, a free one is half of the speed of an engine that has the machine for itself


def default_count() -> int:
    """Available cores but one. An engine's threads wait for each other at each step, so one busy core delays all.

    Measured with llama.cpp on two cores that other processes kept busy: one thread generated 24 tokens a second, two
    threads 2.6. Where nothing else ran, two threads were about twice as fast. So one thread loses less at worst. More
    than two cores were not measured.
    """
    return max(1, usable_processors() - 1)


def advice(count: int) -> str:
    """A remark on *count* threads, if more may be much faster; else empty."""
    cores = usable_processors()
    if count >= cores or cores > _FEW_CORES:
        return ""
    return (
        f" ('n_threads': {cores} in engine_options is up to {cores} times as fast where no other process needs a core)"
    )
