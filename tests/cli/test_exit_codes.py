"""Every command: 2 and a hint for a wrong command line, 1 and a reason for a failure; flags complete in shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.server import free_ports
from support.waiting import until

from naiad.cli.commands import naiad_group
from naiad.cli.flag_commands import FlagCommand, all_flag_commands
from naiad.cli.main import main, main_tritonserver
from naiad_operations import commands as operations

CONFIG = 'backend: "nosuch"\ninput [{ name: "x" data_type: TYPE_FP32 dims: [1] }]\n'


FLAG_COMMANDS = all_flag_commands()


def commands(group: click.Group = naiad_group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def test_a_command_that_is_interrupted_while_its_modules_are_imported_ends_without_a_traceback(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "slow_command.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(operations.FLAG_COMMANDS, "bench", FlagCommand("slow_command:run", "", ""))
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


INTERRUPTED_IMPORT = """
import sys
from naiad.cli.flag_commands import FlagCommand
from naiad.cli.main import main
from naiad_operations.commands import FLAG_COMMANDS

FLAG_COMMANDS["bench"] = FlagCommand("slow_command:run", "", "")
sys.exit(main(["bench"]))
"""
LOSES_THE_INTERRUPT = """
import os, signal

try:  # as numpy's modules in C do
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):
        pass
except KeyboardInterrupt:
    raise ImportError("Importing the numpy C-extensions failed") from None


def run(arguments):
    print("runs")
"""


@pytest.mark.server
def test_an_interrupt_that_a_module_would_take_for_a_broken_installation_waits_for_its_import(tmp_path):
    """Before, one Ctrl-C of `naiad bench` in ten printed numpy's fifty lines about a broken installation."""
    (tmp_path / "slow_command.py").write_text(LOSES_THE_INTERRUPT)
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.server
def test_a_bundle_that_is_terminated_leaves_nothing_beside_its_output(tmp_path):
    """Before, it left hundreds of megabytes."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").write_text("class TritonPythonModel:\n    pass\n")
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "python"\n')
    output = tmp_path / "out"
    command = [Path(sys.executable).with_name("naiad"), "bundle", f"--model-repository={tmp_path / 'models'}"]
    command += [f"--output={output / 'bundle.tar.zst'}", f"--env-store={tmp_path / 'store'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        until(lambda: any(output.glob(".naiad-bundle-*/*")) or process.poll() is not None, "scratch files")
        process.terminate()
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, printed) == (143, b"")
    assert list(output.iterdir()) == []


@pytest.mark.server
@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        (["--help"], "1"),
        (["explain", "--help"], ""),
        (["explain", "plain", "--json", "--model-repository={work}/plain"], ""),
        (["completion", "bash"], ""),
        (["env", "list", "--json", "--env-store={work}/store"], "1"),
    ],
)
def test_a_command_whose_output_is_not_read_ends_without_a_traceback(
    command: list[str], work: Path, unbuffered: str
) -> None:
    (work / "plain" / "plain" / "1").mkdir(parents=True)
    (work / "plain" / "plain" / "1" / "model.py").touch()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [Path(sys.executable).with_name("naiad"), *(argument.format(work=work) for argument in command)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        timeout=60,
        check=False,
    )
    os.close(writer)

    assert done.returncode == 141
    assert "Error" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.server
@pytest.mark.parametrize(
    ("redirection", "unbuffered", "code", "said"),
    [
        (">&-", "", 0, ""),
        (">/dev/full", "", 1, "cannot write the output: No space left on device\n"),
        (">/dev/full", "1", 1, "cannot write the output: No space left on device\n"),
    ],
)
def test_an_output_that_cannot_be_written_to_is_no_traceback(
    redirection: str, code: int, said: str, unbuffered: str
) -> None:
    program = Path(sys.executable).with_name("naiad")
    done = subprocess.run(
        ["sh", "-c", f'"$0" completion bash {redirection}', program],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (code, said)


# What fails on any machine, with `{closed}` for a port nobody listens on and `{work}` for a folder with the repository
# `models`, whose model `broken` has no backend, the folder `empty`, and the file `file.txt`.
FAILURES = {
    "explain": ["broken", "--model-repository={work}/models"],
    "doctor": ["{work}/models", "--model=broken", "--http-port={closed}", "--allow-grpc=0", "--allow-metrics=0"],
    "bench": ["m", "--url=http://127.0.0.1:{closed}"],
    "tune": ["{work}/models/broken", "--output={work}/tuned"],
    "bundle": ["--output={work}/file.txt", "--model-repository={work}/models"],
    "push": ["oci://127.0.0.1:{closed}/x:1", "{work}/models"],
    "pull": ["oci://127.0.0.1:{closed}/x:1"],
    "verify": ["{work}/nowhere"],
    "deploy": ["kubernetes", "--model-repository={work}/models"],
    "ray": ["yaml", "--model-repository={work}/models"],
    "add": ["{work}/file.txt", "pandas"],
    "remove": ["{work}/file.txt", "pandas"],
    "lock": ["{work}/empty"],
    "top": ["http://127.0.0.1:{closed}"],
    "init model": ["file.txt", "--model-repository=.", "--from=nowhere:nothing"],
    "init backend": ["../b"],
    "env build": ["{work}/empty", "-o", "{work}/built"],
    "env pack": ["{work}/empty"],
    "env prefetch": ["{work}/nowhere.tar.gz"],
    "env pin": ["{work}/pinned"],
    "env sign": ["{work}/file.txt", "--key={work}/file.txt"],
    "env keygen": ["{work}/nowhere/key"],
    "env inspect": ["abcdef0"],
    "env verify": ["abcdef0"],
    "env remove": ["abcdef0"],
    "env diff": ["abcdef0", "{work}/empty"],
    "env why": ["numpy", "{work}/nowhere"],
}
TESTED_ELSEWHERE = {
    "serve": "test_commands.py",
    "run": "test_run.py",
    "env list": "cannot fail: an unreadable store is empty",
    "env gc": "environments/store/test_eviction.py",
    "completion": "cannot fail",
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models" / "broken" / "1").mkdir(parents=True)
    (tmp_path / "models" / "broken" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "pinned").mkdir()
    (tmp_path / "pinned" / "environments.lock").write_text("no lines of ours")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAIAD_STORE", str(tmp_path / "store"))
    return tmp_path


def test_every_command_has_its_failure():
    assert {" ".join(path) for path in commands()} == {*FAILURES, *TESTED_ELSEWHERE}


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_a_mistyped_flag_exits_with_2_and_ends_with_a_hint(path, capsys):
    assert main([*path, "--no-such-flag"]) == 2
    out, err = capsys.readouterr()
    command = " ".join(("naiad", *path))
    assert out == ""
    assert err.splitlines()[-1].startswith((f"`{command} --help` lists", "did you mean "))
    assert err.splitlines()[0].startswith(f"{command}: ")
    assert len(err.splitlines()) == 2
    assert main([*path, "--hlep"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "did you mean --help?"


@pytest.mark.parametrize("command", FAILURES)
def test_a_failure_exits_with_1_and_its_reason_without_the_usage(command, work, capsys):
    arguments = [text.format(work=work, closed=free_ports(1)[0]) for text in FAILURES[command]]
    assert main([*command.split(), *arguments]) == 1
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "sage: naiad" not in out + err
    # Reports print findings and verdicts to stdout, since these are what was asked for.
    assert err.strip() or command in {"doctor", "env verify"}, out


def test_an_invalid_value_of_a_flag_exits_with_2(work, capsys):
    for arguments in (["serve", "--http-port=x"], ["env", "gc", "--older-than=x"], ["env", "pack", "nowhere"], ["run"]):
        assert main(arguments) == 2, arguments
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "cause", "hint"),
    [
        (["bench", "m", "--seconds=abc"], "naiad bench: --seconds=abc: not a number", "give a number of at least 0.1"),
        (["bench", "m", "--seconds=0"], "naiad bench: --seconds=0: out of range", "give a number of at least 0.1"),
        (
            ["serve", "--http-port=abc"],
            "naiad serve: --http-port=abc: not an integer",
            "give an integer from 0 to 65535",
        ),
        (["--http-port=65536"], "naiad: --http-port=65536: out of range", "give a number from 0 to 65535"),
        (["serve", "--allow-http=maybe"], "naiad serve: --allow-http=maybe: not a boolean", "give true or false"),
        (
            ["serve", "--model-control-mode=foo"],
            "naiad serve: --model-control-mode=foo: unknown value",
            "give one of none, poll, explicit, demand",
        ),
        (
            ["serve", "--backend-config=foo"],
            "naiad serve: --backend-config option format is '<backend name>,<setting>=<value>'. Got foo",
            "`naiad serve --help` lists the flags",
        ),
        (
            ["serve", "--load-model=m", "--model-repository=x"],
            "naiad serve: --load-model needs explicit model control",
            "add --model-control-mode=explicit",
        ),
        (
            ["serve", "--http-port=8001", "--model-repository=x"],
            "naiad serve: HTTP and GRPC requests have the same address and port, 0.0.0.0:8001",
            "give one of them another port: --http-port or --grpc-port",
        ),
        (["serve"], "naiad serve: no model repository is named", "add --model-repository=DIRECTORY"),
        (["serve", "extra"], "naiad serve: unexpected argument 'extra'", "`naiad serve --help` lists the flags"),
        (["serve", "models"], "naiad serve: unexpected argument 'models'", "did you mean --model-repository=models?"),
        (["bundle", "models"], "naiad bundle: unexpected argument 'models'", "did you mean --model-repository=models?"),
        (["bundle", "x.onnx"], "naiad bundle: unexpected argument 'x.onnx'", "`naiad bundle --help` lists the flags"),
        (
            ["serve", "a" * 300],
            f"naiad serve: unexpected argument '{'a' * 300}'",
            "`naiad serve --help` lists the flags",
        ),
        (["explain"], "naiad explain MODEL: expected one model, got none", "`naiad explain --help` lists the flags"),
        (["completion"], "naiad completion: missing argument SHELL", "give one of bash, zsh, fish"),
        (
            ["stop"],
            "naiad: no such command 'stop'",
            "a server ends by Ctrl-C, by SIGTERM, or by what started it (systemctl stop, docker stop)",
        ),
        (["status"], "naiad: no such command 'status'", "`naiad top` shows what a running server does"),
        (["tpo"], "naiad: no such command 'tpo'", "did you mean top?"),
        (
            ["top", "http://a:1", "--url=http://b:2"],
            "naiad top: the server is named twice, http://a:1 and http://b:2",
            "`naiad top --help` lists arguments and flags",
        ),
        (
            ["bench", "m", "http://a:1", "--url=http://b:2"],
            "naiad bench MODEL [URL]: the server is named twice, http://a:1 and http://b:2",
            "`naiad bench --help` lists the flags",
        ),
    ],
)
def test_a_wrong_command_line_prints_the_mistake_and_the_remedy_on_two_lines(arguments, cause, hint, work, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{cause}\n{hint}\n")


def test_a_file_to_serve_that_is_not_one_is_refused_with_what_to_do(tmp_path, capsys):
    path = tmp_path / "x.onnx"
    assert main(["serve", str(path)]) == 2
    assert capsys.readouterr().err == f"naiad serve: cannot serve '{path}': it does not exist\ncorrect the path\n"
    (tmp_path / "x.h5").touch()
    assert main(["serve", str(tmp_path / "x.h5"), "--http-port=0"]) == 2
    first, second, _ = capsys.readouterr().err.split("\n")
    assert first == f"naiad serve: cannot serve '{tmp_path}/x.h5': no backend is known for files that end in '.h5'"
    assert second.startswith("known are a directory with MLmodel (MLflow), ")


def test_a_name_that_is_too_long_for_a_directory_is_reported_as_not_a_directory(capsys):
    assert main(["explain", "a" * 300]) == 2
    assert "' is not a directory; add --model-repository=DIRECTORY" in capsys.readouterr().err


def test_the_program_of_triton_keeps_its_form_and_exit_code(capsys):
    assert main_tritonserver(["--htpp-port=1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["tritonserver: unrecognized option '--htpp-port=1'", "Usage: tritonserver [options]"]
    assert lines[-1] == "unknown flag; did you mean --http-port?"
    assert main_tritonserver(["--http-port=abc"]) == 1
    assert capsys.readouterr().err.splitlines()[-2:] == ['Bad option: "--http-port".', "Invalid option value. Got abc"]


@pytest.mark.parametrize(
    ("words", "offered", "missing"),
    [
        ("ser", {"plain,serve"}, {"plain,run"}),
        ("serve --http-", {"plain,--http-port", "plain,--http-address"}, {"plain,--json"}),
        ("explain --", {"plain,--json", "plain,--prepare", "plain,--model-repository"}, {"plain,--strict"}),
        ("serve --model-control-mode ", {"plain,none", "plain,poll", "plain,explicit"}, {"file"}),
        ("serve --exit-on-error = t", {"plain,true"}, {"plain,false"}),
        ("serve --model-repository ", {"dir,"}, {"file,"}),
        ("serve --log-file l", {"file,l"}, {"dir,l"}),
        ("serve --http-port ", set(), {"file,", "dir,"}),
        ("env gc --keep", {"plain,--keep-bytes"}, {"plain,--older-than"}),
        ("completion ", {"plain,bash", "plain,zsh", "plain,fish"}, set()),
        ("deploy ", {"plain,systemd", "plain,kubernetes", "plain,kserve"}, {"file,", "dir,"}),
        ("deploy k", {"plain,kubernetes", "plain,kserve"}, {"plain,systemd"}),
        ("deploy --force --name = n ", {"plain,systemd"}, {"file,"}),
        ("deploy systemd ", set(), {"plain,systemd", "file,", "dir,"}),
        ("ray ", {"plain,up", "plain,yaml"}, {"file,", "dir,"}),
        ("ray --name shop ", {"plain,up", "plain,yaml"}, {"file,", "dir,"}),
        ("ray up --ima", {"plain,--image"}, {"plain,--min"}),
    ],
)
def test_commands_flags_and_values_complete(words, offered, missing, completions):
    found = completions(words)
    assert offered <= found
    assert not missing & found


def test_the_words_that_complete_are_those_of_the_usage():
    chosen = {name: command for name, command in FLAG_COMMANDS.items() if command.choices}
    assert set(chosen) == {"deploy", "ray"}
    for command in chosen.values():
        assert command.arguments.split()[0] == "|".join(command.choices)


def test_every_flag_of_a_command_completes():
    for name in FLAG_COMMANDS:
        items = naiad_group.commands[name].shell_complete(click.Context(naiad_group.commands[name]), "--")
        assert {"--model-repository", "--log-verbose"} <= {item.value for item in items}, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_naiad(shell, capsys):
    assert main(["completion", shell]) == 0
    assert f"_NAIAD_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_completes_the_program_of_triton(shell, capsys):
    assert main(["completion", shell]) == 0
    assert f"_TRITONSERVER_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_flags_and_values_of_the_program_of_triton_complete(monkeypatch, capsys):
    for words, offered in (("--model-repo", "plain,--model-repository"), ("--model-control-mode ", "plain,poll")):
        monkeypatch.setenv("_TRITONSERVER_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"tritonserver {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(f"tritonserver {words}".split(" ")) - 1))
        with pytest.raises(SystemExit):
            main_tritonserver([])
        assert offered in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["init", "model", "m"], {"folder", "files", "notes", "next"}),
        (["env", "keygen", "key.pem"], {"private", "name", "public"}),
        (["env", "list"], {"store", "environments"}),
        (["env", "gc"], {"store", "dry_run", "removed", "stays", "leftovers", "leftover_bytes"}),
    ],
)
def test_json_is_one_document_with_the_documented_keys(work, arguments, keys, capsys):
    assert main([*arguments, "--json"]) == 0
    assert keys <= json.loads(capsys.readouterr().out).keys()


def test_every_command_that_prints_facts_has_json():
    without = {"serve", "deploy", "ray", "completion"}  # a log, files, a manifest, a script
    for path in commands():
        name = " ".join(path)
        if path[0] in FLAG_COMMANDS:
            command = naiad_group.commands[name]
            names = {item.value for item in command.shell_complete(click.Context(command), "--json")}
        else:
            group = naiad_group.commands[path[0]] if len(path) > 1 else naiad_group
            names = {option for each in group.commands[path[-1]].params for option in each.opts}
        assert ("--json" in names) is (name not in without), name


@pytest.mark.server
@pytest.mark.parametrize(
    ("program", "last", "has_options"),
    [
        (
            "main(['serve', *sys.argv[1:]])",
            "cannot serve: 1 of 1 models failed: m (unable to find backend library for backend ",
            False,
        ),
        ("main_tritonserver()", "error: creating server: Internal - failed to load all models", True),
    ],
)
def test_a_failed_start_says_why_in_its_last_line(tmp_path, program, last, has_options):
    """The program of the reference has the reference's words, and its table of options."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(CONFIG)
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
    code = f"import sys; from naiad.cli.main import main, main_tritonserver; sys.exit({program})"
    done = subprocess.run(
        [sys.executable, "-c", code, f"--model-repository={tmp_path / 'models'}", *ports],
        env={**os.environ, "NAIAD_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1
    assert last in done.stderr.splitlines()[-1]
    assert ("| model_repository_path" in done.stderr) is has_options


@pytest.mark.server
def test_a_repository_that_is_no_directory_is_the_last_line_of_a_failed_start(tmp_path):
    command = [sys.executable, "-m", "naiad", "serve", f"--model-repository={tmp_path / 'nosuch'}"]
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
    done = subprocess.run([*command, *ports], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert f"cannot serve: repository path is not a valid directory: {tmp_path}/nosuch" in done.stderr.splitlines()[-1]
