"""Serve models of several frameworks and Pythons with one server, ask each of them, and print what they run in.

    python examples/frameworks/show.py [--work FOLDER] [--without FRAMEWORK]

The environments are built from the recipes in `envs/`, once; later runs reuse them. A framework whose packages cannot
be installed here is left out, and a line has the reason. Ends with code 0 only if every response is right.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from server import Server, ServerError  # noqa: E402 - a module of the demo

INSTANCES = ROOT / "examples" / "instance_kinds" / "models"
VALUES = (1.0, 2.0, 3.0, 4.0)
OPTIONAL = ("jax", "torch")


def naiad(log: Path, *arguments: str | Path) -> bool:
    """Run `naiad env ...` with its output in a file; returns whether it succeeded."""
    program = Path(sys.executable).with_name("naiad")
    with log.open("ab") as file:
        return subprocess.run([program, "env", *arguments], stdout=file, stderr=file, check=False).returncode == 0


def build_packed(folder: Path, log: Path) -> bool:
    """Build and pack an environment of Python 3.9."""
    archive, prefix = folder / "python39.tar.gz", folder / "build" / "python39"
    if archive.exists():
        return True
    shutil.rmtree(prefix, ignore_errors=True)
    built = naiad(log, "build", ROOT / "envs" / "numpy_only", "--python", "3.9", "--output", prefix)
    return built and naiad(log, "pack", prefix, "--output", archive)


def build(framework: str, folder: Path, log: Path) -> bool:
    """Build the environment of a framework; the server uses its directory in place."""
    prefix = folder / framework
    return prefix.exists() or naiad(log, "build", ROOT / "envs" / f"{framework}_cpu", "--output", prefix)


def lay_out(work: Path, models: list[str]) -> Path:
    """A repository with those models of this example whose environment exists."""
    repository = work / "models"
    shutil.rmtree(repository, ignore_errors=True)
    for model in models:
        shutil.copytree(HERE / "models" / model, repository / model, ignore=shutil.ignore_patterns("__pycache__"))
    return repository


def show_instances(client: httpclient.InferenceServerClient) -> bool:
    """Keep all three instances of the model `where` busy at once, and print them."""
    pause = httpclient.InferInput("PAUSE_MS", [1], "UINT32").set_data_from_numpy(np.array([1000], np.uint32))
    results = [sent.get_result() for sent in [client.async_infer("where", [pause]) for _ in range(3)]]
    found = sorted(tuple(each.as_numpy(name).item().decode() for name in ("INSTANCE", "KIND")) for each in results)
    for instance, kind in found:
        print(f"where: instance {instance} of kind {kind}")
    return [kind for _, kind in found] == ["CPU", "CPU", "MODEL"]


def show_softmax(client: httpclient.InferenceServerClient, model: str) -> bool:
    """Ask a model for the softmax of four values, and print the result and what the model runs in."""
    tensor = httpclient.InferInput("IN", [len(VALUES)], "FP32").set_data_from_numpy(np.array(VALUES, np.float32))
    result = client.infer(model, [tensor])
    output = result.as_numpy("OUT")
    print(f"{model}: {' '.join(f'{value:.4f}' for value in output)} with {result.as_numpy('RUNS_IN').item().decode()}")
    powers = [math.exp(value) for value in VALUES]
    return bool(np.allclose(output, [power / sum(powers) for power in powers], atol=1e-5))


def ask_all(url: str, models: list[str]) -> list[bool]:
    """Ask every model; whether each response is right."""
    with httpclient.InferenceServerClient(url, concurrency=3, network_timeout=60) as client:
        return [show_instances(client), *(show_softmax(client, model) for model in models)]


def main() -> int:
    """Build the environments, start the server, ask all models; returns the exit code."""
    parser = argparse.ArgumentParser(description="Serve models of several frameworks and Pythons with one server.")
    parser.add_argument("--work", type=Path, default=ROOT / ".demo" / "frameworks", help="folder of the environments")
    parser.add_argument("--without", action="append", default=[], choices=OPTIONAL, help="leave a framework out")
    given = parser.parse_args()
    work: Path = given.work.resolve()
    folder, log = work / "environments", work / "build.log"
    (folder / "build").mkdir(parents=True, exist_ok=True)
    if not build_packed(folder, log):
        print(f"the environment of Python 3.9 could not be built; see {log}", file=sys.stderr)
        return 1
    models = ["in_numpy39"]
    for framework in OPTIONAL:
        if framework not in given.without and build(framework, folder, log):
            models.append(f"in_{framework}")
        else:
            why = "as asked" if framework in given.without else f"its packages could not be installed, see {log}"
            print(f"in_{framework}: left out, {why}")
    options = [f"--model-repository={lay_out(work, models)}", f"--model-repository={INSTANCES}"]
    options += [f"--env-directory={folder}", f"--env-store={work / 'store'}"]
    try:
        with Server(options, work / "server.log") as server:
            right = ask_all(server.http_url, models)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    print("every response is right" if all(right) else "a response is wrong")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
