"""Where environments come from and which Python is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from models.resolution.makers import resolve_m

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import Code, InterpreterNotFoundError, ResolutionError
from naiad.models.resolution.environment import misspelt_parameters
from naiad.models.resolution.preparation import prepare_environment

OWN, SHARED = "/repo/m/1/model.py", "/b1/x/model.py"
DEFAULT = "/b1/x/pb_exec_env_model.py.tar.gz"
MANIFEST = "/b1/x/backend.toml"


def test_a_model_without_the_parameter_has_no_environment():
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
            "names the execution environment 'e.tar.gz', but '/repo/m/e.tar.gz' does not exist; '/repo/m' has 1; a path may be",
        ),
        (
            "/$$TRITON_MODEL_DIRECTORY/e",
            "$$TRITON_MODEL_DIRECTORY must be the whole value or its beginning before a '/'",
        ),
        ("$$TRITON_MODEL_DIRECTORYe", "$$TRITON_MODEL_DIRECTORY must be the whole value or its beginning before a '/'"),
        ("env://x", "--env-directory is missing; name the directory that holds 'x' with --env-directory"),
        ("env://../x", "'../x' is not a name of an environment"),
        ("env://x@sha256:12", "'sha256:12' is not a digest; write @sha256: and 64 hexadecimal digits"),
        ("env://x@sha512:12", "'sha512:12' is not a digest; write @sha256: and 64 hexadecimal digits"),
    ],
)
def test_an_environment_that_is_not_there_is_an_error_with_the_rules(text, message):
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": text})
    assert caught.value.message.startswith("parameter EXECUTION_ENV_PATH of model 'm'")
    assert message in caught.value.message


def test_an_archive_of_the_conventional_name_is_the_default_of_a_shared_backend():
    found = resolve_m({SHARED, DEFAULT}, backend="x")
    assert (str(found.environment), found.environment_origin) == (DEFAULT, "default of backend 'x'")


def test_the_models_own_environment_wins_over_its_backends():
    files = {SHARED: "", DEFAULT: "", MANIFEST: 'environment = "e"', "/b1/x/e": "", "/own": ""}
    found = resolve_m(files, backend="x", parameters={"EXECUTION_ENV_PATH": "/own"})
    assert str(found.environment) == "/own"


def test_the_setting_of_a_shared_backend_wins_over_its_files_and_not_over_the_model():
    files = {SHARED: BLOCK, DEFAULT: "", MANIFEST: 'environment = "e"', "/b1/x/e": "", "/b1/x/pylock.cpu.toml": ""}
    settings = {"backend_configs": {"x": {"execution-env-path": "pylock.cpu.toml"}}}
    found = resolve_m({**files, "/own": ""}, backend="x", **settings)
    origin = "--backend-config=x,execution-env-path"
    assert (str(found.environment), found.environment_origin) == ("/b1/x/pylock.cpu.toml", origin)
    assert not found.has_default_environment
    own = resolve_m({**files, "/own": ""}, backend="x", parameters={"EXECUTION_ENV_PATH": "/own"}, **settings)
    assert str(own.environment) == "/own"


@pytest.mark.parametrize("backend", ["", "python"])
def test_a_setting_for_all_backends_names_no_environment_of_a_shared_one(backend: str):
    settings = {"backend_configs": {backend: {"execution-env-path": "/python"}}}
    found = resolve_m({SHARED: BLOCK, "/python": ""}, backend="x", **settings)
    assert str(found.environment) == SHARED


def test_a_setting_of_a_shared_backend_that_names_nothing_says_where_it_stands():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({SHARED: BLOCK}, backend="x", backend_configs={"x": {"execution-env-path": "pylock.gpu.toml"}})
    assert caught.value.message.startswith(
        "--backend-config=x,execution-env-path names the execution environment 'pylock.gpu.toml', but "
        "'/b1/x/pylock.gpu.toml' does not exist"
    )


def test_the_environment_of_the_manifest_wins_over_the_conventional_name():
    files = {SHARED: "", DEFAULT: "", MANIFEST: 'environment = "envs/e.tar.zst"', "/b1/x/envs/e.tar.zst": ""}
    found = resolve_m(files, backend="x")
    assert (str(found.environment), found.environment_origin) == ("/b1/x/envs/e.tar.zst", MANIFEST)


def test_an_environment_of_the_manifest_that_is_not_there_names_the_manifest():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({SHARED: "", MANIFEST: 'environment = "e"'}, backend="x")
    assert caught.value.message.startswith(f"{MANIFEST} names the execution environment 'e', but '/b1/x/e' does not")
    assert caught.value.code is Code.NOT_FOUND


BROUGHT = 'environment-files = ["python_env.yaml", "model/conda.yaml"]'


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"/repo/m/1/python_env.yaml": "", "/repo/m/1/model/conda.yaml": ""}, "/repo/m/1/python_env.yaml"),
        ({"/repo/m/1/model/conda.yaml": ""}, "/repo/m/1/model/conda.yaml"),
        ({"/repo/m/1/python_env.yaml": "", DEFAULT: ""}, DEFAULT),
    ],
)
def test_a_model_may_bring_the_file_that_declares_its_environment(files, path):
    found = resolve_m({SHARED: "", MANIFEST: BROUGHT, **files}, backend="x")
    assert str(found.environment) == path
    brought = f"model 'm' runs in the environment that it brings: {path}"
    assert found.notices == (() if path == DEFAULT else (brought,))


def test_a_model_of_mlflow_runs_in_the_environment_that_is_packed_beside_it():
    manifest = (Path(__file__).parents[3] / "backends" / "mlflow" / "backend.toml").read_text(encoding="utf-8")
    files = {SHARED: "", MANIFEST: manifest, "/repo/m/1/conda.yaml": ""}
    for packed in ("model/environment/bin/python", "model/environment.tar.gz", "environment/bin/python"):
        files[f"/repo/m/1/{packed}"] = ""
        assert str(resolve_m(files, backend="x").environment) == f"/repo/m/1/{packed.removesuffix('/bin/python')}"


def test_the_parameter_wins_over_a_file_that_the_model_brings():
    files = {SHARED: "", MANIFEST: BROUGHT, "/repo/m/1/python_env.yaml": "", "/own": ""}
    found = resolve_m(files, backend="x", parameters={"EXECUTION_ENV_PATH": "/own"})
    assert str(found.environment) == "/own"


def test_a_model_that_brings_no_environment_needs_the_operators():
    files = {SHARED: "", MANIFEST: BROUGHT, "/e": ""}
    with pytest.raises(ResolutionError) as caught:
        resolve_m(files, backend="x")
    assert caught.value.message == (
        "cannot choose the environment of model 'm': /repo/m/1 has no python_env.yaml or model/conda.yaml, by which "
        "models of backend 'x' declare their packages; write one of them, or name an environment by the parameter "
        "EXECUTION_ENV_PATH"
    )
    assert caught.value.code is Code.NOT_FOUND
    found = resolve_m(files, backend="x", backend_configs={"python": {"execution-env-path": "/e"}})
    assert str(found.environment) == "/e"


@pytest.mark.parametrize("names", ['"a.txt"', '["../a.txt"]', '["/a.txt"]', "[1]", '[""]'])
def test_files_that_a_model_brings_are_in_its_directory(names):
    with pytest.raises(ResolutionError, match=r"environment-files is .*; write a list of names of files in the dir"):
        resolve_m({SHARED: "", MANIFEST: f"environment-files = {names}"}, backend="x")


def test_a_python_model_has_no_default_environment_of_the_backend_directory():
    assert resolve_m({OWN, "/b1/python/pb_exec_env_model.py.tar.gz"}).environment is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("py39", "; did you mean 'env://py39'?; a path"),
        ("enviroment.tar.gz", "; did you mean '/repo/m/environment.tar.gz'?; a path"),
    ],
)
def test_the_error_about_an_environment_that_is_missing_says_what_may_have_been_meant(text, hint):
    files = {OWN, "/envs/py39.tar.zst", "/repo/m/environment.tar.gz"}
    with pytest.raises(ResolutionError) as caught:
        resolve_m(files, parameters={"EXECUTION_ENV_PATH": text}, environment_directories=(Path("/envs"),))
    assert hint in caught.value.message


ALL = {"backend_configs": {"python": {"execution-env-path": "/all.tar.gz"}}}


def test_a_setting_names_the_environment_of_all_models():
    found = resolve_m({OWN, "/all.tar.gz"}, **ALL)
    assert str(found.environment) == "/all.tar.gz"
    assert found.environment_origin == "--backend-config=python,execution-env-path"


@pytest.mark.parametrize(
    ("backend", "parameters", "environment"),
    [
        ("python", {"EXECUTION_ENV_PATH": "/own"}, "/own"),
        ("python", {"PYTHON_VERSION": "3.10"}, "None"),
        ("x", {}, DEFAULT),
    ],
)
def test_what_a_model_or_its_backend_chooses_wins_over_the_setting(backend, parameters, environment):
    files = {OWN, SHARED, DEFAULT, "/own", "/all.tar.gz"}
    assert str(resolve_m(files, backend=backend, parameters=parameters, **ALL).environment) == environment


def test_a_default_environment_that_a_model_does_not_use_is_named_with_the_reason():
    found = resolve_m({OWN, "/all.tar.gz"}, parameters={"PYTHON_VERSION": "3.10"}, **ALL)
    assert found.skipped_environment == (
        "model 'm' does not use the default environment '/all.tar.gz' of --backend-config=python,execution-env-path, "
        "because parameter PYTHON_VERSION of model 'm' asks for a version of Python"
    )
    assert found.notices == (found.skipped_environment,)
    assert resolve_m({OWN, "/all.tar.gz"}, **ALL).skipped_environment == ""
    assert resolve_m({OWN}, parameters={"PYTHON_VERSION": "3.10"}).notices == ()


class NothingInstalled:
    """Provides environments on a machine without any Python."""

    def prepare(self, _source, *, python=None, python_origin="", label=""):
        raise InterpreterNotFoundError(f"no Python {python} (required by {python_origin}) for {label}")


def test_the_error_about_a_missing_python_says_that_the_default_environment_is_not_used():
    found = resolve_m({OWN, "/all.tar.gz"}, parameters={"PYTHON_VERSION": "3.10"}, **ALL)
    with pytest.raises(InterpreterNotFoundError) as caught:
        prepare_environment(found, NothingInstalled(), "m")
    assert caught.value.message == (
        "no Python ==3.10.* (required by parameter PYTHON_VERSION of model 'm') for m. " + found.skipped_environment
    )
    with pytest.raises(InterpreterNotFoundError, match=r"for m$"):
        prepare_environment(resolve_m({OWN}, parameters={"PYTHON_VERSION": "3.10"}), NothingInstalled(), "m")


def test_a_setting_for_an_environment_that_is_missing_names_the_flag():
    with pytest.raises(ResolutionError, match="--backend-config=python,execution-env-path names the execution"):
        resolve_m({OWN}, **ALL)


def test_a_setting_names_the_python_of_models_without_an_environment():
    settings = {"backend_configs": {"": {"default-python": "3.9"}}}
    found = resolve_m({OWN}, **settings)
    assert (str(found.python), found.python_origin) == ("==3.9.*", "--backend-config=python,default-python")
    assert str(resolve_m({OWN}, parameters={"PYTHON_VERSION": "3.12"}, **settings).python) == "==3.12.*"
    assert resolve_m({OWN, "/own"}, parameters={"EXECUTION_ENV_PATH": "/own"}, **settings).python is None


CONDA = "/opt/conda/bin/python"
DEFAULT_PYTHON = "--backend-config=python,default-python"


@pytest.mark.parametrize(
    ("text", "path", "is_interpreter"),
    [
        (CONDA, CONDA, True),
        ("/opt/conda", "/opt/conda", False),
        ("/opt/conda/", "/opt/conda", False),
        ("/envs/python3.11", "/envs/python3.11", True),
        ("/envs/run-python.sh", "/envs/run-python.sh", True),
        ("/envs/e.tar.gz", "/envs/e.tar.gz", False),
        ("$$TRITON_MODEL_DIRECTORY/venv", "/repo/m/venv", False),
        ("venv/bin/python", "/repo/m/venv/bin/python", True),
        ("./venv", "/repo/m/venv", False),
    ],
)
def test_a_path_in_place_of_a_version_names_an_interpreter_or_an_environment(text, path, is_interpreter):
    files = {OWN, CONDA, "/envs/python3.11", "/envs/run-python.sh", "/envs/e.tar.gz", "/repo/m/venv/bin/python"}
    found = resolve_m(files, parameters={"PYTHON_VERSION": text})
    expected = EnvironmentSource(path=Path(path), is_interpreter=True) if is_interpreter else Path(path)
    assert (found.environment, found.environment_origin) == (expected, "parameter PYTHON_VERSION of model 'm'")
    assert found.python is None
    step = next(step for step in found.steps if step.subject == "python")
    assert step.reason == "that of the environment, which parameter PYTHON_VERSION of model 'm' names"


def test_the_interpreter_of_an_environment_may_be_named_as_the_environment():
    found = resolve_m({OWN, CONDA}, parameters={"EXECUTION_ENV_PATH": CONDA})
    assert found.environment == EnvironmentSource(path=Path(CONDA), is_interpreter=True)


def test_a_setting_names_the_interpreter_of_all_models_that_choose_none():
    settings = {"backend_configs": {"python": {"default-python": CONDA}}}
    files = {OWN: "", CONDA: "", "/own": ""}
    found = resolve_m(files, **settings)
    assert found.environment == EnvironmentSource(path=Path(CONDA), is_interpreter=True)
    assert (found.environment_origin, found.has_default_environment) == (DEFAULT_PYTHON, True)

    own = resolve_m(files, parameters={"EXECUTION_ENV_PATH": "/own"}, **settings)
    assert (str(own.environment), own.has_default_environment) == ("/own", False)
    other = resolve_m(files, parameters={"PYTHON_VERSION": "3.10"}, **settings)
    assert (other.environment, str(other.python)) == (None, "==3.10.*")
    assert f"does not use the default environment '{CONDA}' of {DEFAULT_PYTHON}" in other.skipped_environment
    declared = {**files, OWN: BLOCK}
    assert str(resolve_m(declared, **settings).environment) == OWN


def test_a_models_interpreter_wins_over_what_its_backend_and_its_code_name():
    files = {SHARED: BLOCK, MANIFEST: 'environment = "e"\nrequires-python = ">=3.9"', "/b1/x/e": "", CONDA: ""}
    found = resolve_m(files, backend="x", parameters={"PYTHON_VERSION": CONDA})
    assert (str(found.environment), str(found.python)) == (CONDA, ">=3.9")
    step = next(step for step in found.steps if step.subject == "environment")
    assert step.reason == f"parameter PYTHON_VERSION of model 'm'; it wins over the script block of {SHARED}"


def test_two_environments_of_one_model_or_for_all_models_are_refused():
    files = {OWN, CONDA, "/own", "/all.tar.gz"}
    with pytest.raises(ResolutionError) as caught:
        resolve_m(files, parameters={"EXECUTION_ENV_PATH": "/own", "PYTHON_VERSION": CONDA})
    assert caught.value.message == (
        f"cannot choose the environment of model 'm': its parameter EXECUTION_ENV_PATH names '/own', and PYTHON_VERSION "
        f"names '{CONDA}'; keep one of them, or give PYTHON_VERSION a version"
    )
    both = {"backend_configs": {"": {"execution-env-path": "/all.tar.gz", "default-python": CONDA}}}
    with pytest.raises(ResolutionError) as caught:
        resolve_m(files, **both)
    assert caught.value.message == (
        "cannot choose the environment of models: --backend-config=python,execution-env-path names '/all.tar.gz', and "
        f"{DEFAULT_PYTHON} names '{CONDA}'; keep one of them, or give default-python a version"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/opt/conda/bin/pyton", "; did you mean '/opt/conda/bin/python'?; a path may be"),
        ("/opt/conda/bin/torch", "; '/opt/conda/bin' has pip, python; a path may be"),
        ("/opt/miniconda/bin/python", "; '/opt' exists, and has no 'miniconda'; a path may be"),
        ("~/conda/bin/python", "; '~' is not expanded; write the whole path; a path may be"),
    ],
)
def test_the_error_of_a_missing_interpreter_says_what_is_there(text, message):
    files = {OWN, CONDA, "/opt/conda/bin/pip"}
    for options in (
        {"parameters": {"PYTHON_VERSION": text}},
        {"backend_configs": {"": {"default-python": text}}},
    ):
        with pytest.raises(ResolutionError) as caught:
            resolve_m(files, **options)
        assert f"names the execution environment '{text}', but '" in caught.value.message
        assert message in caught.value.message


def test_the_backend_toml_of_python_has_defaults_for_all_models():
    manifest = "/b2/python/backend.toml"
    files = {OWN: "", manifest: 'environment = "e"\nrequires-python = "3.9"', "/b2/python/e": "", "/all.tar.gz": ""}
    found = resolve_m(files)
    assert (str(found.environment), found.environment_origin) == ("/b2/python/e", manifest)
    assert (str(found.python), found.python_origin) == ("==3.9.*", manifest)
    assert str(resolve_m(files, **ALL).environment) == "/all.tar.gz"


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


def test_an_invalid_version_of_python_is_refused():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"PYTHON_VERSION": "python3"})
    assert caught.value.message == (
        "parameter PYTHON_VERSION of model 'm': 'python3' is not a version of Python: write a version as \"3.10\" or a "
        'range as ">=3.10,<3.12", or the path of an interpreter or environment, as "/opt/conda"'
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
        ("requires-python = ", f"{MANIFEST}: invalid value at line 1"),
        (
            'python = "3.10"',
            f"{MANIFEST}: unknown key 'python'; there are: environment, environment-files, requires-python",
        ),
        ('requires-python = "three"', f"{MANIFEST}: requires-python: 'three' is not a version of Python"),
        (b"\xff", f"{MANIFEST}: 'utf-8' codec can't decode"),
    ],
)
def test_a_broken_manifest_names_itself_and_what_is_wrong(text, message):
    with pytest.raises(ResolutionError) as caught:
        resolve_m({SHARED: "", MANIFEST: text}, backend="x")
    assert caught.value.message.startswith(message)


DIGEST = "0123456789abcdef" * 4
SHELVES = (Path("/envs1"), Path("/envs2"))


@pytest.mark.parametrize(
    ("text", "there", "found"),
    [
        ("env://x", {"/envs1/x"}, Path("/envs1/x")),
        ("env://x", {"/envs1/x.tar.gz"}, Path("/envs1/x.tar.gz")),
        ("env://x", {"/envs2/x.tar.zst", "/envs2/x.zip"}, Path("/envs2/x.tar.zst")),
        ("env://x", {"/envs1/x.zip", "/envs2/x"}, Path("/envs1/x.zip")),
        ("env://team/x-1.2", {"/envs2/team/x-1.2.tar"}, Path("/envs2/team/x-1.2.tar")),
        ("env://x.tar.gz", {"/envs2/x.tar.gz"}, Path("/envs2/x.tar.gz")),
        (f"env://x@sha256:{DIGEST}", {"/envs2/x.tgz"}, EnvironmentSource(path=Path("/envs2/x.tgz"), digest=DIGEST)),
        (
            f"e.tgz@sha256:{DIGEST.upper()}",
            {"/repo/m/e.tgz"},
            EnvironmentSource(path=Path("/repo/m/e.tgz"), digest=DIGEST),
        ),
        ("file:///some%20where/e.tgz", {"/some where/e.tgz"}, Path("/some where/e.tgz")),
        ("file:///some/folder", {"/some/folder"}, Path("/some/folder")),
        ("FILE://localhost/some/folder/", {"/some/folder"}, Path("/some/folder")),
        ("s3://bucket/e.tgz", set(), EnvironmentSource(uri="s3://bucket/e.tgz")),
        (f"https://h/e.tgz@sha256:{DIGEST}", set(), EnvironmentSource(uri="https://h/e.tgz", digest=DIGEST)),
        ("$$NAIAD_VERSION_DIRECTORY/e.tgz", {"/repo/m/1/e.tgz"}, Path("/repo/m/1/e.tgz")),
    ],
)
def test_an_environment_is_found_by_name_digest_or_uri(text, there, found):
    parameters = {"EXECUTION_ENV_PATH": text}
    assert resolve_m({OWN, *there}, parameters=parameters, environment_directories=SHELVES).environment == found


def test_a_file_of_another_host_is_refused():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN, "/e"}, parameters={"EXECUTION_ENV_PATH": "file://far/e"})
    expected = (
        "'file://far/e' is on the host 'far', and file:// names what is on this one; write file:///e if that is meant"
    )
    assert expected in caught.value.message


def test_every_place_that_was_searched_for_a_name_is_listed():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": "env://x"}, environment_directories=SHELVES)
    assert (
        "which no environment directory holds; looked at: /envs1/x (not found), /envs1/x.tar.zst"
        in caught.value.message
    )
    assert "/envs2/x.zip (not found); put it there" in caught.value.message


@pytest.mark.parametrize("text", ["env://x", f"https://h/e.tgz@sha256:{DIGEST}"])
def test_a_backend_names_environments_of_all_kinds_too(text):
    files = {SHARED: "", MANIFEST: f'environment = "{text}"', "/envs1/x": ""}
    found = resolve_m(files, backend="x", environment_directories=SHELVES)
    assert found.environment in (Path("/envs1/x"), EnvironmentSource(uri="https://h/e.tgz", digest=DIGEST))


def test_the_environment_of_a_version_wins_over_that_of_the_model():
    parameters = {"EXECUTION_ENV_PATH": "/a", "EXECUTION_ENV_PATH.1": "/b", "EXECUTION_ENV_PATH.2": "/nowhere"}
    found = resolve_m({OWN, "/a", "/b"}, parameters=parameters)
    assert (found.environment, found.environment_origin) == (Path("/b"), "parameter EXECUTION_ENV_PATH.1 of model 'm'")


@pytest.mark.parametrize(
    ("uri", "text", "found"),
    [
        ("s3://bucket/repo/m", "$$TRITON_MODEL_DIRECTORY/../shared.tgz", "s3://bucket/repo/shared.tgz"),
        ("s3://bucket/repo/m", "../../envs/e.tgz", "s3://bucket/envs/e.tgz"),
        ("gs://bucket/m", f"$$TRITON_MODEL_DIRECTORY/../e.tgz@sha256:{DIGEST}", "gs://bucket/e.tgz"),
    ],
)
def test_files_beside_a_copied_model_are_found_where_the_model_was_copied_from(uri, text, found):
    source = resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": text}, model_uri=uri).environment
    assert isinstance(source, EnvironmentSource)
    assert (source.uri, source.is_mutable) == (found, True)


@pytest.mark.parametrize(
    ("uri", "text"),
    [("", "../e.tgz"), ("s3://bucket/m", "e.tgz"), ("s3://bucket/m", "../../e.tgz"), ("s3://b/x/y/m", "/e")],
)
def test_other_files_of_a_copied_model_are_not_looked_for_elsewhere(uri, text):
    with pytest.raises(ResolutionError, match=r"does not exist; .*; a path may be absolute"):
        resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": text}, model_uri=uri)


@pytest.mark.parametrize("text", ["3.7", "2.7", "3.99", ">=3.5,<3.8", "<3.8", ">3.20"])
def test_a_python_that_no_stub_supports_is_refused_with_the_supported_ones(text):
    """Before any Python is looked for: there may be one of that version, without numpy, which is none of its faults."""
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"PYTHON_VERSION": text})
    found = caught.value.message
    assert found.startswith("models run under Python <3.15,>=3.8 here, which is what the stub '/guest/artifacts/")
    assert "supports, but parameter PYTHON_VERSION of model 'm' asks for Python " in found
    assert found.endswith("; ask for a version that is supported, or give model 'm' a stub of its own")


@pytest.mark.parametrize("text", ["3.8", "3.14", ">=3.7", "<=3.8", "3.10.13", "~=3.11", ">3.13", "!=3.12"])
def test_a_python_that_a_stub_supports_is_chosen(text):
    assert resolve_m({OWN}, parameters={"PYTHON_VERSION": text}).python is not None


BLOCK = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["scikit-learn", "numpy"]\n# ///\n'


def environment_step(found):
    return next(step for step in found.steps if step.subject == "environment")


@pytest.mark.parametrize(
    ("files", "settings", "path"),
    [
        ({OWN: BLOCK}, {}, OWN),
        ({SHARED: BLOCK}, {"backend": "x"}, SHARED),
        ({OWN: BLOCK, "/e": ""}, {"backend_configs": {"python": {"execution-env-path": "/e"}}}, OWN),
    ],
)
def test_the_script_block_of_the_code_is_the_models_environment(files, settings, path):
    found = resolve_m(files, **settings)

    assert (str(found.environment), found.environment_origin) == (path, f"the script block of {path}")
    assert (str(found.python), found.python_origin) == (">=3.11", f"the script block of {path}")
    step = environment_step(found)
    assert "it requires scikit-learn, numpy" in step.reason
    assert [(look.path.name, look.found) for look in step.searched] == [
        ("model.py.lock", False),
        ("pylock.toml", False),
    ]


@pytest.mark.parametrize(
    ("files", "settings", "path"),
    [
        ({OWN: BLOCK, "/repo/m/e.tar": ""}, {"parameters": {"EXECUTION_ENV_PATH": "e.tar"}}, "/repo/m/e.tar"),
        ({SHARED: BLOCK, MANIFEST: 'environment = "e.tar"', "/b1/x/e.tar": ""}, {"backend": "x"}, "/b1/x/e.tar"),
        ({SHARED: BLOCK, DEFAULT: ""}, {"backend": "x"}, DEFAULT),
    ],
)
def test_what_names_an_environment_wins_over_the_block_and_says_so(files, settings, path):
    found = resolve_m(files, **settings)

    (code,) = (name for name in files if name.endswith("model.py"))
    assert str(found.environment) == path
    assert environment_step(found).reason.endswith(f"; it wins over the script block of {code}")
    assert found.python is None


def test_the_models_version_of_python_wins_over_that_of_the_block():
    found = resolve_m({OWN: BLOCK}, parameters={"PYTHON_VERSION": "3.12"})

    assert (str(found.environment), str(found.python)) == (OWN, "==3.12.*")


def test_a_block_without_dependencies_asks_for_a_version_only():
    found = resolve_m({OWN: '# /// script\n# requires-python = "==3.12.*"\n# dependencies = []\n# ///\n'})

    assert (found.environment, str(found.python)) == (None, "==3.12.*")


def test_an_invalid_block_is_an_error_of_the_model():
    with pytest.raises(ResolutionError, match=r"the script block of /repo/m/1/model\.py is not valid TOML"):
        resolve_m({OWN: "# /// script\n# dependencies = [\n# ///\n"})


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "pylock.toml"])
def test_a_file_of_requirements_can_be_named(name):
    found = resolve_m({OWN: "", f"/repo/m/{name}": ""}, parameters={"EXECUTION_ENV_PATH": name})
    assert str(found.environment) == f"/repo/m/{name}"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("~/e.tar", "; '~' is not expanded; write the whole path;"),
        ("$$TRITON_MODEL_DIR/e.tar", "; did you mean $$TRITON_MODEL_DIRECTORY?;"),
        ("e.tar@md5:12", "'md5:12' is not a digest; write @sha256: and 64 hexadecimal digits"),
    ],
)
def test_common_mistakes_in_a_path_get_a_hint(text, hint):
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": text})
    assert hint in caught.value.message


def test_a_keyword_that_is_right_gets_no_hint():
    with pytest.raises(ResolutionError) as caught:
        resolve_m({OWN}, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/e.tar"})
    assert "did you mean" not in caught.value.message


def test_misspelt_parameters_of_an_environment_are_reported():
    config = ModelConfig(
        name="m",
        backend="python",
        parameters={
            "EXECUTION_ENV_PTH": "e",
            "execution_env_path": "e",
            "PYTHON_VERSIONS": "3.12",
            "EXECUTION_ENV_PATH.2": "e",
            "PATH": "e",
        },
    )

    told = misspelt_parameters(config)

    assert [text.partition("'")[2].partition("'")[0] for text in told] == [
        "EXECUTION_ENV_PTH",
        "execution_env_path",
        "PYTHON_VERSIONS",
    ]
    assert told[0] == (
        "parameter 'EXECUTION_ENV_PTH' of model 'm' does not name its environment or Python; did you mean "
        "EXECUTION_ENV_PATH?"
    )
