"""What guests inherit of the server: variables, its user, and how much memory they may use."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from cli.parsing import refusal
from serving.written import RUNS_CODE, evaluate, send_code, write_model
from support.server import ServerProcess

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run guests as another user")
LIMIT = 'parameters { key: "memory_limit" value { string_value: "256MiB" } }'
SECRET = {"NAIAD_OPENAI_API_KEYS": "sk-secret", "MY_TOKEN": "token", "MY_OTHER": "x", "LC_TIME": "C"}


def test_guests_inherit_no_secret_of_the_server(tmp_path):
    write_model(tmp_path / "models", "m")
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=SECRET) as server:
        assert "sk-secret" not in evaluate(server, "m", "dict(os.environ)")
        assert evaluate(server, "m", "os.environ['MY_TOKEN']") == "'token'"
        assert "sk-secret" not in evaluate(server, "m", "open('/proc/self/environ').read()")


@pytest.mark.parametrize("prewarm", ["false", "true"])
def test_guests_inherit_only_named_variables(tmp_path, prewarm):
    write_model(tmp_path / "models", "m")
    options = ("--guest-env=MY_T*,NOT_SET", f"--prewarm={prewarm}")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path, environ=SECRET) as server:
        names = eval(evaluate(server, "m", "sorted(os.environ)"))
    assert {"MY_TOKEN", "PATH", "HOME", "LC_TIME"} <= set(names)
    assert not {"MY_OTHER", "NAIAD_OPENAI_API_KEYS", "XDG_CACHE_HOME"} & set(names)


def test_with_no_name_guests_inherit_what_every_process_needs(tmp_path):
    write_model(tmp_path / "models", "m")
    with ServerProcess(tmp_path / "models", "--guest-env=", work=tmp_path, environ=SECRET) as server:
        assert evaluate(server, "m", "[name for name in os.environ if name.startswith('MY_')]") == "[]"


@pytest.fixture
def open_folder():
    """A folder that every user may enter: those of pytest are private."""
    folder = Path(tempfile.mkdtemp(prefix="naiad-open-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("more", [(), ("--hardened", "--processes=2", "--prewarm=true")])
def test_guests_run_as_another_user_without_its_groups_and_without_new_privileges(serving, open_folder, more):
    archive, _ = serving
    write_model(
        open_folder / "models",
        "m",
        config=f"""
        parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{archive}" }} }}""",
    )
    options = ("--guest-user=nobody:12345", f"--env-store={open_folder / 'store'}", *more)
    with ServerProcess(open_folder / "models", *options, work=open_folder / "work") as server:
        assert evaluate(server, "m", "os.getresuid(), os.getresgid(), os.getgroups()") == (
            "((65534, 65534, 65534), (12345, 12345, 12345), [])"
        )
        assert "NoNewPrivs:\\t1" in evaluate(server, "m", "open('/proc/self/status').read()")
        assert "PermissionError" in evaluate(server, "m", f"open('/proc/{server.pid}/environ').read()")
        assert evaluate(server, "m", "os.environ['USER'], os.environ['HOME']") == "('nobody', '/nonexistent')"
        assert evaluate(server, "m", f"len({'a' * 300_000!r})") == "300000", "inputs in shared memory"
        assert "was killed by SIGKILL" in failure(server, "m", "os.kill(os.getpid(), 9)")
        assert evaluate(server, "m", "1 + 1") == "2", "a guest of that user is restarted, too"


@needs_root
def test_a_file_that_the_user_cannot_read_is_named_with_its_mode(tmp_path, open_folder):
    repository = open_folder / "models"
    file = write_model(repository, "m")
    file.chmod(0o600)
    options = ("--guest-user=65533", "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(repository, *options, work=tmp_path, wait="loaded") as server:
        server.wait_log("The guest runs as uid 65533, gid 65533 (--guest-user), and may not")
        assert "change its permissions, or put it elsewhere (--env-store, --model-repository)" in server.log


@pytest.mark.parametrize(
    ("user", "problem"),
    [
        ("no-such-user", "this system has no user 'no-such-user'; give a name it has, or a number"),
        ("0:no-such-group", "this system has no group 'no-such-group'; give a name it has, or a number"),
        ("a:b:c", "'a:b:c' is not a user such as nobody, 65534 or 1000:1000, nor auto or auto:60706-61183"),
        ("auto:5-4", "'auto:5-4' is not a range of users from 1 to 4294967294, such as auto:60706-61183"),
        ("auto:0-4", "'auto:0-4' is not a range of users from 1 to 4294967294"),
        ("auto:1-9999999999", "'auto:1-9999999999' is not a range of users from 1 to 4294967294"),
    ],
)
def test_a_user_that_does_not_exist_is_an_error_of_the_command_line(user, problem):
    assert problem in refusal(f"--guest-user={user}").message


def failure(server, model, code):
    reply = send_code(server, model, code)
    assert reply.status == 500, reply.body
    return reply.error


TOUCH = "bytearray(b'x') * (600 << 20)"
_UNHANDLED = RUNS_CODE.replace("except BaseException as error:", "except ValueError as error:")


@pytest.mark.parametrize("prewarm", ["false", "true"])
def test_a_guest_that_exceeds_its_memory_limit_is_ended_with_that_reason(tmp_path, prewarm):
    write_model(tmp_path / "models", "m", _UNHANDLED, config=LIMIT)
    with ServerProcess(tmp_path / "models", f"--prewarm={prewarm}", work=tmp_path) as server:
        pid = evaluate(server, "m", "os.getpid()")
        assert evaluate(server, "m", "len(bytearray(100 << 20))") == str(100 << 20)
        reserved = (
            "len(__import__('mmap').mmap(-1, 8 << 30, flags=2, prot=1))"  # not writable, as CUDA reserves addresses
        )
        assert evaluate(server, "m", reserved) == str(8 << 30)
        error = failure(server, "m", TOUCH)
        assert f"pid {pid} was killed: exceeded memory_limit 256MiB" in error
        assert "MemoryError" in error, "the traceback, from the last lines of stderr"
        assert evaluate(server, "m", "1 + 1") == "2"


def test_a_memory_limit_that_is_no_size_fails_the_load(tmp_path):
    write_model(tmp_path / "models", "m", config=LIMIT.replace("256MiB", "much"))
    write_model(tmp_path / "models", "n", config=LIMIT.replace("256MiB", "512"))
    options = ("--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path, wait="loaded") as server:
        server.wait_log("parameter memory_limit of model 'm': 'much' is not a size such as 10GB")
        server.wait_log(
            "parameter memory_limit of model 'n' is '512', too little for any guest; give a size such as 2GiB"
        )


_ATTEMPTS = (
    "open('/proc/{}/mem', 'rb')",
    "open('/proc/{}/environ', 'rb').read()",
    "open('/proc/{}/maps').read()",
    "os.listdir('/proc/{}/fd')",
    "os.open('/proc/{}/fd/0', os.O_RDONLY)",
    "os.listdir('/proc/{}/map_files')",
    "os.readlink('/proc/{}/exe')",
    "os.readlink('/proc/{}/cwd')",
)
_ATTACH = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, {}, 0, 0):
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""
_TAKE_DESCRIPTOR = (
    "__import__('ctypes').CDLL(None, use_errno=True).syscall(438, os.pidfd_open({}), 3, 0), "
    "__import__('ctypes').get_errno()"
)
_EPERM = 1
_SIGNALS = ("os.kill({}, 0)", "os.kill({}, 9)", "os.killpg({}, 9)")


def environment_of(archive, model_config=""):
    return f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{archive}" }} }}{model_config}'


def assert_unreadable(server, model, pid):
    for attempt in _ATTEMPTS:
        assert "PermissionError" in evaluate(server, model, attempt.format(pid)), attempt
    assert "PermissionError" in evaluate(server, model, _ATTACH.format(pid)), "ptrace"
    assert evaluate(server, model, _TAKE_DESCRIPTOR.format(pid)) == f"(-1, {_EPERM})", "pidfd_getfd"


@needs_root
@pytest.mark.parametrize("more", [(), ("--prewarm=true", "--processes=2")])
def test_with_a_user_for_each_model_a_guest_reaches_no_guest_of_another_model(serving, open_folder, more):
    archive, _ = serving
    two = "instance_group [{ count: 2 }]"
    write_model(open_folder / "models", "a", config=environment_of(archive, two))
    write_model(open_folder / "models", "b", config=environment_of(archive))
    options = ("--guest-user=auto", f"--env-store={open_folder / 'store'}", *more)
    with ServerProcess(open_folder / "models", *options, work=open_folder / "work") as server:
        ids = "os.getresuid(), os.getresgid(), os.getgroups()"
        (a_uid, a_gid, a_groups), (b_uid, b_gid, b_groups) = (eval(evaluate(server, model, ids)) for model in "ab")
        assert a_uid == a_gid
        assert b_uid == b_gid
        assert a_uid != b_uid
        assert len(set(a_uid)) == len(set(b_uid)) == 1
        assert {a_uid[0], b_uid[0]} <= set(range(60706, 61184))
        assert a_groups == b_groups == []
        uids = {process.pid: process.uids().real for process in server.children()}
        assert set(uids.values()) == {a_uid[0], b_uid[0]}, "instances and what prewarms them have the model's user"
        b_pid = int(evaluate(server, "b", "os.getpid()"))
        others = [pid for pid, uid in uids.items() if uid == b_uid[0]]
        assert b_pid in others
        for pid in others:
            assert_unreadable(server, "a", pid)
            for attempt in _SIGNALS:
                assert "PermissionError" in evaluate(server, "a", attempt.format(pid)), attempt
        assert "PermissionError" in evaluate(server, "a", f"os.kill({server.pid}, 0)")
        assert int(evaluate(server, "b", "os.getpid()")) == b_pid, "it was not ended"
        assert evaluate(server, "b", f"len({'a' * 300_000!r})") == "300000", "inputs in shared memory"
        assert "was killed by SIGKILL" in failure(server, "b", "os.kill(os.getpid(), 9)")
        assert evaluate(server, "b", "os.getuid()") == str(b_uid[0]), "a restarted guest keeps it"


@needs_root
@pytest.mark.parametrize("prewarm", ["false", "true"])
def test_guests_of_one_user_cannot_read_each_other(serving, open_folder, prewarm):
    archive, _ = serving
    for model in ("a", "b"):
        write_model(open_folder / "models", model, config=environment_of(archive))
    options = ("--guest-user=65533", f"--env-store={open_folder / 'store'}", f"--prewarm={prewarm}")
    with ServerProcess(open_folder / "models", *options, work=open_folder / "work") as server:
        for process in server.children():
            if process.pid != int(evaluate(server, "a", "os.getpid()")):
                assert_unreadable(server, "a", process.pid)
        pid = evaluate(server, "b", "os.getpid()")
        score = Path("/proc/self/oom_score_adj").read_text()
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= min(int(score) + 200, 1000)
        assert evaluate(server, "b", "sorted(os.listdir('/proc/self/fd')) != []") == "True", "a guest sees its own"


@needs_root
def test_a_model_gets_its_user_until_it_is_unloaded_and_a_range_that_is_used_up_is_named(
    serving, tmp_path, open_folder
):
    archive, _ = serving
    for model in ("a", "b", "c"):
        write_model(open_folder / "models", model, config=environment_of(archive))
    options = ("--guest-user=auto:64001-64002", "--model-control-mode=explicit", f"--env-store={open_folder / 'store'}")

    def load(model):
        return server.post(f"/v2/repository/models/{model}/load")

    def unload(model):
        assert server.post(f"/v2/repository/models/{model}/unload").status == 200

    with ServerProcess(open_folder / "models", *options, work=tmp_path) as server:
        assert load("a").status == load("b").status == 200
        uids = {model: evaluate(server, model, "os.getuid()") for model in ("a", "b")}
        assert set(uids.values()) == {"64001", "64002"}
        reply = load("c")
        assert reply.status == 400
        assert (
            "cannot give the model a user of its own: other models have all of uids 64001 to 64002; name a longer range "
            "with --guest-user=auto:FIRST-LAST"
        ) in reply.error
        unload("a")
        server.wait_for(lambda: load("c").status == 200, "the user of 'a' to be free")
        assert evaluate(server, "c", "os.getuid()") == uids["a"]
        assert evaluate(server, "b", "os.getuid()") == uids["b"]
