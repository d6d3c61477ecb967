"""The packages beside `naiad` may be missing: servers serve without them, and what needs one says which."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from examples.running import read_example
from support.server import ServerProcess

from naiad.core.extensions import EXTENSIONS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {extension.package for extension in EXTENSIONS}
EXAMPLES = ("add_sub", "bls_async", "decoupled_repeat", "ensemble", "stateful_sequence")
"""Those that show the most kinds of models."""
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


def interpreter(tree: Path, code: str) -> list[str]:
    """A command that runs code in an interpreter that finds no other naiad than the tree's.

    Without `site`, nothing processes the `.pth` file by which a checkout is installed.
    """
    path = [str(tree / "platform"), str(tree / "stubs"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path}\n{code}"]


def command_of(tree: Path, function: str) -> list[str]:
    """A program of the tree."""
    return interpreter(tree, f"from naiad.cli.main import {function}; sys.exit({function}())")


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)


HELP = """
import contextlib, io, json
from naiad.cli.main import main
found = {}
for name in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([name, "--help"])
        except SystemExit as end:
            code = end.code or 0
    found[name] = code, out.getvalue(), err.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_without(tmp_path_factory.mktemp("alone"), *PACKAGES)


def test_a_server_serves_the_examples_without_any_of_the_packages(alone: Path, tmp_path: Path) -> None:
    command = command_of(alone, "main_tritonserver")

    examples = [read_example(name) for name in EXAMPLES]
    with ServerProcess([example.models for example in examples], work=tmp_path, command=command) as server:
        for example in examples:
            asked = example.ask(server)
            assert (asked.stdout, asked.stderr, asked.returncode) == (example.output, "", 0)


def test_the_overview_lists_the_commands_that_are_there(alone: Path) -> None:
    found = run(command_of(alone, "main"), "--help")

    listed = re.findall(r"^  (\w+) ", found.stdout.partition("Commands:\n")[2], re.MULTILINE)
    assert listed == ["serve", "run", "explain", "pull", "verify", "completion"], found.stderr


@pytest.mark.parametrize(
    "extension", [extension for extension in EXTENSIONS if extension.commands], ids=lambda extension: extension.package
)
def test_commands_of_a_missing_package_say_what_to_install_and_the_others_work(extension, tmp_path: Path) -> None:
    tree = copy_without(tmp_path / "tree", extension.package)
    commands = [name for each in EXTENSIONS for name in each.commands]
    lacking = set(extension.commands)
    if extension.package == "naiad_building":  # an archive of a server packs environments
        lacking |= {"bundle", "push"}

    asked = run(interpreter(tree, HELP), *commands)

    found = json.loads(asked.stdout)
    for name in commands:
        code, out, err = found[name]
        if name in lacking:
            assert (code, out, err) == (1, "", f"cannot run `naiad {name}`: {LACKING.format(extension.package)}\n")
        else:
            assert (code, err) == (0, ""), name
            assert out


def test_the_api_of_language_models_is_refused_without_its_package(tmp_path: Path) -> None:
    tree = copy_without(tmp_path / "tree", "naiad_llm")
    command = [*command_of(tree, "main_tritonserver"), "--openai-port=0", "--http-port=0", "--grpc-port=0"]

    found = run(command, "--metrics-port=0", f"--model-repository={ROOT / 'examples' / 'add_sub' / 'models'}")

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
        wait="loaded",
    ) as server:
        server.wait_for(lambda: "failed to load 'declaring'" in server.log, "the model to fail")
        assert server.get("/v2/models/add_sub/ready").status == 200

    assert f"cannot prepare the environment that {declaring} declares: {LACKING.format('naiad_building')}" in server.log


@pytest.mark.parametrize(("module", "package"), [("testing", "naiad_embedded"), ("ray", "naiad_operations")])
def test_the_public_name_of_a_missing_package_names_it(module: str, package: str, alone: Path) -> None:
    found = run(interpreter(alone, f"import naiad.{module}"))

    assert found.stderr.endswith(f"ModuleNotFoundError: No module named '{package}'\n")
