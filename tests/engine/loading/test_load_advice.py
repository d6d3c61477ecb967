"""What a model that cannot be loaded is advised to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.engine.loading.load_advice import load_advice
from naiad.models.resolution.decision import GuestLayout, Resolution

MODEL = Path("/models/m")
GUEST = GuestLayout(artifacts_dir=Path(), library_dir=Path(), requires_python=SpecifierSet())
RESOLUTION = Resolution(
    model="m",
    version=1,
    model_dir=MODEL,
    backend="python",
    backend_dir=None,
    runtime="",
    model_file=MODEL / "1" / "model.py",
    stub=Path(),
    utils_dir=Path(),
    guest=GUEST,
    stub_requires=SpecifierSet(),
    environment=None,
    environment_origin="",
    python=None,
    python_origin="",
    backend_config={},
    steps=(),
)


@pytest.mark.parametrize(
    ("environment", "advice"),
    [
        (None, "add it with `naiad add /models/m pyyaml`"),
        (MODEL / "1" / "model.py", "add it with `naiad add /models/m pyyaml`"),
        (MODEL / "other.py", "add it with `naiad add /models/m/other.py pyyaml`"),
        (
            MODEL / "requirements.txt",
            "add pyyaml to /models/m/requirements.txt, and run `naiad lock /models/m/requirements.txt`",
        ),
        (
            EnvironmentSource(path=MODEL / "pyproject.toml", digest="0" * 64),
            "add pyyaml to /models/m/pyproject.toml, and run `naiad lock /models/m/pyproject.toml`",
        ),
        (
            MODEL / "pylock.toml",
            "add pyyaml to the file that /models/m/pylock.toml was locked from, and lock that again",
        ),
        (
            MODEL / "e.tar.gz",
            "add pyyaml to the environment that /models/m/e.tar.gz was packed from, and pack that again",
        ),
        (
            EnvironmentSource(uri="https://h/e.tar.gz"),
            "add pyyaml to the environment that https://h/e.tar.gz was packed from, and pack that again",
        ),
        (Path("/"), "add pyyaml to the environment /"),
    ],
)
def test_the_advice_names_the_command_or_the_file(environment: Path | EnvironmentSource | None, advice: str) -> None:
    message = "ModuleNotFoundError: No module named 'yaml.nodes'\n\nAt:\n  model.py(1)"

    found = load_advice(message, replace(RESOLUTION, environment=environment))

    assert found == f"if 'yaml' is a package, {advice}"


def test_a_shared_backend_is_named_in_place_of_its_model() -> None:
    message = "Failed to process the request(s) for model 'm_0', message: ModuleNotFoundError: No module named 'PIL'"

    found = load_advice(message, replace(RESOLUTION, backend_dir=Path("/backends/b")))

    assert found == "if 'PIL' is a package, add it with `naiad add /backends/b pillow`"


def test_no_package_is_named_that_is_not_known_to_have_the_module(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    assert load_advice("ModuleNotFoundError: No module named 'sparktts.models'", RESOLUTION) == (
        "if it is from a package, add it with `naiad add /models/m PACKAGE`, with the package's name, which need not be "
        "the module's; if 'sparktts' is code of your own, put it beside model.py, or into a folder of PYTHONPATH for "
        "models under the server's own interpreter"
    )


@pytest.mark.parametrize("layout", ["sparktts/__init__.py", "sparktts/models/audio.py", "sparktts.py"])
def test_a_module_in_a_folder_of_pythonpath_is_said_to_be_there(layout, monkeypatch, tmp_path) -> None:
    (tmp_path / "code" / layout).parent.mkdir(parents=True)
    (tmp_path / "code" / layout).touch()
    monkeypatch.setenv("PYTHONPATH", f"/nowhere:{tmp_path}/code")
    of_archive = replace(RESOLUTION, environment=MODEL / "e.tar.gz")

    found = load_advice("ModuleNotFoundError: No module named 'sparktts'", of_archive)

    assert found.startswith(
        f"'sparktts' is in {tmp_path}/code, which the server's PYTHONPATH or working directory names"
    )
    assert "name that folder in a .pth file of the model's environment" in found
    assert "naiad add" not in found


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "AttributeError: module '1.model' has no attribute 'TritonPythonModel'",
            "class TritonPythonModel, with a method execute(self, requests)",
        ),
        (
            "TypeError: TritonPythonModel.initialize() takes 1 positional argument but 2 were given",
            "it as initialize(self, args)",
        ),
        ("TypeError: initialize() missing 1 required positional argument: 'more'", "it as initialize(self, args)"),
    ],
)
def test_code_that_lacks_what_a_model_has_is_told_what_to_define(message: str, wanted: str) -> None:
    assert load_advice(message, RESOLUTION) == f"define {wanted}, in /models/m/1/model.py"


@pytest.mark.parametrize("message", ["ValueError: x", "x\nModuleNotFoundError: No module named 'y'", ""])
def test_other_errors_get_no_advice(message: str) -> None:
    assert load_advice(message, RESOLUTION) == ""


def test_a_module_that_its_package_has_left_out_is_in_older_releases() -> None:
    found = load_advice("ModuleNotFoundError: No module named 'pkg_resources'", RESOLUTION)

    assert found == "only setuptools<82 has 'pkg_resources': add it with `naiad add /models/m 'setuptools<82'`"
