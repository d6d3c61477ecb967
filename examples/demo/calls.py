"""The demo's requests, sent with Triton's own client, and the checks of their responses."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

LEFT = np.array([1, 2, 3, 4], dtype=np.float32)
RIGHT = np.array([10, 20, 30, 40], dtype=np.float32)

SENTENCES = {
    "sentiment": {
        "This was the best film I have seen all year!": "positive",
        "The soup was cold and the waiter was rude.": "negative",
        "I am so glad that I bought these shoes.": "positive",
        "It broke after two days, what a waste of money.": "negative",
    },
    "topic": {
        "She scored twice in the second half and won the cup.": "sport",
        "Fry the onions in butter until they are golden.": "cooking",
        "The central bank raised its key rate by half a point.": "finance",
        "Heavy snow is expected in the mountains tonight.": "weather",
    },
}


DAYS = {"4 July 2026": "2026-07-04", "Mon, 23 Nov 2026": "2026-11-23"}

FLOWERS = {"setosa": (5.1, 3.5, 1.4, 0.2), "versicolor": (5.9, 2.8, 4.2, 1.3), "virginica": (6.9, 3.1, 5.7, 2.2)}
"""Length and width of sepals and petals in centimetres, by species."""


@dataclass(frozen=True)
class Answer:
    """Descriptions of one request and its response.

    `python` is the version of the interpreter that answered; empty if the response does not tell.
    """

    model: str
    asked: list[str]
    came_back: list[str]
    python: str
    milliseconds: float
    is_right: bool


def ask_add_sub(client: Any, api: ModuleType, model: str) -> Answer:
    """Add and subtract four numbers; every value must be exact."""
    inputs = [_input(api, "INPUT0", LEFT, "FP32"), _input(api, "INPUT1", RIGHT, "FP32")]
    result, milliseconds = _infer(client, model, inputs)
    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    return Answer(
        model=model,
        asked=[f"INPUT0 {_numbers(LEFT)}", f"INPUT1 {_numbers(RIGHT)}"],
        came_back=[f"sum {_numbers(total)}", f"difference {_numbers(difference)}"],
        python=_python(result),
        milliseconds=milliseconds,
        is_right=np.array_equal(total, LEFT + RIGHT) and np.array_equal(difference, LEFT - RIGHT),
    )


def ask_labels(client: Any, api: ModuleType, model: str) -> Answer:
    """Label all sentences in one request; the first label of each must be the expected one."""
    expected = SENTENCES[model]
    given = np.array([[sentence.encode()] for sentence in expected], dtype=object)
    result, milliseconds = _infer(client, model, [_input(api, "SENTENCE", given, "BYTES")])
    labels = [[label.decode() for label in row] for row in result.as_numpy("LABELS")]
    rows = [list(zip(names, row)) for names, row in zip(labels, result.as_numpy("PROBABILITIES"))]
    return Answer(
        model=model,
        asked=list(expected),
        came_back=["  ".join(f"{label} {chance:.0%}" for label, chance in row[:2]) for row in rows],
        python=_python(result),
        milliseconds=milliseconds,
        is_right=[names[0] for names in labels] == list(expected.values()),
    )


def ask_days(client: Any, api: ModuleType, model: str) -> Answer:
    """Read dates in words; each must be the expected day."""
    given = np.array([text.encode() for text in DAYS], dtype=object)
    result, milliseconds = _infer(client, model, [_input(api, "TEXT", given, "BYTES")])
    days = [day.decode() for day in result.as_numpy("DAY")]
    return Answer(
        model=model,
        asked=list(DAYS),
        came_back=days,
        python=_python(result),
        milliseconds=milliseconds,
        is_right=days == list(DAYS.values()),
    )


def ask_species(client: Any, api: ModuleType, model: str) -> Answer:
    """Tell the species of flowers by their measures; each must be the expected one."""
    given = np.array(list(FLOWERS.values()), dtype=np.float32)
    result, milliseconds = _infer(client, model, [_input(api, "CENTIMETRES", given, "FP32")])
    species = [name.decode() for name in result.as_numpy("SPECIES").reshape(-1)]
    chances = result.as_numpy("CHANCES").max(axis=1)
    return Answer(
        model=model,
        asked=[_numbers(measures) for measures in given],
        came_back=[f"{name} {chance:.0%}" for name, chance in zip(species, chances)],
        python="",
        milliseconds=milliseconds,
        is_right=species == list(FLOWERS),
    )


def _infer(client: Any, model: str, inputs: list[Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = client.infer(model, inputs)
    return result, (time.perf_counter() - started) * 1000


def _input(api: ModuleType, name: str, value: np.ndarray, datatype: str) -> Any:
    tensor = api.InferInput(name, list(value.shape), datatype)
    tensor.set_data_from_numpy(value)
    return tensor


def _python(result: Any) -> str:
    return str(result.as_numpy("PYTHON").reshape(-1)[0].decode())


def _numbers(values: np.ndarray) -> str:
    return " ".join(f"{value:g}" for value in values)
