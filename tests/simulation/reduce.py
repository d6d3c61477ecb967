"""Shortens a history that fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from simulation.histories import History, Model
from simulation.run import run


def reduce(history: History) -> History:
    """The shortest history found that still fails in one of the same ways; the history itself if it does not fail."""
    wanted = run(history).kinds()
    if not wanted:
        return history
    is_changed = True
    while is_changed:
        is_changed = False
        for candidate in _shorter(history):
            if run(candidate).kinds() & wanted:
                history, is_changed = candidate, True
                break
    return history


def _shorter(history: History) -> Iterator[History]:
    """Simpler histories, the much shorter ones first."""
    events = history.events
    size = len(events) // 2
    while size:
        for start in range(0, len(events), size):
            yield replace(history, events=events[:start] + events[start + size :])
        size //= 2
    for name in history.models:
        others = {each: model for each, model in history.models.items() if each != name}
        if others and not any(name in {event.model, *event.moment.split(" ", 1)} for event in events):
            yield replace(history, models=others)
    for name, model in history.models.items():
        for simpler in (
            replace(model, starts=()),
            replace(model, options=()),
            replace(model, instances=1),
            *_without_starts(model),
        ):
            if simpler != model:
                yield replace(history, models={**history.models, name: simpler})
    for each in fields(history):
        if each.name in {"exit_timeout", "restart_limit", "deep"} and getattr(history, each.name) != each.default:
            yield replace(history, **{each.name: each.default})
    for index, event in enumerate(events):
        for each in fields(event):
            if each.name not in {"model", "number", "sequence", "how"} and getattr(event, each.name) != each.default:
                simpler = replace(event, **{each.name: each.default})
                yield replace(history, events=(*events[:index], simpler, *events[index + 1 :]))


def _without_starts(model: Model) -> Iterator[Model]:
    for index, how in enumerate(model.starts):
        if how != "ok":
            yield replace(model, starts=(*model.starts[:index], "ok", *model.starts[index + 1 :]))
