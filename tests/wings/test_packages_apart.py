"""The packages beside `naiad` may be missing: servers serve without them, and what needs one says which."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from examples.running import example_names, read_example
from support.server import ServerProcess

from naiad.core.wings import WINGS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {wing.package for wing in WINGS}
OF_EVERY_RUN = ("add_sub", "bls_async", "decoupled_repeat", "ensemble", "stateful_sequence")
"""Examples that show the most kinds of models; the others are slow tests."""
LACKING = (
    "this installation of naiad lacks its package '{}'; install naiad as a whole: pip install --force-reinstall naiad"
)


def copy_without(folder: Path, *missing: str) -> Path:
    """The tree without some packages."""
    ignored = shutil.ignore_patterns("__pycache__")
    for package in {"naiad", *PACKAGES} - {*missing}:
        shutil.copytree(ROOT / "platform" / package, folder / "platform" / package, ignore=ignored)
    for name in ("stubs", "backends"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def command_of(tree: Path, function: str) -> list[str]:
    """A program of the tree, in an interpreter that finds no other naiad.

    Without `site`, nothing processes the `.pth` file by which a checkout is installed.
    """
    path = [str(tree / "platform"), str(tree / "stubs"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    code = f"import sys; sys.path[:0] = {path}; from naiad.cli.main import {function}; sys.exit({function}())"
    return [sys.executable, "-S", "-c", code]


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command_of(tree, "main"), *arguments], cwd=tree, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_without(tmp_path_factory.mktemp("alone"), *PACKAGES)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in OF_EVERY_RUN else pytest.mark.slow) for each in example_names()]
)
def test_a_server_serves_the_examples_without_any_of_the_packages(name: str, alone: Path, tmp_path: Path) -> None:
    example = read_example(name)
    command = command_of(alone, "main_tritonserver")

    with ServerProcess(example.models, *example.server[3:], work=tmp_path, command=command) as server:
        asked = example.ask(server)

    assert (asked.stdout, asked.stderr, asked.returncode) == (example.output, "", 0)


def test_the_overview_lists_the_commands_that_are_there(alone: Path) -> None:
    found = run(alone, "--help")

    listed = re.findall(r"^  (\w+) ", found.stdout.partition("Commands:\n")[2], re.MULTILINE)
    assert listed == ["serve", "run", "explain", "pull", "verify", "completion"], found.stderr


@pytest.mark.parametrize("wing", [wing for wing in WINGS if wing.commands], ids=lambda wing: wing.package)
def test_commands_of_a_missing_package_say_what_to_install_and_the_others_work(wing, tmp_path: Path) -> None:
    tree = copy_without(tmp_path / "tree", wing.package)

    for name in wing.commands:
        found = run(tree, name, "--help")
        assert (found.returncode, found.stdout) == (1, "")
        assert found.stderr == f"cannot run `naiad {name}`: {LACKING.format(wing.package)}\n"
    for other in WINGS:
        for name in other.commands if other is not wing else ():
            found = run(tree, name, "--help")
            # An archive of a server packs environments.
            if wing.package == "naiad_building" and name in {"bundle", "push"}:
                assert found.stderr == f"cannot run `naiad {name}`: {LACKING.format(wing.package)}\n"
            else:
                assert (found.returncode, found.stderr) == (0, "")


def test_the_api_of_language_models_is_refused_without_its_package(tmp_path: Path) -> None:
    tree = copy_without(tmp_path / "tree", "naiad_llm")
    command = [*command_of(tree, "main_tritonserver"), "--openai-port=0", "--http-port=0", "--grpc-port=0"]

    found = subprocess.run(
        [*command, "--metrics-port=0", f"--model-repository={ROOT / 'examples' / 'add_sub' / 'models'}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert found.returncode == 1
    assert f"cannot serve OpenAI's API (--openai-port): {LACKING.format('naiad_llm')}" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_declared_environment_fails_its_model_alone_without_its_package(tmp_path: Path) -> None:
    tree = copy_without(tmp_path / "tree", "naiad_building")
    models = tmp_path / "models"
    shutil.copytree(ROOT / "examples" / "add_sub" / "models", models)
    declaring = models / "declaring" / "1" / "model.py"
    declaring.parent.mkdir(parents=True)
    declaring.write_text('# /// script\n# dependencies = ["numpy"]\n# ///\nclass TritonPythonModel:\n    pass\n')

    with ServerProcess(
        models,
        "--exit-on-error=false",
        work=tmp_path,
        command=command_of(tree, "main_tritonserver"),
        wait="live",
    ) as server:
        server.wait_for(lambda: "failed to load 'declaring'" in server.log, "the model to fail")
        assert server.get("/v2/models/add_sub/ready").status == 200

    assert f"cannot prepare the environment that {declaring} declares: {LACKING.format('naiad_building')}" in server.log


@pytest.mark.parametrize(("module", "package"), [("testing", "naiad_embedded"), ("ray", "naiad_operations")])
def test_the_public_name_of_a_missing_package_names_it(module: str, package: str, alone: Path) -> None:
    *interpreter, code = command_of(alone, "main")
    code = code.partition("from naiad.cli")[0] + f"import naiad.{module}"

    found = subprocess.run([*interpreter, code], capture_output=True, text=True, timeout=60, check=False)

    assert found.stderr.endswith(f"ModuleNotFoundError: No module named '{package}'\n")
