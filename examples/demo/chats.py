"""Requests of the language model demo, sent with OpenAI's own client, and the checks of their form."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Callable

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SENTENCES = (
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "The central bank raised its key interest rate.",
    "Interest rates were increased by the central bank.",
)


@dataclass
class Answer:
    """One response, and the problems found in it.

    Attributes:
        model: Which answered.
        tokens: How many it wrote.
        first: Seconds until something came.
        seconds: Seconds until all had come.
        faults: Why it is not well formed; none if it is.
    """

    model: str
    text: str = ""
    finish_reason: str = ""
    tokens: int = 0
    first: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second, without the first token."""
        return (self.tokens - 1) / max(self.seconds - self.first, 1e-9)


def chat(client: Any, model: str, question: str, show: Callable[[str], None], **options: Any) -> Answer:
    """Ask one question and print the answer as it arrives; check that text, finish reason and counts agree."""
    limit = options["max_tokens"]
    messages = [SYSTEM, {"role": "user", "content": question}] if model == "assistant" else [_user(question)]
    answer = Answer(model)
    started = time.perf_counter()
    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                answer.first = answer.first or time.perf_counter() - started
                answer.text += choice.delta.content
                show(choice.delta.content)
            answer.finish_reason = choice.finish_reason or answer.finish_reason
        if chunk.usage is not None:
            answer.tokens = chunk.usage.completion_tokens
    answer.seconds = time.perf_counter() - started
    _check_end(answer, limit)
    return answer


def _user(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def _check_end(answer: Answer, limit: int) -> None:
    if not answer.text.strip():
        answer.faults.append("the text is empty")
    if not 0 < answer.tokens <= limit:
        answer.faults.append(f"{answer.tokens} tokens, where 1 to {limit} were allowed")
    # A text of exactly the maximum length may also have ended regularly.
    expected = ("length", "stop") if answer.tokens == limit else ("stop",)
    if answer.finish_reason not in expected:
        answer.faults.append(f"it ended by {answer.finish_reason!r} after {answer.tokens} of {limit} tokens")


def chat_in_json(client: Any, model: str, question: str, show: Callable[[str], None]) -> Answer:
    """Request an object of a given JSON schema; the answer must match the schema."""
    structure = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = chat(client, model, question, show, max_tokens=100, temperature=0, response_format=structure)
    try:
        made = json.loads(answer.text)
        if set(made) != {"name", "age"} or not 1 <= made["age"] <= 99:
            answer.faults.append(f"not what the schema says: {answer.text}")
    except ValueError as error:
        answer.faults.append(f"no JSON: {error}")
    return answer


def chat_at_once(client: Any, model: str, questions: list[str]) -> tuple[list[Answer], float]:
    """Ask several questions concurrently; returns the answers and their total tokens per second."""
    options = {"max_tokens": 48, "temperature": 0}
    started = time.perf_counter()
    with ThreadPoolExecutor(len(questions)) as threads:
        asked = [threads.submit(chat, client, model, each, lambda _: None, **options) for each in questions]
        answers = [each.result() for each in asked]
    seconds = time.perf_counter() - started
    if max(answer.first for answer in answers) > min(answer.seconds for answer in answers):
        answers[-1].faults.append("it began only when another had ended")
    return answers, sum(answer.tokens for answer in answers) / seconds


def compare(client: Any, model: str) -> tuple[Answer, list[list[float]]]:
    """Vectors of four sentences; each must be closest to the sentence with the same meaning."""
    started = time.perf_counter()
    made = client.embeddings.create(model=model, input=list(SENTENCES))
    answer = Answer(model, seconds=time.perf_counter() - started, tokens=made.usage.prompt_tokens)
    vectors = [each.embedding for each in made.data]
    cosines = [[_cosine(one, other) for other in vectors] for one in vectors]
    for place, row in enumerate(cosines):
        alike = row[place ^ 1]  # the sentences at 2n and 2n + 1 have the same meaning
        others = [cosine for other, cosine in enumerate(row) if other // 2 != place // 2]
        if alike <= max(others):
            answer.faults.append(f"{SENTENCES[place]!r} is not closest to {SENTENCES[place ^ 1]!r}")
    return answer, cosines


def _cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other)) / (math.hypot(*one) * math.hypot(*other))
