"""`naiad doctor`: everything that is planted is found, and nothing else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import click
import pytest
from environments.makers import member, write_tar
from filelock import FileLock
from operations.doctor.broken import FOR_A_NEWER_SYSTEM, write_broken
from operations.doctor.good import BACKEND, write_good
from operations.doctor.repository import CODE, CONFIG, IO, environment, model, parameter, write
from support.native import add_model as add_native_model
from support.server import ServerProcess

from naiad.cli.main import main
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.manager import EnvironmentManager
from naiad.environments.store.room import FreeRoom, NeededRoom
from naiad_operations.cli.doctor import _print_waiting
from naiad_operations.doctor import machine
from naiad_operations.doctor.model import ExaminedModel

PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]


@pytest.fixture
def examine(tmp_path, capsys):
    """Run the doctor on the repository of the test; its exit code and its document."""
    write(tmp_path / "backends", BACKEND)

    def run(*flags, ports=PORTS):
        store = f"--env-store={tmp_path / 'store'}"
        folders = [str(tmp_path / "models"), f"--backend-directory={tmp_path / 'backends'}"]
        status = main(["doctor", *folders, store, *ports, "--json", *flags])
        printed = capsys.readouterr()
        # On a busy machine the doctor says what it waits for.
        assert [line for line in printed.err.splitlines() if not line.startswith("still examining ")] == []
        return status, json.loads(printed.out)

    return run


@pytest.mark.slow
def test_every_planted_defect_is_found_and_named(tmp_path, examine):
    planted = write_broken(tmp_path)
    assert len(planted) >= 30
    write(tmp_path / "models" / "fine", model())
    for name, broken in planted.items():
        write(tmp_path / "models" / name, broken.files)

    status, document = examine()

    found = {}
    for finding in document["findings"]:
        found.setdefault(finding["model"], []).append(finding)
    assert found.keys() == planted.keys()
    wrong = {name: found[name] for name, broken in planted.items() if not _is_found(broken, found[name])}
    assert wrong == {}
    assert all(finding["advice"] for finding in document["findings"])
    assert (status, document["models"]) == (1, len(planted) + 1)
    assert (document["errors"], document["warnings"]) == (len(planted) - 1, 1)


def _is_found(broken, findings):
    (finding,) = findings if len(findings) == 1 else (None,)
    return (
        finding is not None
        and finding["code"] == broken.code
        and broken.text in finding["message"]
        and broken.where in finding["where"]
    )


@pytest.mark.slow
def test_a_sound_repository_has_no_findings(tmp_path, examine):
    planted = write_good(tmp_path)
    assert len(planted) >= 30
    for name, files in planted.items():
        write(tmp_path / "models" / name, files)

    status, document = examine("--strict")

    notes = [finding for finding in document["findings"] if finding["severity"] == "note"]
    assert [finding for finding in document["findings"] if finding not in notes] == []
    assert {(finding["model"], finding["code"]) for finding in notes} == {("optional_imports", "optional-import")}
    assert (status, document["models"], document["errors"], document["warnings"]) == (0, len(planted), 0, 0)


def test_an_environment_is_named_that_lacks_a_package(tmp_path, examine):
    place = environment(tmp_path / "environment")
    config = CONFIG + parameter("EXECUTION_ENV_PATH", place)
    write(tmp_path / "models" / "m", model("import cv2\n" + CODE, config))

    _, document = examine()

    (finding,) = document["findings"]
    assert f"imports cv2, which is not in {place} (Python " in finding["message"]
    assert finding["advice"] == "add opencv-python-headless to the environment and pack it again"


def test_compiled_packages_of_an_environment_are_read_once(tmp_path, examine):
    place = environment(tmp_path / "environment")
    packages = next(place.glob("lib/python3*/site-packages"))
    broken = FOR_A_NEWER_SYSTEM
    write(packages, {"newer/one.so": broken, "newer/two.so": broken})
    for name in ("a", "b"):
        config = CONFIG + parameter("EXECUTION_ENV_PATH", place)
        write(tmp_path / "models" / name, model(config=config))

    _, document = examine()

    assert [(each["model"], each["code"]) for each in document["findings"]] == [
        ("a", "missing-symbols"),
        ("b", "missing-symbols"),
    ]
    assert "and 1 other file need GLIBC_2.999, which this machine's glibc " in document["findings"][0]["message"]
    assert document["findings"][0]["advice"].startswith("build the environment on the oldest system")


@pytest.mark.parametrize(
    "change", ["sys.path.append('/srv')", "sys.path[:0] = ['/srv']", "sys.path += ['/srv']", "sys.path = ['/srv']"]
)
def test_a_module_may_be_in_a_folder_that_the_code_adds(tmp_path, examine, change):
    write(tmp_path / "models" / "m", model(f"import sys\n{change}\nimport ours\n{CODE}"))

    status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["severity"], finding["code"]) == (0, "note", "optional-import")
    assert finding["message"].endswith("; the code changes sys.path, so it may find it elsewhere")


def test_a_library_that_needs_the_glibc_of_this_machine_is_no_error(tmp_path, examine):
    # That of the machine, not the one which the server's own interpreter asks for: that may be older.
    here = os.confstr("CS_GNU_LIBC_VERSION").replace("glibc ", "GLIBC_").encode()
    for_this_system = FOR_A_NEWER_SYSTEM.replace(b"\0GLIBC_2.999\0", b"\0" + here.ljust(11, b"\0") + b"\0")
    assert for_this_system != FOR_A_NEWER_SYSTEM
    write(tmp_path / "models" / "m", model() | {"1/fast.so": for_this_system})

    _, document = examine()

    assert document["findings"] == []


def test_inputs_of_one_name_are_warned_of(tmp_path, examine):
    files = model()
    files["config.pbtxt"] += 'input { name: "TWICE" data_type: TYPE_FP32 dims: 1 }\n' * 2
    write(tmp_path / "models" / "m", files)

    status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["severity"], finding["code"]) == (0, "warning", "repeated-tensors")
    assert finding["message"] == "it has several inputs named 'TWICE'; only the last one is used"


def test_a_model_without_configured_tensors_is_warned_of(tmp_path, examine):
    files = model()
    write(tmp_path / "models" / "m", {"config.pbtxt.txt": files["config.pbtxt"], "1/model.py": files["1/model.py"]})

    _, document = examine()

    (finding,) = document["findings"]
    assert (finding["severity"], finding["code"]) == ("warning", "no-tensors")
    assert f"there is no {tmp_path}/models/m/config.pbtxt (but config.pbtxt.txt), and its code" in finding["message"]


def test_shared_backends_are_no_packages(tmp_path, examine):
    write(tmp_path / "backends", {"shared/model.py": "from .partner import x\n" + CODE})
    write(tmp_path / "models" / "m", {"config.pbtxt": f'backend: "shared"{IO}', "1/data.txt": ""})

    _, document = examine()

    (finding,) = document["findings"]
    assert finding["code"] == "relative-import"
    assert finding["where"].endswith("shared/model.py:1")


def test_backends_for_saved_models_share_a_package(tmp_path, examine):
    files = {"mine/model.py": "import parts\n" + CODE, "mine/parts.py": "import saved_models.settings\n"}
    write(tmp_path / "backends", {**files, "saved_models/saved_models/settings.py": ""})
    write(tmp_path / "models" / "m", {"config.pbtxt": f'backend: "mine"{IO}', "1/data.txt": ""})
    assert examine()[1]["findings"] == []


def test_a_model_in_two_repositories_is_named_with_both(tmp_path, examine):
    write(tmp_path / "models" / "m", model())
    write(tmp_path / "more" / "m", model())

    status, document = examine(f"--model-repository={tmp_path / 'more'}")

    (finding,) = document["findings"]
    assert (status, finding["code"], finding["model"]) == (1, "duplicate", "m")
    assert finding["where"] == f"{tmp_path / 'models' / 'm'}, {tmp_path / 'more' / 'm'}"


@pytest.mark.parametrize("name", ["http", "grpc", "metrics"])
def test_a_port_that_is_taken_is_named(tmp_path, examine, name):
    write(tmp_path / "models" / "m", model())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = [each for each in PORTS if name not in each]
        status, document = examine(f"--{name}-port={port}", f"--{name}-address=127.0.0.1", ports=ports)

    (finding,) = document["findings"]
    assert (status, finding["code"]) == (1, "port-taken")
    assert finding["message"].startswith(f"{name} cannot be served at 127.0.0.1:{port}: ")
    assert f" by process {os.getpid()} (" in finding["message"]
    assert finding["advice"] == f"choose another --{name}-port or stop the process that listens there"


def test_an_address_of_another_machine_is_named(tmp_path, examine):
    write(tmp_path / "models" / "m", model())

    _, document = examine("--http-address=192.0.2.1", "--http-port=18490", ports=PORTS[1:])

    (finding,) = [each for each in document["findings"] if each["message"].startswith("http ")]
    assert (finding["code"], finding["advice"]) == ("address", "choose another --http-address")


def test_a_store_that_cannot_be_written_is_found_first(tmp_path, examine):
    write(tmp_path / "models" / "m", model())
    write(tmp_path, {"store": "a file"})

    status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["code"], finding["where"]) == (1, "store", str(tmp_path / "store"))


def test_a_store_that_can_only_be_read_is_a_warning_and_the_models_are_examined(tmp_path, examine, monkeypatch):
    """A server starts with such a store, so the doctor must say what the models lack."""
    write(tmp_path / "models" / "m", model("import no_such_package\n" + CODE))
    (tmp_path / "store").mkdir()
    working = machine.tempfile.TemporaryFile

    def refuse(**place):
        if place:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return working()

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)

    _, document = examine()

    assert [(each["severity"], each["code"]) for each in document["findings"]] == [
        ("warning", "store"),
        ("error", "missing-import"),
    ]
    assert "Read-only file system; only the environments that it has can be used" in document["findings"][0]["message"]


def test_a_module_to_prewarm_that_the_environment_lacks_is_a_warning(tmp_path, examine):
    write(tmp_path / "models" / "m", model(config=CONFIG + parameter("PREWARM", "numpy.linalg,nunpy,numpy.no_such")))

    status, document = examine()

    assert (status, {(each["severity"], each["code"]) for each in document["findings"]}) == (
        0,
        {("warning", "prewarm")},
    )
    named = [each["message"].partition(",")[0] for each in document["findings"]]
    assert named == ["PREWARM names nunpy", "PREWARM names numpy.no_such"]


def test_models_on_demand_count_no_memory_and_a_model_that_is_asked_at_the_start_is_noted(tmp_path, examine):
    completes = CODE + "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    many = CONFIG + "instance_group { count: 4096 }"
    write(tmp_path / "models" / "asked", model(code=completes, config='backend: "python"\n'))
    write(tmp_path / "models" / "many", model(config=many))
    write(tmp_path / "models" / "told", model(code=completes))
    assert "memory" in {each["code"] for each in examine()[1]["findings"]}

    status, document = examine("--model-control-mode=demand")

    assert (status, [(each["severity"], each["code"], each["model"]) for each in document["findings"]]) == (
        0,
        [("note", "asked-at-start", "asked")],
    )


def test_a_slow_step_is_named_while_it_is_examined(tmp_path, capsys, monkeypatch):
    write(tmp_path / "models" / "m", model())
    waited = threading.Event()

    def slow(files, _context):
        assert waited.wait(30)
        return ExaminedModel(files)

    monkeypatch.setattr("naiad_operations.doctor.examine.examine_model", slow)
    monkeypatch.setattr("naiad_operations.doctor.examine._SILENT_SECONDS", 0.01)
    printed = []
    monkeypatch.setattr(
        "naiad_operations.cli.doctor._print_waiting", lambda models: (printed.append(models), waited.set())
    )

    assert main(["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", *PORTS]) == 0
    assert printed[0] == {"m": ""}


def test_an_environment_that_another_process_creates_is_not_waited_for(tmp_path, examine):
    archive = write_tar(tmp_path / "env.tar", [(member("README"), b"x")])
    write(tmp_path / "models" / "m", model(config=CONFIG + parameter("EXECUTION_ENV_PATH", archive)))
    write(tmp_path / "models" / "other", model())
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (tmp_path / "store" / "locks").mkdir(parents=True)

    with FileLock(tmp_path / "store" / "locks" / f"{digest}.lock"):
        status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["severity"], finding["code"], finding["model"]) == (0, "warning", "environment-busy", "m")
    assert re.fullmatch(r"cannot use the environment of 'm' yet: .*process.* is creating it", finding["message"])
    assert finding["advice"] == "examine the model again when that has ended; most of its checks need the environment"
    assert finding["where"] == str(archive)


def test_programs_of_an_environment_that_was_made_for_another_folder_are_warned_of(tmp_path, examine, whole):
    folder = shutil.copytree(whole, tmp_path / "env", symlinks=True)
    (folder / "bin" / "tool").write_text("#!/made/elsewhere/bin/python\n")
    write(tmp_path / "models" / "m", model(config=CONFIG + parameter("EXECUTION_ENV_PATH", folder)))

    _, document = examine()

    (finding,) = [found for found in document["findings"] if found["code"] == "scripts"]
    assert finding["severity"] == "warning"
    assert finding["message"] == (
        f"programs in {folder}/bin such as tool cannot be started: they need /made/elsewhere/bin/python, which does not "
        "exist"
    )
    assert finding["advice"].startswith("the environment was made for the folder /made/elsewhere (conda-pack")


def test_the_build_of_an_environment_is_reported_during_the_examination(tmp_path, examine, capsys, monkeypatch):
    write(tmp_path / "models" / "m", model(code='# /// script\n# dependencies = ["numpy"]\n# ///\n' + CODE))
    said = threading.Event()
    printed = _print_waiting

    def resolve(_self, _declaration, _chosen, label):
        _self._progress(label)("compiling something large")
        assert said.wait(30)
        raise ExecutionEnvironmentError("it does not compile; use another")

    monkeypatch.setattr("naiad_building.declared.provider.DeclaredEnvironments._resolve", resolve)
    monkeypatch.setattr("naiad_operations.doctor.examine._SILENT_SECONDS", 0.01)

    def on_waiting(models):
        printed(models)
        if any(models.values()):
            said.set()

    monkeypatch.setattr("naiad_operations.cli.doctor._print_waiting", on_waiting)

    folders = [str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}"]
    assert main(["doctor", *folders, *PORTS]) == 1
    assert "still examining 1 model: m (compiling something large)" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("named", "advice"),
    [
        ("{folder}/env.tar@sha256:" + "0" * 64, "provide the pinned archive, or pin the digest of this one"),
        ("nosuch://host/e.tar", "correct the scheme"),
        ("{folder}/up.tar", "use no archive of unknown origin"),
    ],
)
def test_the_advice_about_an_environment_is_that_of_its_cause(tmp_path, examine, named, advice):
    write_tar(tmp_path / "env.tar", [(member("README"), b"x")])
    write_tar(tmp_path / "up.tar", [(member("../up"), b"x")])
    named = named.format(folder=tmp_path)
    write(tmp_path / "models" / "m", model(config=CONFIG + parameter("EXECUTION_ENV_PATH", named)))

    _, document = examine()

    (finding,) = document["findings"]
    assert finding["advice"].startswith(advice)
    assert advice not in finding["message"]


@pytest.mark.parametrize(
    ("size", "files", "free", "text"),
    [
        (2_000_000, 10, (1_000_000, None), "unpacked, it takes 2 MB, and {store} has 1 MB left"),
        (1, 10, (1_000_000, 9), "unpacked, it has 10 files, and the file system of {store} can store 9 more"),
    ],
)
def test_an_archive_that_has_no_room_is_not_unpacked(tmp_path, examine, monkeypatch, size, files, free, text):
    (tmp_path / "env.tar.gz").write_bytes(b"\x1f\x8b\x08\x00" + bytes(1000))
    config = CONFIG + parameter("EXECUTION_ENV_PATH", tmp_path / "env.tar.gz")
    write(tmp_path / "models" / "m", model(config=config))
    monkeypatch.setattr(machine, "needed_room", lambda _: NeededRoom(size=size, files=files, is_stated=True))
    monkeypatch.setattr(machine, "free_room", lambda _: FreeRoom(size=free[0], files=free[1]))

    status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["code"], finding["message"]) == (1, "disk", text.format(store=tmp_path / "store"))


def test_a_machine_without_temporary_files_is_a_warning(tmp_path, examine, monkeypatch):
    write(tmp_path / "models" / "m", model())
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path / "nowhere"))

    status, document = examine()

    assert (status, [each["code"] for each in document["findings"]]) == (0, ["temporary-folder"])


def test_more_model_processes_than_memory_takes_is_a_warning(tmp_path, examine):
    many = CONFIG + "instance_group { count: 4096 }"
    write(tmp_path / "models" / "m", model(config=many))

    status, document = examine()
    assert (status, [each["code"] for each in document["findings"]]) == (0, ["memory"])
    status, _ = examine("--strict")
    assert status == 1
    _, document = examine("--processes=8")
    assert document["findings"][0]["message"].startswith(
        "4096 model processes and 7 more of --processes take at least "
    )


def test_an_empty_repository_is_a_warning(tmp_path, examine):
    (tmp_path / "models").mkdir()

    status, document = examine()

    assert (status, [each["code"] for each in document["findings"]]) == (0, ["no-models"])


def test_one_model_may_be_examined_alone(tmp_path, examine):
    write(tmp_path / "models" / "good", model())
    write(tmp_path / "models" / "bad", model(config="nonsense"))

    status, document = examine("--model=good")

    assert (status, document["models"], document["findings"]) == (0, 1, [])


def test_archives_may_be_left_packed(tmp_path, examine):
    shutil.make_archive(str(tmp_path / "env"), "gztar", environment(tmp_path / "environment"))
    config = CONFIG + parameter("EXECUTION_ENV_PATH", tmp_path / "env.tar.gz")
    write(tmp_path / "models" / "m", model("import no_such_package\n" + CODE, config))

    status, document = examine("--leave-packed")

    assert (status, document["findings"]) == (0, [])
    assert not list((tmp_path / "store").glob("*/env"))


def test_the_printed_findings_have_the_fault_its_place_and_the_remedy(tmp_path, capsys):
    write(
        tmp_path / "models" / "m", model("try:\n    import cupy\nexcept ImportError:\n    pass\nimport nunpy\n" + CODE)
    )

    status = main(["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", *PORTS])

    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    assert lines[0].startswith("error: m version 1: imports nunpy, which is not in the host's interpreter (Python ")
    assert lines[0].endswith(" [missing-import]")
    assert lines[1:] == [
        f"  at {tmp_path / 'models' / 'm' / '1' / 'model.py'}:5",
        (
            "  -> correct it to numpy if it is misspelled; else add the package that has it to the model (`naiad add`), install it beside "
            "naiad, or name an environment that has it (EXECUTION_ENV_PATH)"
        ),
        "1 model examined: 1 error, 0 warnings; 1 note (--notes)",
    ]


def test_findings_are_in_color_in_a_terminal_alone(tmp_path, capsys, monkeypatch):
    write(tmp_path / "models" / "m", model("import nunpy\n" + CODE))
    command = ["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", "--from-triton", *PORTS]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(command) == 1
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(command) == 1
    colored = capsys.readouterr().out
    assert "\x1b[31m\x1b[1merror:\x1b[0m \x1b[1mm version 1\x1b[0m: imports nunpy" in colored
    assert "examined: \x1b[31m\x1b[1m1 error, 0 warnings\x1b[0m" in colored
    assert click.unstyle(colored) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(command) == 1
    assert capsys.readouterr().out == plain


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "nowhere"),
        ([], "no model repository is named; use naiad doctor MODEL_REPOSITORY"),
        (["{models}", "--no-such-flag"], "unrecognized option"),
        (["{models}", "--model=nobody"], "cannot find model 'nobody'; the models are: m"),
    ],
)
def test_a_repository_that_cannot_be_examined_has_an_exit_code_of_its_own(tmp_path, capsys, arguments, text):
    write(tmp_path / "models" / "m", model())
    words = [word.format(models=tmp_path / "models") for word in arguments]

    status = main(["doctor", *words, f"--env-store={tmp_path / 'store'}", *PORTS])

    assert status == 2
    assert text in capsys.readouterr().err


def test_nothing_is_started_and_nothing_written_beside_the_models(tmp_path, examine):
    code = "open(__file__ + '.ran', 'w')\nimport beside\n" + CODE
    write(tmp_path / "models" / "m", model(code) | {"1/beside.py": "open(__file__ + '.ran', 'w')\n"})
    before = sorted((tmp_path / "models").rglob("*"))

    assert examine()[0] == 0

    assert sorted((tmp_path / "models").rglob("*")) == before


def test_the_library_of_a_native_backend_is_examined(tmp_path, examine):
    from naiad_stub.native.elf import write_library

    entry = "TRITONBACKEND_ModelInstanceExecute"
    config = 'backend: "own"\nmax_batch_size: 1\n' + IO
    for name, content in (
        ("fine", write_library([entry], "libtriton_own.so")),
        ("other", write_library(["other"], "libtriton_own.so")),
        ("text", b"text"),
    ):
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(config)
        (folder / "libtriton_own.so").write_bytes(content)

    status, document = examine()

    assert status == 1
    assert {finding["model"]: (finding["code"], finding["message"]) for finding in document["findings"]} == {
        "other": ("native-library", f"libtriton_own.so is not a backend: it does not export {entry}"),
        "text": ("native-library", "libtriton_own.so cannot be loaded: not a 64-bit little-endian ELF file"),
    }


def test_a_refusal_by_a_native_library_is_reported_as_by_the_server(tmp_path, examine):
    """Before, these models were called right: the library was read and not loaded."""
    fails = 'parameters {{ key: "fail" value {{ string_value: "{}" }} }}\n'
    models = tmp_path / "models"
    add_native_model(models, "refused", "complete.c", tensors=False, config=fails.format("model-initialize"))
    add_native_model(models, "crashes", "complete.c", tensors=False, config=fails.format("model-crash"))
    add_native_model(models, "completed", "complete.c", tensors=False)
    add_native_model(models, "plain", "echo.c")
    undefined = add_native_model(models, "undefined", "echo.c") / "libtriton_echo.so"
    source = tmp_path / "undefined.c"
    source.write_text(
        "void no_such_function(void);\n"
        "void* TRITONBACKEND_ModelInstanceExecute(void) { no_such_function(); return 0; }\n"
        "void (*needed)(void) = no_such_function;\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", undefined, source], check=True, timeout=60)

    status, document = examine()

    assert status == 1
    found = {finding["model"]: finding for finding in document["findings"]}
    assert found.keys() == {"refused", "crashes", "undefined"}
    assert {(finding["code"], finding["severity"]) for finding in found.values()} == {("native-library", "error")}
    start = "libtriton_complete.so does not initialize the model: "
    assert found["refused"]["message"] == f"{start}the model is not to my liking"
    assert found["refused"]["where"] == str(models / "refused" / "libtriton_complete.so")
    assert found["crashes"]["message"].startswith(start)
    assert "was killed by SIGSEGV" in found["crashes"]["message"]
    assert "undefined symbol: no_such_function" in found["undefined"]["message"]

    command = ("--model-control-mode=explicit", "--exit-on-error=false")
    with ServerProcess(models, *command, work=tmp_path) as server:
        said = server.post("/v2/repository/models/refused/load").error
        assert found["refused"]["message"].removeprefix(start) in said
        assert "no_such_function" in server.post("/v2/repository/models/undefined/load").error
        assert server.post("/v2/repository/models/completed/load").status == 200


def test_the_configuration_that_a_native_library_has_completed_is_examined(tmp_path, examine):
    """Before, nothing of a configuration was examined where the library may complete it."""
    data = 'value { data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "missing" }'
    warm_up = f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "IN" {data} }} }}\n'
    add_native_model(tmp_path / "models", "m", "complete.c", tensors=False, config=warm_up)

    status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["code"]) == (1, "files")
    assert str(tmp_path / "models" / "m" / "warmup" / "missing") in finding["message"]


def test_a_native_library_that_takes_too_long_is_ended_and_named(tmp_path, examine, monkeypatch):
    monkeypatch.setattr("naiad_operations.doctor.native_library.TIME_LIMIT", 1.5)
    fails = 'parameters { key: "fail" value { string_value: "model-hang" } }\n'
    add_native_model(tmp_path / "models", "m", "complete.c", tensors=False, config=fails)

    status, document = examine()

    (finding,) = document["findings"]
    assert (status, finding["code"], finding["severity"]) == (0, "native-library", "warning")
    assert finding["message"] == (
        "libtriton_complete.so had not initialized the model after 1.5 s and was ended, so that the completed "
        "configuration was not examined"
    )


def test_only_the_libraries_of_the_wanted_models_are_loaded(tmp_path, examine):
    fails = 'parameters { key: "fail" value { string_value: "model-initialize" } }\n'
    add_native_model(tmp_path / "models", "refused", "complete.c", tensors=False, config=fails)
    add_native_model(tmp_path / "models", "wanted", "complete.c", tensors=False)
    assert examine("--model=wanted")[0] == 0


def test_an_interrupted_examination_says_so(tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("naiad_operations.cli.doctor.examine", interrupt)

    assert main(["doctor", str(tmp_path), f"--env-store={tmp_path / 'store'}"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_only_the_archives_of_the_wanted_models_are_unpacked(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write(tmp_path / "models" / name, model(config=CONFIG + parameter("EXECUTION_ENV_PATH", "e.tar")))
        write_tar(tmp_path / "models" / name / "e.tar", [(member("bin/python"), name.encode())], "w")
    prepared = []

    def prepare(_self, _source, *, label, **_):
        prepared.append(label)
        raise ExecutionEnvironmentError("not needed here")

    monkeypatch.setattr(EnvironmentManager, "prepare", prepare)

    main(["doctor", str(tmp_path / "models"), "--model=a", f"--env-store={tmp_path / 'store'}"])

    assert prepared == ["a"]


def test_a_misspelt_parameter_is_a_warning(tmp_path, capsys):
    write(tmp_path / "models" / "a", model(config=CONFIG + parameter("EXECUTION_ENV_PTH", "e.tar")))

    main(["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}"])

    assert "did you mean EXECUTION_ENV_PATH? [parameter]" in capsys.readouterr().out
