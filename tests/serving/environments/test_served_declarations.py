"""Models whose own file declares their environment, with real servers and commands: locked, served, explained, refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from environments.served import CONFIG, MODEL, index, told
from environments.wheels import only_wheels, wheel_of_installed, write_wheel
from support.console import shown_models
from support.model_files import write_files
from support.once import once
from support.server import ServerProcess

NAIAD = Path(sys.executable).with_name("naiad")
BLOCK = '# /// script\n# dependencies = ["numpy", "greeter"]\n# ///\n'
USES_GREETER = f"{MODEL}\nimport greeter\n"


def make_wheels(folder: Path) -> None:
    wheel_of_installed(folder, "numpy")
    write_wheel(folder, "greeter", "1.0", {"greeter.py": "HELLO = 'hello'\n"})


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "wheels-of-numpy-and-greeter", make_wheels)


@pytest.fixture(scope="module")
def repository(work: Path, wheels: Path) -> Path:
    """Models `one` and `two` with equal blocks and locks, `unlocked`, and `named`, which names a file of requirements."""
    models = work / "models"
    for name in ("one", "two", "unlocked"):
        write_files(models, name, CONFIG, BLOCK + USES_GREETER)
    parameter = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "requirements.txt" } }'
    write_files(models, "named", CONFIG + parameter, USES_GREETER)
    (models / "named" / "requirements.txt").write_text("numpy\ngreeter\n")
    with pytest.MonkeyPatch.context() as patch:
        only_wheels(wheels, patch)
        for name in ("one", "two", "named"):
            done = naiad("lock", models / name)
            assert done.returncode == 0, done.stderr
    return models


@pytest.fixture(scope="module")
def server(repository: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    work = tmp_path_factory.mktemp("work")
    flags = ("--offline", f"--env-wheels={wheels}", f"--env-store={work / 'store'}", "--ui=true")
    with ServerProcess(repository, *flags, "--exit-on-error=false", work=work, wait="loaded", timeout=200) as started:
        ended = {"READY", "UNAVAILABLE"}
        started.wait_for(lambda: {each.get("state") for each in index(started).values()} <= ended, "all loads")
        yield started


def naiad(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [NAIAD, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
    )


def test_models_run_in_the_environment_of_their_own_file(server: ServerProcess) -> None:
    prefixes = {told(server, model)[0] for model in ("one", "two", "named")}

    assert len(prefixes) == 1
    assert Path(prefixes.pop()).is_relative_to(server.work / "store")


def test_a_run_resolves_by_itself_and_a_server_does_not(repository: Path, wheels: Path, tmp_path: Path) -> None:
    arguments = (
        "run",
        repository / "unlocked",
        "--input=ASKED=[1]",
        f"--env-store={tmp_path}",
        f"--env-wheels={wheels}",
    )

    refused = naiad(*arguments, "--offline", "--env-build=locked")
    done = naiad(*arguments, "--offline")

    assert "has no lock" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


@pytest.mark.endurance
def test_a_prefetch_builds_what_a_server_with_the_same_flags_builds(
    repository: Path, wheels: Path, tmp_path: Path
) -> None:
    file, store = repository / "unlocked" / "1" / "model.py", f"--env-store={tmp_path / 'store'}"
    sources = (f"--env-wheels={wheels}", "--offline")

    never = naiad("env", "prefetch", file, store, *sources, "--env-build=never")
    locked = naiad("env", "prefetch", file, store, *sources)
    done = naiad("env", "prefetch", file, store, *sources, "--env-build=allowed")

    assert (never.returncode, locked.returncode, done.returncode) == (1, 1, 0)
    assert f"the environment of {file} has no lock, and --env-build=never resolves no requirements" in never.stderr
    assert "--env-build=locked resolves no requirements" in locked.stderr
    assert done.stdout.startswith(f"ready: {file} sha256:")


@pytest.mark.endurance
def test_a_page_shows_what_is_being_built(repository: Path, wheels: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(repository / "one", models / "one")
    flags = ("--offline", f"--env-wheels={wheels}", f"--env-store={tmp_path / 'store'}", "--ui=true")
    explicit = "--model-control-mode=explicit"
    with ServerProcess(models, *flags, explicit, work=tmp_path, timeout=200) as server, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(server.post, "/v2/repository/models/one/load", {})
        seen: set[str] = set()

        def is_loaded() -> bool:
            seen.update(model["reason"] for model in shown_models(server))
            return loading.done()

        server.wait_for(is_loaded, "the model")
        assert loading.result().status == 200
    assert any(reason.startswith("installing 2 packages") or reason == "compiling" for reason in seen), seen
