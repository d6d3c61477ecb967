"""Compares a response with the expected one: that of the departure if there is one, else the recorded one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import departures
from conformance.cases import Case
from conformance.grpc_cases import GrpcCase

Answer = dict[str, Any]
EXPECTED = Path(__file__).with_name("expected.json")


def recorded() -> Mapping[str, Mapping[str, Answer]]:
    """The reference's responses by protocol and name of the case."""
    content: Mapping[str, Mapping[str, Answer]] = json.loads(EXPECTED.read_text())
    return content


def judge_http(case: Case, expected: Answer, answer: Answer) -> str:
    """What differs from the expected response; empty if nothing does."""
    departure = departures.HTTP.get(case.name)
    if departure is not None:
        return "" if departure.accepts(answer) else f"owed {departure}\n got {_shown(answer)}"
    if case.only_prefix:
        expected, answer = (_cut(each, case.only_prefix) for each in (expected, answer))
    return _compare(expected, answer, case.unordered)


def judge_grpc(case: GrpcCase, expected: Answer, answer: Answer) -> str:
    """The same for a call over gRPC."""
    departure = departures.GRPC.get(case.name)
    if departure is not None:
        return "" if departure.accepts(answer) else f"owed {departure}\n got {_shown(answer)}"
    return _compare(expected, answer, case.unordered)


def _compare(expected: Answer, answer: Answer, unordered: Sequence[str]) -> str:
    # As text, so that the order of keys counts: people diff and read these responses.
    owed, got = _shown(expected), _shown(answer)
    for name in unordered:
        owed, got = owed.replace(name, "<one of them>"), got.replace(name, "<one of them>")
    return "" if owed == got else f"owed {owed}\n got {got}"


def _cut(answer: Answer, prefix: str) -> Answer:
    text = (answer.get("json") or {}).get("error", "")
    return {**answer, "json": {"error": prefix}} if text.startswith(prefix) else answer


def _shown(answer: Answer) -> str:
    return json.dumps(answer, ensure_ascii=False)
