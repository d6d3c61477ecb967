"""Templates of requests: both sides forget them when the versions change that they were checked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from server.processes.pair import Pair, Sink, request

from naiad.protocol.inference import SEQUENCE_START
from naiad.server.processes import request_link

CHANGES = 20


async def test_the_owner_keeps_no_template_of_an_earlier_version(pair: Pair) -> None:
    for _ in range(CHANGES):
        sink = Sink()
        pair.know_route("m")
        for elements in (1, 2, 2):
            pair.remote.submit(request("m", elements), sink)
        await pair.settle(lambda sink=sink: len(sink.responses) == 3)
        assert len(pair.session._templates) == 2
        pair.session.on_routes_changed()
        await pair.settle(lambda: not pair.held.routes)
        await pair.settle(lambda: not len(pair.session._templates))
        assert pair.held.templates == 0

    assert len(pair.engine.requests) == 3 * CHANGES


async def test_a_request_on_its_way_at_the_change_finds_its_template(pair: Pair) -> None:
    sink = Sink()
    pair.know_route("m")
    pair.remote.submit(request("m"), sink)
    pair.session.on_routes_changed()  # before the owner has read the request
    await pair.settle(lambda: sink.responses)
    assert [each.model_name for each in pair.engine.requests] == ["m"]
    await pair.settle(lambda: not len(pair.session._templates))


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": 3},
        {"timeout_us": 5},
        {"flags": SEQUENCE_START},
        {"correlation_id": 7},
        {"correlation_id": "s"},
        {"correlation_id": ""},
    ],
)
async def test_requests_of_one_layout_may_differ_in_all_that_is_not_part_of_a_layout(
    pair: Pair, fields: dict[str, Any]
) -> None:
    """So do those of an ensemble's step, and of a model that calls another one."""
    sink = Sink()
    pair.know_route("m")
    plain = request("m")
    for sent in (plain, replace(plain, **fields), plain):
        pair.remote.submit(sent, sink)
    await pair.settle(lambda: len(sink.responses) == 3)
    assert [{name: getattr(each, name) for name in fields} for each in pair.engine.requests] == [
        {name: getattr(plain, name) for name in fields},
        fields,
        {name: getattr(plain, name) for name in fields},
    ]


@pytest.mark.parametrize("limit", ["_MAX_TEMPLATES", "_MAX_TEMPLATE_BYTES"])
async def test_templates_are_forgotten_by_both_sides_before_they_are_too_many(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    sink, requests = Sink(), pair.remote.requests
    pair.know_route("m")
    held = []
    for elements in range(1, 7):
        pair.remote.submit(request("m", elements), sink)
        held.append(pair.held.templates)
        if elements == 1:
            assert requests._template_bytes == len("X"), "the name of its input"
            monkeypatch.setattr(request_link, limit, 2 * requests._template_bytes if "BYTES" in limit else 4)
    assert held == [2, 4, 2, 4, 2, 4]
    await pair.settle(lambda: len(sink.responses) == 6)
    assert len(pair.session._templates) == 2
    requests.trim()
    assert pair.held.templates == (0 if "BYTES" in limit else 4)
    pair.remote.submit(request("m", 1), sink)
    await pair.settle(lambda: len(sink.responses) == 7)
    assert all(each is not None and each.error is None for each in sink.responses)
