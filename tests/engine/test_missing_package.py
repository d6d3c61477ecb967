"""What a model whose import failed is advised to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.engine.loading.missing_package import missing_package
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

    found = missing_package(message, replace(RESOLUTION, environment=environment))

    assert found == f"if 'yaml' is a package, {advice}"


def test_a_shared_backend_is_named_in_place_of_its_model() -> None:
    message = "Failed to process the request(s) for model 'm_0', message: ModuleNotFoundError: No module named 'PIL'"

    found = missing_package(message, replace(RESOLUTION, backend_dir=Path("/backends/b")))

    assert found == "if 'PIL' is a package, add it with `naiad add /backends/b pillow`"


@pytest.mark.parametrize("message", ["ValueError: x", "x\nModuleNotFoundError: No module named 'y'", ""])
def test_other_errors_get_no_advice(message: str) -> None:
    assert missing_package(message, RESOLUTION) == ""
