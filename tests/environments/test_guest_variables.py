"""The variables a guest starts with: what reaches it, what does not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from naiad.environments.ready_environment import ReadyEnvironment, activated_environment, withheld_variables

FOREIGN = ReadyEnvironment(
    source=Path("/srv/env"),
    prefix=Path("/srv/env"),
    python=Path("/srv/env/bin/python"),
    version=(3, 9, 18),
    cache_tag="cpython-39",
    abi="cpython-39-x86_64-linux-gnu",
    numpy_version="2.0.2",
)
HOST = replace(FOREIGN, source=None, is_host=True)


def test_folders_of_pythonpath_reach_guests_of_the_servers_own_interpreter_alone():
    assert HOST.environ({"PYTHONPATH": "/srv/modules"})["PYTHONPATH"] == "/srv/modules"
    assert "PYTHONPATH" not in HOST.environ({"PYTHONPATH": ""})
    assert "PYTHONPATH" not in FOREIGN.environ({"PYTHONPATH": "/srv/modules"})


def test_pythonpath_does_not_reach_the_guests_of_an_isolated_server_such_as_a_bundle():
    code = """
from pathlib import Path
from naiad.environments.ready_environment import ReadyEnvironment, withheld_variables
from naiad.sources.interpreters.distributions import imports_from_working_directory, server_search_path
base = {"PYTHONPATH": "/srv/modules"}
host = ReadyEnvironment(
    source=None, prefix=Path("/"), python=Path("/bin/python"), version=(3, 9, 18), cache_tag="", abi="",
    numpy_version="2.0.2", is_host=True,
)
print("PYTHONPATH" in host.environ(base), imports_from_working_directory(), server_search_path(base))
print(*withheld_variables(base))
"""

    said = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert said.stdout.splitlines() == [
        "False False []",
        (
            "PYTHONPATH=/srv/modules reaches no model, as this server's interpreter ignores it (a bundle's always does): put "
            "modules beside model.py, or install them in the environment of the model"
        ),
    ]


@pytest.mark.parametrize("environment", [FOREIGN, HOST])
@pytest.mark.parametrize(
    "name",
    ["PYTHONHOME", "LD_PRELOAD", "PYTHONSTARTUP", "PYTHONINSPECT", "CONDA_PREFIX", "PYENV_VERSION"],
)
def test_variables_of_the_hosts_python_do_not_reach_a_guest(environment, name):
    assert name not in environment.environ({name: "/host"})


def test_variables_withheld_from_models_are_logged_with_what_to_do_instead():
    path, library = withheld_variables(
        {"PYTHONPATH": "/srv/modules", "LD_PRELOAD": "/lib/libjemalloc.so", "HOME": "/home/me"}
    )

    assert path == (
        "PYTHONPATH=/srv/modules reaches only models that run under the server's own interpreter: for models with an "
        "environment of their own, put modules beside model.py, install them in that environment, or name their folder "
        "in a .pth file there"
    )
    assert library == (
        "LD_PRELOAD=/lib/libjemalloc.so does not reach models: a model may load libraries itself, with "
        "ctypes.CDLL(PATH, ctypes.RTLD_GLOBAL)"
    )
    assert list(withheld_variables({"PYTHONPATH": "", "HOME": "/home/me", "PYTHONHASHSEED": "0"})) == []


def test_an_activated_environment_that_a_model_does_not_run_in_is_warned_of(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    activated = activated_environment({"VIRTUAL_ENV": str(tmp_path), "CONDA_PREFIX": str(tmp_path)})

    assert activated is not None
    assert activated.warning_about("m", Path(sys.executable)) == (
        f"VIRTUAL_ENV={tmp_path} is activated and does not reach model 'm', which runs with {sys.executable}: pass "
        f"--backend-config=python,execution-env-path={tmp_path} to run all models in it, or name it as "
        "EXECUTION_ENV_PATH of a model"
    )
    assert activated.warning_about("m", tmp_path / "link" / "bin" / "python3.11") == ""
    assert activated_environment({"VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": sys.base_prefix}) is None
    assert activated_environment({"VIRTUAL_ENV": "", "CONDA_PREFIX": str(tmp_path / "removed")}) is None


def test_variables_of_no_python_reach_a_guest():
    base = {
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "3",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
    }

    assert base.items() <= FOREIGN.environ(base).items()


def test_programs_of_the_environment_come_first():
    assert FOREIGN.environ({"PATH": "/usr/bin:/bin"})["PATH"] == "/srv/env/bin:/usr/bin:/bin"
    assert FOREIGN.environ({})["PATH"].startswith("/srv/env/bin:")


def test_packages_in_a_users_home_are_excluded_unless_the_host_needs_them():
    assert FOREIGN.environ({})["PYTHONNOUSERSITE"] == "1"
    assert "PYTHONNOUSERSITE" not in replace(HOST, user_site=True).environ({"PYTHONNOUSERSITE": ""})


def test_output_is_not_buffered():
    assert FOREIGN.environ({})["PYTHONUNBUFFERED"] == "1"


def test_bytecode_is_never_written_beside_a_model():
    assert FOREIGN.environ({})["PYTHONDONTWRITEBYTECODE"] == "1"

    aside = replace(FOREIGN, bytecode=Path("/store/bytecode")).environ({"PYTHONDONTWRITEBYTECODE": "1"})

    assert aside["PYTHONPYCACHEPREFIX"] == "/store/bytecode"
    assert "PYTHONDONTWRITEBYTECODE" not in aside


def test_an_environment_is_activated_and_the_hosts_is_not(tmp_path):
    assert FOREIGN.environ({"VIRTUAL_ENV": "/host", "CONDA_PREFIX": "/host"})["VIRTUAL_ENV"] == "/srv/env"

    (tmp_path / "conda-meta").mkdir()
    conda = replace(FOREIGN, prefix=tmp_path).environ({"CONDA_SHLVL": "3"})

    assert conda["CONDA_PREFIX"] == str(tmp_path)
    assert conda["CONDA_SHLVL"] == "1"


def test_libraries_of_the_hosts_python_are_left_out_and_others_kept(tmp_path):
    (tmp_path / "libpython3.11.so.1.0").touch()
    inherited = f"{tmp_path}:/usr/local/cuda/lib64:{sys.prefix}/lib:"

    assert FOREIGN.environ({"LD_LIBRARY_PATH": inherited})["LD_LIBRARY_PATH"] == "/usr/local/cuda/lib64"
    assert HOST.environ({"LD_LIBRARY_PATH": inherited})["LD_LIBRARY_PATH"] == inherited
    assert "LD_LIBRARY_PATH" not in FOREIGN.environ({"LD_LIBRARY_PATH": str(tmp_path)})


def test_the_servers_own_variables_are_not_changed():
    base = {"PYTHONPATH": "/x", "PATH": "/bin"}

    FOREIGN.environ(base)

    assert base == {"PYTHONPATH": "/x", "PATH": "/bin"}


def test_an_environment_is_described_in_a_line():
    assert str(FOREIGN) == "/srv/env (Python 3.9.18, numpy 2.0.2)"
    assert str(HOST) == "the host's interpreter (Python 3.9.18, numpy 2.0.2)"
