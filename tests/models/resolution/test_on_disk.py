"""Resolution on a real disk: links, two shared backends, and the reference's own start-up layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import ResolutionError
from naiad.models.resolution.layout import lay_out_guest
from naiad.models.resolution.resolve import ResolutionSettings, resolve


@pytest.fixture
def place(tmp_path):
    """Two backend directories with a shared backend each, and four models, one with its own environment."""
    for backend in ("first/one", "second/two"):
        (tmp_path / backend).mkdir(parents=True)
        (tmp_path / backend / "model.py").write_text("")
    for model in ("a", "b", "c", "d"):
        (tmp_path / "models" / model / "1").mkdir(parents=True)
    (tmp_path / "second" / "two" / "pb_exec_env_model.py.tar.gz").write_bytes(b"")
    (tmp_path / "models" / "d" / "own.tar.gz").write_bytes(b"")
    return tmp_path


def found(place, model, backend, **parameters):
    settings = ResolutionSettings(
        backend_directories=(place / "first", place / "second"), guest=lay_out_guest(place / "guests")
    )
    config = ModelConfig(name=model, backend=backend, parameters=parameters)
    return resolve(config, model_dir=place / "models" / model, version=1, settings=settings)


def test_two_shared_backends_serve_two_models_each_and_one_has_its_own_environment(place):
    resolutions = [
        found(place, "a", "one"),
        found(place, "b", "one"),
        found(place, "c", "two"),
        found(place, "d", "two", EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/own.tar.gz"),
    ]
    assert [resolution.model_file for resolution in resolutions] == [
        *[place / "first" / "one" / "model.py"] * 2,
        *[place / "second" / "two" / "model.py"] * 2,
    ]
    assert [resolution.environment for resolution in resolutions] == [
        None,
        None,
        place / "second" / "two" / "pb_exec_env_model.py.tar.gz",
        place / "models" / "d" / "own.tar.gz",
    ]
    assert len({resolution.stub for resolution in resolutions}) == 1
    assert [resolution.version_dir.parent.name for resolution in resolutions] == ["a", "b", "c", "d"]


def test_a_model_directory_may_be_a_link(place):
    (place / "models" / "linked").symlink_to(place / "models" / "d")
    resolution = found(place, "linked", "two", EXECUTION_ENV_PATH="own.tar.gz")
    assert resolution.environment == place / "models" / "linked" / "own.tar.gz"


def test_a_dangling_link_is_not_an_environment(place):
    (place / "models" / "a" / "gone").symlink_to(place / "nowhere")
    with pytest.raises(
        ResolutionError, match="does not exist; it is a link, and what it names does not exist; a path may"
    ):
        found(place, "a", "one", EXECUTION_ENV_PATH="gone")


def test_a_stub_of_a_real_executable_is_not_used(place):
    """The interpreter itself stands for a compiled stub."""
    executable = Path(os.path.realpath("/proc/self/exe"))
    (place / "models" / "a" / "triton_python_backend_stub").symlink_to(executable)
    resolution = found(place, "a", "one")
    assert resolution.stub.parent.name == "artifacts"
    assert [notice for notice in resolution.notices if "is a compiled stub of another implementation" in notice]


def test_a_manifest_that_is_a_directory_is_named(place):
    (place / "first" / "one" / "backend.toml").mkdir()
    with pytest.raises(ResolutionError, match=r"/first/one/backend\.toml: cannot be read: Is a directory"):
        found(place, "a", "one")
