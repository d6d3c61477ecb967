"""A demo of naiad's main feature: models of one repository, each under its own Python, called by Triton's own client.

Builds and packs an environment (once; see environment.py), lays the models out, starts the server, asks every model
over HTTP and gRPC, and ends with code 0 only if every answer is right.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import sys
import time
from pathlib import Path

import tritonclient.grpc
import tritonclient.http
from calls import Answer, ask_add_sub, ask_days, ask_labels, ask_species
from environment import packed_environment
from filelock import FileLock
from rich.box import SIMPLE_HEAD
from rich.table import Table
from server import Server, ServerError
from telling import console, note, step

from naiad.core.errors import NaiadError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / ".demo"
ARCHIVE = "text_pipeline.tar.gz"


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.perf_counter()
    # Raise as Ctrl-C does, so that every `with` block is left and stops the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    WORK.mkdir(exist_ok=True)
    try:
        with FileLock(WORK / "lock"):
            answers = show()
    except (NaiadError, ServerError) as error:
        console.print(f"The demo failed: {error}", style="red", markup=False)
        return 1
    wrong = dict.fromkeys(answer.model for answer in answers if not answer.is_right)
    verdict = f"[red]Wrong answers of {', '.join(wrong)}" if wrong else "[green]Every answer is right"
    console.print(f"\n{verdict}[/]; {time.perf_counter() - started:.1f} s in all. Log: .demo/server.log")
    return 1 if wrong else 0


def show() -> list[Answer]:
    """Run all steps of the demo."""
    with step("Environment of envs/text_pipeline"):
        environment = packed_environment(ROOT / "envs" / "text_pipeline", WORK, note)
        archive = Path(environment["archive"])
        size = archive.stat().st_size / 2**20
        note(f"Python {environment['python']}, packed in .demo/{archive.name} ({size:.0f} MiB)")
    with step("Models and backend beside that archive"):
        repository, backends = lay_out(archive)
    options = [
        f"--model-repository={HERE / 'repository'}",
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--env-store={WORK / 'store'}",
        # The model `when` names its packages in its own file, without a lock.
        "--env-build=allowed",
        # The model `iris` is a file of ONNX alone; its backend is run in the environment above, which has the library.
        f"--backend-config=onnxruntime,execution-env-path={archive}",
    ]
    with contextlib.ExitStack() as stack:
        with step("tritonserver, until all models are ready"):
            server = stack.enter_context(Server(options, WORK / "server.log"))
        return ask(server)


def lay_out(archive: Path) -> tuple[Path, Path]:
    """Write the files that depend on the built environment: the packed model, and the backend with its archive."""
    repository, backends = WORK / "repository", WORK / "backends"
    for old in (repository, backends):
        shutil.rmtree(old, ignore_errors=True)
    model = repository / "add_sub_packed"
    shutil.copytree(HERE / "repository" / "add_sub", model, ignore=shutil.ignore_patterns("__pycache__"))
    with (model / "config.pbtxt").open("a", encoding="utf-8") as config:
        path = f"$$TRITON_MODEL_DIRECTORY/{ARCHIVE}"
        config.write(f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n')
    shutil.copytree(HERE / "backends", backends, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (model, backends / "label_sentences"):
        os.link(archive, folder / ARCHIVE)  # hard links in place of copies of the archive
    note("add_sub_packed: the files of add_sub and EXECUTION_ENV_PATH; label_sentences: its archive in backend.toml")
    return repository, backends


def ask(server: Server) -> list[Answer]:
    """Send requests to every model over both protocols, and print the responses."""
    answers = []
    for name, api, url in (
        ("HTTP", tritonclient.http, server.http_url),
        ("gRPC", tritonclient.grpc, server.grpc_url),
    ):
        with contextlib.closing(api.InferenceServerClient(url)) as client:
            answered = [ask_add_sub(client, api, model) for model in ("add_sub", "add_sub_packed")]
            answered += [ask_labels(client, api, model) for model in ("sentiment", "topic")]
            answered.append(ask_days(client, api, "when"))
            answered.append(ask_species(client, api, "iris"))
        console.print(f"\n[bold]Asked over {name}[/] at {url}")
        console.print(table(answered))
        answers += answered
    console.print(f"This program and the server run under Python {platform.python_version()}.")
    return answers


def table(answers: list[Answer]) -> Table:
    """The requests of one protocol, each with its response."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("model", "asked", "came back", "Python"):
        shown.add_column(heading, overflow="fold")
    shown.add_column("ms", justify="right")
    for answer in answers:
        mark = "" if answer.is_right else " [red](wrong)[/]"
        for index, (asked, came_back) in enumerate(zip(answer.asked, answer.came_back)):
            if index == 0:
                cells = (f"{answer.model}{mark}", asked, came_back, answer.python, f"{answer.milliseconds:.1f}")
            else:
                cells = ("", asked, came_back, "", "")
            shown.add_row(*cells)
    return shown


if __name__ == "__main__":
    sys.exit(main())
