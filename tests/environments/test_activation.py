"""Activation of conda environments: what their scripts do to variables, found once and kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from environments import makers
from support.waiting import until

from naiad.core import blocking
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments import activation_scripts
from naiad.environments.activation import NOT_ACTIVATED, Activation, Activations, activate
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy


def conda_environment(folder: Path, **scripts: str) -> Path:
    """A folder with activation scripts, by their names without the ending."""
    hooks = folder / "etc" / "conda" / "activate.d"
    hooks.mkdir(parents=True)
    for name, text in scripts.items():
        (hooks / f"{name}.sh").write_text(text + "\n")
    return folder


def run(folder: Path, **scripts: str) -> Activation:
    return again(conda_environment(folder / "env", **scripts))


def again(prefix: Path, **environ: str) -> Activation:
    """The activation of an environment for guests that have certain variables."""
    return activate(prefix, prefix.parent / "record.json", {"PATH": "/usr/bin", **environ}, "the environment")


def applied(found: Activation, **environ: str) -> dict[str, str]:
    result = {"PATH": "/usr/bin", **environ}
    found.apply(result)
    return result


def running(*arguments: str) -> list[str]:
    """The processes with these last arguments."""
    return [
        str(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and any((process.info["cmdline"] or [])[-1:] == [argument] for argument in arguments)
    ]


def test_scripts_run_in_the_order_of_their_names_and_see_the_environments_folder(tmp_path):
    found = run(
        tmp_path,
        b="export GDAL_DATA=$CONDA_PREFIX/share/gdal ORDER=${ORDER}b; later=1",
        a="export ORDER=a; gdal_version=3",
        c='export ORDER="${ORDER}c" GDAL_VERSION=$gdal_version LATER=$later',
    )

    assert applied(found) == {
        "PATH": "/usr/bin",
        "GDAL_DATA": f"{tmp_path}/env/share/gdal",
        "ORDER": "abc",
        "GDAL_VERSION": "3",
        "LATER": "1",
    }
    assert found.problems == ()
    assert str(found) == "3 scripts of etc/conda/activate.d: GDAL_DATA, GDAL_VERSION, LATER, ORDER"


def test_values_that_scripts_extend_or_keep_are_the_servers_when_a_guest_starts(tmp_path):
    prefix = conda_environment(
        tmp_path / "env",
        a="""
            export LD_LIBRARY_PATH=/own${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
            export SSL_CERT_FILE=${SSL_CERT_FILE:-/own.pem}
            export PROJ_DATA=/own/proj
            export PATH=/own/bin:$PATH:/own/games
            unset LANG
        """,
    )
    server = {
        "LD_LIBRARY_PATH": "/cuda",
        "SSL_CERT_FILE": "/mine.pem",
        "PROJ_DATA": "/mine",
        "LANG": "C",
        "HOME": "/h",
    }

    assert applied(again(prefix, **server), **server) == {
        "LD_LIBRARY_PATH": "/own:/cuda",
        "SSL_CERT_FILE": "/mine.pem",
        "PROJ_DATA": "/own/proj",
        "PATH": "/own/bin:/usr/bin:/own/games",
        "HOME": "/h",
    }
    assert applied(again(prefix))["LD_LIBRARY_PATH"] == "/own"
    assert applied(again(prefix))["SSL_CERT_FILE"] == "/own.pem"


def test_variables_of_packages_come_before_those_of_the_environment_and_scripts_last(tmp_path):
    prefix = conda_environment(tmp_path / "env", a="export C=$A-$B-${D-none}")
    (prefix / "etc/conda/env_vars.d").mkdir()
    (prefix / "etc/conda/env_vars.d/one.json").write_text('{"A": "package", "B": "package", "C": "package", "D": "x"}')
    (prefix / "conda-meta").mkdir()
    (prefix / "conda-meta/state").write_text('{"env_vars": {"B": "own", "D": "***unset***"}}')

    found = again(prefix, D="the server's")

    assert applied(found, D="the server's") == {"PATH": "/usr/bin", "A": "package", "B": "own", "C": "package-own-none"}


@pytest.mark.parametrize("place", ["conda-meta/state", "etc/conda/env_vars.d/one.json"])
@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ("[" * 300_000, "malformed JSON: it is nested too deeply"),
        ("7", "malformed JSON: it is not an object"),
        ("{", "malformed JSON: Expecting property name"),
        ('{"A": ' + "1" * 5000 + "}", "malformed JSON: a number has thousands of digits"),
        ('{"D=E": "x"}', "cannot use the variable 'D=E' in "),
        ('{"": "x"}', "cannot use the variable '' in "),
        ('{"A\\u0000": "x"}', r"cannot use the variable 'A\x00' in "),
        ('{"A": "x\\u0000"}', "cannot use the variable 'A' in "),
        ('{"A": "\\ud800"}', "cannot use the variable 'A' in "),
    ],
)
def test_variables_that_no_process_can_have_are_refused_with_their_file(tmp_path, place, variables, why):
    file = conda_environment(tmp_path / "env") / place
    file.parent.mkdir(parents=True, exist_ok=True)
    is_state = place.endswith("state") and variables.startswith('{"')
    file.write_text(f'{{"env_vars": {variables}}}' if is_state else variables)

    with pytest.raises(ExecutionEnvironmentError) as raised:
        again(tmp_path / "env")

    assert why in raised.value.message
    assert str(file) in raised.value.message


def test_shell_options_of_one_script_or_of_the_server_do_not_break_the_next(tmp_path):
    prefix = conda_environment(
        tmp_path / "env",
        a="set -euo pipefail  # not for BASH_ENV, SHELL, SHELLOPTS",
        b="export A=${UNKNOWN}x$UNKNOWN; false",
        c="export B=1 C='x\ny'",
    )
    found = again(prefix, BASH_ENV=str(tmp_path / "missing"), SHELL="/bin/false", SHELLOPTS="noexec")

    assert applied(found) == {"PATH": "/usr/bin", "A": "x", "B": "1", "C": "x\ny"}
    assert found.problems == ()  # `false` at the end of a script, without output, is no failure


def test_a_script_that_fails_is_a_warning_with_its_output_and_the_others_count(tmp_path):
    found = run(
        tmp_path,
        a="export A=1",
        b="echo starting; echo no such license >&2; return 3",
        c="export C=1; echo bye >&2; exit 4",
        d="export D=1 PATH=/nowhere",
        e="export E=1",
    )

    assert {"A", "D", "E"} <= applied(found).keys()
    assert "C" not in applied(found)
    failed, ended = found.problems
    assert failed == (
        "the activation script etc/conda/activate.d/b.sh failed, exit status 3: starting | no such license; models may "
        "lack variables that it sets: correct the script, or the package that it is from, in the environment"
    )
    assert "activate.d/c.sh failed, it ended the shell with status 4: bye; " in ended


def test_a_script_that_hangs_ends_at_the_limit_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(activation_scripts, "TIME_LIMIT", 0.5)

    found = run(tmp_path, a="export A=1", b="setsid sleep 4321 & sleep 4322", c="export C=1")

    assert applied(found) == {"PATH": "/usr/bin", "A": "1"}
    assert found.problems[0].startswith(
        "the activation script etc/conda/activate.d/b.sh failed, it did not end within 0.5 s, the limit for all scripts"
    )
    assert len(found.problems) == 1
    assert running("4321", "4322") == []


def test_scripts_run_once_until_they_change(tmp_path):
    first = run(tmp_path, a=f"echo ran >> {tmp_path}/log; export A=1")

    assert again(tmp_path / "env") == first
    assert runs(tmp_path) == 1

    (tmp_path / "env/etc/conda/activate.d/b.sh").write_text("export B=2")
    assert applied(again(tmp_path / "env")) == {"PATH": "/usr/bin", "A": "1", "B": "2"}
    assert runs(tmp_path) == 2


def test_scripts_run_again_for_another_value_of_a_variable_that_they_name(tmp_path):
    """A result that has a value of one server's shell must not reach another server."""
    prefix = conda_environment(tmp_path / "env", a=f"echo ran >> {tmp_path}/log; export A=own:$A B=$B")

    assert applied(again(prefix, A="mine", OTHER="1"))["A"] == "own:mine"
    assert applied(again(prefix, A="mine", OTHER="2"))["B"] == ""
    assert runs(tmp_path) == 1
    assert applied(again(prefix, A="yours"))["A"] == "own:yours"
    assert runs(tmp_path) == 2
    again(prefix, A="yours", B="1")
    assert runs(tmp_path) == 3
    assert "yours" not in json.loads((tmp_path / "record.json").read_text())["key"]


def test_a_record_moves_with_its_environment(tmp_path):
    run(tmp_path, a="export HERE=$CONDA_PREFIX/x")
    (tmp_path / "env").rename(tmp_path / "moved")

    found = again(tmp_path / "moved")

    assert applied(found)["HERE"] == f"{tmp_path}/moved/x"


def test_no_shell_is_started_and_nothing_written_for_an_environment_without_scripts(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(activation_scripts, "start_kept", fail)
    (tmp_path / "env/etc/conda/activate.d").mkdir(parents=True)
    (tmp_path / "env/etc/conda/activate.d/readme.txt").touch()

    assert again(tmp_path / "env") is NOT_ACTIVATED
    assert not (tmp_path / "record.json").exists()


def test_a_machine_without_a_shell_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(activation_scripts.shutil, "which", lambda *_, **__: None)

    assert run(tmp_path, a="export A=1").problems == (
        "the scripts in etc/conda/activate.d were not run: this machine has no bash and no sh; install one of them",
    )


@pytest.fixture
def packed(tmp_path, minor):
    """An archive with an activation script that counts its runs."""
    prefix = makers.make_environment(tmp_path / "made", minor, conda=True)
    conda_environment(prefix, gdal=f"echo ran >> {tmp_path}/log; export GDAL_DATA=$CONDA_PREFIX/share/gdal")
    return makers.pack_plainly(prefix, tmp_path / "packed.tar")


def runs(folder: Path) -> int:
    return (folder / "log").read_text().count("ran")


@pytest.mark.server
def test_variables_that_guests_do_not_inherit_reach_no_script(tmp_path, minor, monkeypatch):
    prefix = makers.make_environment(tmp_path / "made", minor, conda=True)
    conda_environment(prefix, a="export A=own:$A B=own:$B")
    monkeypatch.setenv("A", "secret")
    monkeypatch.setenv("B", "mine")

    policy = StorePolicy(guest_variables=("B",))
    environ = EnvironmentManager(tmp_path / "store", policy=policy).prepare(prefix).environ({"PATH": "/usr/bin"})

    assert (environ["A"], environ["B"]) == ("own:", "own:mine")


@pytest.mark.server
def test_an_entry_of_an_older_naiad_is_activated_when_it_is_next_used(tmp_path, packed):
    ready = EnvironmentManager(tmp_path / "store").prepare(packed)
    entry = tmp_path / "store" / str(ready.digest)
    (entry / "activation.json").unlink()

    for _ in range(2):
        again = EnvironmentManager(tmp_path / "store").prepare(packed)
        assert again.environ({"PATH": "/usr/bin"})["GDAL_DATA"] == f"{entry}/env/share/gdal"
    assert runs(tmp_path) == 2
    assert (entry / "activation.json").exists()


def test_models_that_share_an_environment_run_its_scripts_once_where_nothing_can_be_kept(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "naiad.environments")
    prefix = conda_environment(tmp_path / "env", a=f"echo ran >> {tmp_path}/log; echo oops >&2; return 2")
    (tmp_path / "store").touch()  # no folder can be created there
    activations = Activations(tmp_path / "store")

    found = [activations.find(prefix, {}, "the environment") for _ in range(3)]

    assert found[0] is found[1] is found[2]
    assert runs(tmp_path) == 1
    assert [record.message.partition(" failed")[0] for record in caplog.records] == [
        "the environment: the activation script etc/conda/activate.d/a.sh"
    ]


def test_processes_that_scripts_leave_are_ended(tmp_path):
    """In a group, a session, a child of a process that has ended, or without the variables that scripts have."""
    found = run(
        tmp_path,
        a="sleep 4323 & setsid sleep 4324 & (setsid sh -c 'sleep 4325; true' &) ; export A=1",
        b="env -i setsid -f sleep 4326",
        c="export C=1",
    )

    assert applied(found) == {"PATH": "/usr/bin", "A": "1", "C": "1"}
    assert found.problems == ()
    until(lambda: running("4323", "4324", "4325", "sleep 4325; true", "4326") == [], "the processes to end")


def test_a_cancelled_activation_ends_what_its_scripts_have_started(tmp_path):
    prefix = conda_environment(tmp_path / "env", a=f"setsid sleep 4327 & echo > {tmp_path}/begun; sleep 4328")

    async def cancel() -> None:
        task = asyncio.create_task(blocking.run(again, prefix))
        await asyncio.to_thread(until, (tmp_path / "begun").exists, "the script to begin", 60)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    until(lambda: running("4327", "4328") == [], "the processes to end", 60)


def test_a_server_that_is_killed_leaves_nothing_of_its_scripts(tmp_path):
    prefix = conda_environment(tmp_path / "env", a=f"setsid sleep 4329 & echo > {tmp_path}/begun; sleep 4330")
    code = f"from naiad.environments.activation_scripts import *; from pathlib import Path; run_scripts(activation_scripts(Path({str(prefix)!r})), {{}})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        until((tmp_path / "begun").exists, "the script to begin", 60)
        process.kill()
    until(lambda: running("4329", "4330") == [], "the processes to end", 60)


def test_a_script_that_kills_its_group_ends_only_its_shell(tmp_path):
    found = run(tmp_path, a="export A=1", b="kill -9 0", c="export C=1")

    assert applied(found) == {"PATH": "/usr/bin", "A": "1", "C": "1"}
    assert "b.sh failed, it ended the shell with status 137, with no output; " in found.problems[0]


def test_of_what_scripts_print_the_end_is_kept(tmp_path):
    found = run(
        tmp_path, a="yes many words | head -c 1000000; echo; export A=1; echo the end; (exit 3)", b="export B=1"
    )

    assert applied(found) == {"PATH": "/usr/bin", "A": "1", "B": "1"}
    assert "a.sh failed, exit status 3: many words | many words | " in found.problems[0]
    assert "| the end; models may" in found.problems[0]


@pytest.mark.parametrize("name", ["conda-meta/state", "etc/conda/env_vars.d/more.json"])
def test_a_pipe_in_place_of_a_file_of_variables_is_refused_or_left_out(tmp_path, name):
    """A read of it would never end."""
    (tmp_path / name).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / name)

    if name == "conda-meta/state":
        with pytest.raises(ExecutionEnvironmentError, match="conda-meta/state: it is not a regular file"):
            again(tmp_path)
    else:
        assert again(tmp_path) == NOT_ACTIVATED
