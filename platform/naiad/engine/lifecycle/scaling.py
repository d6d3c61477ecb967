"""How many instances a model should have, given how long its requests wait. Pure: the clock is given.

Instances are added when the oldest request has waited longer than the policy allows, at each look for a while: as many
again as there are, so that 1 becomes 4 in two steps. After that the wait must last for a while again, with the new
instances. An instance is removed when it was not needed for the policy's idle time: at no look in that time were so
many instances in use. Adding takes fractions of a second and removing many seconds, so the number does not swing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from naiad.config.model.scaling import ScalingPolicy

# For how long requests must wait too long before instances are added: a single burst is over sooner.
SUSTAINED_SECONDS = 0.3
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLoad:
    """What was seen of a model's instances at one look."""

    count: int
    in_use: int
    waited: float = 0.0
    removable: int = 0  # how many of the last instances are not in use


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """What earlier looks have shown. All times are seconds of the clock that is given."""

    waiting_since: float | None = None  # since when requests wait too long at each look; None if they do not
    # When so many instances were needed last: the first number is for one, the second for two, and so on.
    needed: tuple[float, ...] = ()
    not_before: float = 0.0
    failures: int = 0


def decide(policy: ScalingPolicy, state: ScalingState, load: InstanceLoad, now: float) -> tuple[ScalingState, int]:
    """What to remember, and how many instances the model should have."""
    is_late = load.waited > policy.wait
    since = (now if state.waiting_since is None else state.waiting_since) if is_late else None
    needed = load.count if load.waited else load.in_use
    # What was never seen counts from the first look: instances are not removed because the server has just started.
    times = state.needed or (now,) * policy.most
    times = tuple(now if number <= needed else time for number, time in enumerate(times, 1))
    following = replace(state, waiting_since=since, needed=times)
    if load.count < policy.least:
        return following, policy.least
    if load.count > policy.most:
        return following, max(policy.most, load.count - load.removable)
    if since is not None and now - since >= SUSTAINED_SECONDS and now >= state.not_before:
        wanted = min(policy.most, 2 * load.count)
        if wanted > load.count:
            times = tuple(now if number <= wanted else time for number, time in enumerate(times, 1))
            return replace(following, waiting_since=None, needed=times), wanted
    kept = max((number for number, time in enumerate(times, 1) if now - time < policy.idle), default=0)
    return following, min(load.count, max(policy.least, kept, load.count - load.removable))


def on_failed(state: ScalingState, now: float) -> ScalingState:
    """What to remember after instances could not be started: a pause that doubles."""
    failures = state.failures + 1
    pause = min(_FIRST_PAUSE * 2 ** min(failures - 1, 16), _LONGEST_PAUSE)
    return replace(state, waiting_since=None, failures=failures, not_before=now + pause)
