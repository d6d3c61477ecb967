"""Three language models on one backend and in one packed environment, called by OpenAI's own client.

Builds and packs the environment with engine and weights (once; see environment.py), starts the server with OpenAI's
API, chats, and ends with code 0 only if every answer is well formed. What a model this small says is not judged.
"""

from __future__ import annotations

import contextlib
import json
import platform
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from chats import SENTENCES, Answer, chat, chat_at_once, chat_in_json, compare
from environment import packed_environment
from filelock import FileLock
from openai import OpenAI, OpenAIError
from rich.box import SIMPLE_HEAD
from rich.table import Table
from server import Server, ServerError
from telling import console, note, step

from naiad.core.errors import NaiadError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / ".demo" / "llm"
QUESTIONS = ["Why is the sky blue?", "What is bread made of?", "Name three rivers.", "What do bees do?"]


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.perf_counter()
    # Raise as Ctrl-C does, so that every `with` block is left and stops the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(WORK / "lock"):
            answers = run()
    except (NaiadError, ServerError, OpenAIError) as error:
        console.print(f"The demo failed: {error}", style="red", markup=False)
        return 1
    faults = [f"{answer.model}: {fault}" for answer in answers for fault in answer.faults]
    for fault in faults:
        console.print(fault, style="red", markup=False)
    verdict = "[red]Not every answer is well formed" if faults else "[green]Every answer is well formed"
    console.print(f"\n{verdict}[/]; {time.perf_counter() - started:.1f} s in all. Log: .demo/llm/server.log")
    return 1 if faults else 0


def run() -> list[Answer]:
    """Run all steps of the demo."""
    with step("Environment of envs/llm: llama.cpp, and the weights of SmolLM2-135M-Instruct"):
        environment = packed_environment(ROOT / "envs" / "llm", WORK, note, ending=".tar.zst")
        archive = Path(environment["archive"])
        size = archive.stat().st_size / 2**20
        note(f"Python {environment['python']}, packed in .demo/llm/{archive.name} ({size:.0f} MiB)")
    options = [
        f"--model-repository={HERE / 'llm'}",
        f"--env-directory={WORK}",  # contains env://llm, which the models' configurations name
        f"--env-store={WORK / 'store'}",
        "--ui=true",
    ]
    with contextlib.ExitStack() as stack:
        with step("tritonserver, until all models are ready"):
            server = stack.enter_context(Server(options, WORK / "server.log"))
        client = stack.enter_context(OpenAI(base_url=server.openai_url, api_key="none is asked for", timeout=120))
        answers = ask(client)
        console.print()
        console.print(guests(server))
    return answers


def ask(client: OpenAI) -> list[Answer]:
    """Send requests to every model, and print the responses as they arrive."""
    shown = {"max_tokens": 60, "temperature": 0}
    answers = [
        told(client, chat, "assistant", "What is the capital of France?", **shown),
        told(client, chat, "assistant", "How do I boil an egg?", **{**shown, "max_tokens": 24}),
        told(client, chat_in_json, "assistant", "Make up a person: name and age, as JSON."),
        told(client, chat, "storyteller", "Tell me of a lighthouse.", **{**shown, "temperature": 0.7}),
    ]
    together, rate = chat_at_once(client, "assistant", QUESTIONS)
    console.print(f"\n[bold]assistant[/], {len(QUESTIONS)} questions at the same time: {rate:.0f} tokens/s together")
    for question, answer in zip(QUESTIONS, together):
        note(f"{question}  {' '.join(answer.text.split())[:80]}...")
    compared, cosines = compare(client, "vectors")
    console.print(f"\n[bold]vectors[/] of four sentences in {compared.seconds * 1000:.0f} ms; their cosines")
    for sentence, row in zip(SENTENCES, cosines):
        note(f"{'  '.join(f'{cosine:.2f}' for cosine in row)}  {sentence}")
    return [*answers, *together, compared]


def told(client: OpenAI, how: Any, model: str, question: str, **options: Any) -> Answer:
    """Print one question, ask it, and print the answer."""
    console.print(f"\n[bold]{model}[/] was asked: {question}")
    answer = how(client, model, question, lambda text: console.print(text, end="", markup=False), **options)
    console.print()
    note(
        f"{answer.tokens} tokens, ended by {answer.finish_reason}; the first after {answer.first * 1000:.0f} ms, "
        f"then {answer.rate:.0f} tokens/s"
    )
    return answer


def guests(server: Server) -> Table:
    """Print the interpreter of each model, as reported by the server and by each guest's interpreter."""

    def shown(document: str) -> Any:
        """What the page shows."""
        with urllib.request.urlopen(f"http://{server.http_url}/ui/data/{document}", timeout=10) as reply:
            return json.load(reply)

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("model", "process", "Python", "memory"):
        table.add_column(heading)
    for model in shown("state")["models"]:
        details = shown(f"model/{model['name']}/{model['version']}")
        interpreter = details["environment"]["interpreter"]
        version = subprocess.run([interpreter, "--version"], capture_output=True, text=True, check=True)
        for guest in details["instances"]:
            memory = "-" if guest["memory"] is None else f"{guest['memory'] / 2**20:.0f} MiB"
            table.add_row(model["name"], str(guest["pid"]), version.stdout.split()[-1], memory)
    table.add_row("(server, client)", "", platform.python_version(), "")
    return table


if __name__ == "__main__":
    sys.exit(main())
