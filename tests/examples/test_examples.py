"""Every example as its README tells users to run it, on a real server; the READMEs are the cases."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from examples.running import EXAMPLES, OF_ANOTHER_KIND, OURS, example_names, read_example
from support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server with all of them: their models have different names."""
    repositories = [read_example(name).models for name in example_names()]
    with ServerProcess(repositories, work=tmp_path_factory.mktemp("examples")) as running:
        yield running


@pytest.mark.parametrize("name", example_names())
def test_an_example_prints_what_its_readme_shows(name, server):
    example = read_example(name)
    assert example.server[3:] == [], "served with flags of its own: start a server for it here"

    asked = example.ask(server)

    assert asked.returncode == 0, f"{asked.stdout}\n{asked.stderr}"
    assert asked.stdout == example.output
    assert asked.stderr == ""
    assert [str(path) for path in (EXAMPLES / name).rglob("__pycache__")] == []


@pytest.mark.parametrize("name", example_names())
def test_a_readme_names_the_files_of_its_own_folder(name):
    example = read_example(name)
    folder = f"examples/{name}"

    assert example.server[:3] == ["tritonserver", "--model-repository", f"{folder}/models"]
    assert example.client[:2] == ["python", f"{folder}/client.py"]
    assert (EXAMPLES / name / "client.py").is_file()
    models = sorted(path for path in example.models.iterdir())
    assert models
    without_code = [model.name for model in models if not (model / "1" / "model.py").is_file()]
    assert without_code == [model.name for model in models if _is_ensemble(model)]


def _is_ensemble(model: Path) -> bool:
    config = model / "config.pbtxt"
    return config.is_file() and 'platform: "ensemble"' in config.read_text(encoding="utf-8")


def test_models_run_under_every_python_that_a_guest_may_have():
    for path in EXAMPLES.rglob("model.py"):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


@pytest.mark.parametrize("name", example_names())
def test_a_client_fails_where_there_is_no_answer(name, tmp_path):
    """Exit codes are what scripts look at; a client that cannot fail shows nothing."""
    nobody = ServerProcess(None, work=tmp_path)  # never started: nobody listens on its ports

    asked = read_example(name).ask(nobody)

    assert asked.returncode != 0


def test_the_table_of_examples_lists_every_folder_and_says_which_are_ours():
    rows = {}
    for line in (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| [`"):
            folder, _, where = (cell.strip() for cell in line.strip("|").split("|"))
            rows[folder] = where

    expected = {
        f"[`{name}`]({name}/)": OURS.rstrip(": ").lower() if read_example(name).is_ours else "yes"
        for name in example_names()
    }
    others = {f"[`{name}`]({name}/)": where for name, where in OF_ANOTHER_KIND.items()}
    assert rows == {**expected, **others}
