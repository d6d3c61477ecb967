"""Where environments come from and which Python is asked for."""

from __future__ import annotations

import pytest
from naiad.errors import Code, ResolutionError
from resolution.makers import resolve_m

OWN, SHARED = "/repo/m/1/model.py", "/b1/x/model.py"
DEFAULT = "/b1/x/pb_exec_env_model.py.tar.gz"
MANIFEST = "/b1/x/backend.toml"


def test_a_model_without_a_word_has_no_environment():
    found = resolve_m({OWN})
    assert (found.environment, found.environment_origin, found.python) == (None, "", None)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/envs/e.tar.gz", "/envs/e.tar.gz"),
        ("e.tar.gz", "/repo/m/e.tar.gz"),
        ("envs/e.tar.gz", "/repo/m/envs/e.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/e.tar.gz", "/repo/m/e.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY", "/repo/m"),
    ],
)
def test_the_path_of_an_environment_is_found_by_the_documented_rules(text, path):
    found = resolve_m({OWN, path if path != "/repo/m" else OWN}, parameters={"EXECUTION_ENV_PATH": text})
    assert str(found.environment) == path
    assert found.environment_origin == "parameter EXECUTION_ENV_PATH of model 'm'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "e.tar.gz",
            "names the execution environment 'e.tar.gz', but '/repo/m/e.tar.gz' does not exist; a path may be",
        ),
        ("/$$TRITON_MODEL_DIRECTORY/e", "$$TRITON_MODEL_DIRECTORY must stand alone or before a '/'"),
        ("$$TRITON_MODEL_DIRECTORYe", "$$TRITON_MODEL_DIRECTORY must stand alone or before a '/'"),
        ("s3://bucket/e.tar.gz", "environments from elsewhere are not implemented in this version of naiad"),
    ],
)
def test_an_environment_that_is_not_there_is_an_error_with_the_rules(text, message):
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": text})
    assert caught.value.message.startswith("parameter EXECUTION_ENV_PATH of model 'm'")
    assert message in caught.value.message
    assert "relative to the model's directory" in caught.value.message


def test_an_archive_of_the_conventional_name_is_the_default_of_a_shared_backend():
    found = resolve_m({SHARED, DEFAULT}, backend="x")
    assert (str(found.environment), found.environment_origin) == (DEFAULT, "default of backend 'x'")


def test_the_models_own_environment_wins_over_its_backends():
    files = {SHARED: "", DEFAULT: "", MANIFEST: 'environment = "e"', "/b1/x/e": "", "/own": ""}
    found = resolve_m(files, backend="x", parameters={"EXECUTION_ENV_PATH": "/own"})
    assert str(found.environment) == "/own"


def test_the_environment_of_the_manifest_wins_over_the_conventional_name():
    files = {SHARED: "", DEFAULT: "", MANIFEST: 'environment = "envs/e.tar.zst"', "/b1/x/envs/e.tar.zst": ""}
    found = resolve_m(files, backend="x")
    assert (str(found.environment), found.environment_origin) == ("/b1/x/envs/e.tar.zst", MANIFEST)


def test_an_environment_of_the_manifest_that_is_not_there_names_the_manifest():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({SHARED: "", MANIFEST: 'environment = "e"'}, backend="x")
    assert caught.value.message.startswith(f"{MANIFEST} names the execution environment 'e', but '/b1/x/e' does not")
    assert caught.value.code is Code.NOT_FOUND


def test_a_python_model_has_no_default_environment_of_the_backend_directory():
    assert resolve_m({OWN, "/b1/python/pb_exec_env_model.py.tar.gz"}).environment is None


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("3.10", ["3.10.0", "3.10.13"], ["3.1.0", "3.11.7", "3.9.18"]),
        ("3", ["3.8.1", "3.14.0"], ["2.7.18"]),
        ("3.10.13", ["3.10.13"], ["3.10.12"]),
        (">=3.10,<3.12", ["3.10.0", "3.11.7"], ["3.12.1", "3.9.18"]),
    ],
)
def test_a_version_of_python_is_a_number_or_a_range(text, inside, outside):
    required = resolve_m({OWN}, parameters={"PYTHON_VERSION": text}).python
    assert required is not None
    assert [version for version in inside + outside if required.contains(version)] == inside


def test_a_version_of_python_that_is_none_is_refused():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"PYTHON_VERSION": "python3"})
    assert caught.value.message == (
        "parameter PYTHON_VERSION of model 'm': 'python3' is no version of Python: write a version as \"3.10\" or a "
        'range as ">=3.10,<3.12"'
    )


def test_the_models_version_of_python_wins_over_its_backends():
    files = {SHARED: "", MANIFEST: 'requires-python = ">=3.9"'}
    assert str(resolve_m(files, backend="x").python) == ">=3.9"
    assert resolve_m(files, backend="x").python_origin == MANIFEST
    own = resolve_m(files, backend="x", parameters={"PYTHON_VERSION": "3.12"})
    assert (str(own.python), own.python_origin) == ("==3.12.*", "parameter PYTHON_VERSION of model 'm'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("requires-python = ", f"{MANIFEST}: Invalid value"),
        ('python = "3.10"', f"{MANIFEST}: unknown key 'python'; there are: environment, requires-python"),
        ('requires-python = "three"', f"{MANIFEST}: requires-python: 'three' is no version of Python"),
        (b"\xff", f"{MANIFEST}: 'utf-8' codec can't decode"),
    ],
)
def test_a_broken_manifest_names_itself_and_what_is_wrong(text, message):
    with pytest.raises(ResolutionError) as caught:
        resolve_m({SHARED: "", MANIFEST: text}, backend="x")
    assert caught.value.message.startswith(message)
