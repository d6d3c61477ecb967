"""Loads of models, from the files to guests that serve: what fails and what is cancelled at any step."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import orjson
import pytest
from engine.loading.host import CODE, COMPLETING, UNNAMED, Host, instances, parameter
from fakes.clock import Clock, turns
from naiad_stub.load_spec import NativeCode

from naiad.config.model import model_config
from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.render import to_json
from naiad.config.server.guest_user import GuestUser
from naiad.core import blocking
from naiad.core.errors import (
    ConfigError,
    ExecutionEnvironmentError,
    GuestExitedError,
    InvalidRequestError,
    ModelError,
    NaiadError,
    NotReadyError,
)
from naiad.engine.loading import loader
from naiad.engine.loading.instance_change import threads_each
from naiad.guests.launch import LaunchSpec
from naiad.models.resolution.native_library import NativeLibrary

TWO = instances(2)
WARMED = 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 2 %s } } }'
NATIVE = NativeLibrary(path=Path("/b/libtriton_b.so"))
BASIC = {"PATH": "/bin", "HOME": "/home/me", "XDG_DATA_HOME": "/x", "USER": "me"}


async def is_cancelled(work: Coroutine[Any, Any, object], steps: int) -> bool:
    """Cancel *work* after so many turns of the loop; False if it has ended before."""
    task = asyncio.ensure_future(work)
    await turns(steps)
    if task.done():
        await task
        return False
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await turns(3)
    return True


# -- cancelled and failed at each step


@pytest.mark.parametrize(
    ("more", "code"),
    [("", CODE), (TWO, COMPLETING), (TWO + parameter("PREWARM", "json"), COMPLETING)],
    ids=["plain", "completed", "prewarmed"],
)
async def test_a_load_that_is_cancelled_at_any_step_leaves_nothing(host, more, code):
    host.add("m", more=more, code=code)
    seen = []
    while not host.is_serving():
        await is_cancelled(host.load(), len(seen))
        host.assert_nothing_is_left(*["m"] * host.is_serving())
        seen.append(host.index())
    assert [each for number, each in enumerate(seen) if each not in seen[:number]] == [
        [],
        ["m  : "],
        ["m 1 UNAVAILABLE: Internal: the load was cancelled"],
        ["m 1 READY: "],
    ]
    assert host.guests


@pytest.mark.parametrize("more", [instances(3), TWO + parameter("x", "y")], ids=["instances", "another configuration"])
async def test_a_model_serves_as_before_when_loading_it_again_is_cancelled_at_any_step(host, more):
    host.add("m", more=TWO)
    await host.load()
    before = host.version().config
    host.add("m", more=more)
    steps = 0
    while host.version().config is before:
        await is_cancelled(host.load(), steps)
        await asyncio.sleep(1)  # for what was replaced to end
        host.assert_nothing_is_left("m")
        assert host.index() == ["m 1 READY: "]
        steps += 1
    assert steps > 5


@pytest.mark.parametrize("more", ["", parameter("PREWARM", "json")])
def test_the_server_may_stop_at_any_step_of_a_load_on_demand(host, more):
    host.add("m", more=more, code=COMPLETING)
    states = []
    while "loaded" not in states:

        async def check() -> None:
            answers = host.ask()
            await turns(len(states))
            states.append(host.engine.demand_states()["m"])
            if states[-1] == "loaded":
                host.guests[-1].answer()
            await host.engine.stop()
            assert answers.is_ended

        host.run(check, is_demand=True, is_explicit=False)
    assert host.guests


ADVICE = (
    "; if it is from a package, add it with `naiad add {}/models/m PACKAGE`, with the package's name, which need not be "
    "the module's; if 'nosuch' is code of your own, put it beside model.py, or into a folder of PYTHONPATH for models "
    "under the server's own interpreter"
)
MISSING = "ModuleNotFoundError: No module named 'nosuch'"
POINTER = "; '{0}/models/m/1/w.bin' is a Git LFS pointer instead of the file; run `git lfs pull` in the repository that it comes from"
FAILURES = {
    "configuration": ({"text": "max_batch_size: x"}, {}, "{}/models/m/config.pbtxt:1:17: Couldn't parse integer: x"),
    "versions": (
        {"more": "version_policy { specific { versions: 7 } }"},
        {},
        "at least one version must be available under the version policy of model 'm' (its versions are: 1)",
    ),
    "parameter": (
        {"more": parameter("HANG_SECONDS", "x")},
        {},
        (
            "{}/models/m/config.pbtxt:5: parameter HANG_SECONDS of model 'm' is 'x': give a number of seconds, or 0 for no limit"
        ),
    ),
    "environment": ({}, {"environment": ExecutionEnvironmentError("cannot unpack e")}, "Internal: cannot unpack e"),
    "interpreter": (
        {},
        {"environment": {"version": (3, 7, 1)}},
        (
            "Internal: model 'm' would run under Python 3.7.1, but the stub '{}/guest/triton_python_backend_stub' needs "
            "Python >=3.8; give the model another environment or a stub of its own"
        ),
    ),
    "completion": ({"code": COMPLETING}, {"completed": ModelError("no luck")}, "Internal: no luck"),
    "completed": (
        {"code": COMPLETING},
        {"completed": {"max_batch_size": -1}},
        "Invalid argument: 'max_batch_size' must be non-negative value for m",
    ),
    "labels": (
        {"text": UNNAMED.replace('"OUT"', '"OUT" label_filename: "l.txt"')},
        {},
        "Internal: failed to open text file for read {}/models/m/l.txt: No such file or directory",
    ),
    "warmup": (
        {"more": WARMED % 'input_data_file: "w"'},
        {},
        "Internal: failed to open text file for read {}/models/m/warmup/w: No such file or directory",
    ),
    "a guest": ({"more": TWO}, {"failures": [None, ModelError("it raised")]}, "Internal: it raised"),
    "two guests": ({"more": TWO}, {"failures": [ModelError("first"), ModelError("second")]}, "Internal: first"),
    "package": ({}, {"failures": [ModelError(f"{MISSING}\n  line 2")]}, f"Internal: {MISSING}{ADVICE}\n  line 2"),
    "no advice": ({}, {"failures": [GuestExitedError(MISSING, exit_status=1)]}, f"Internal: {MISSING}"),
    "unfetched": ({"weights": True}, {"failures": [ModelError("it raised")]}, f"Internal: it raised{POINTER}"),
    "two unfetched": (
        {"weights": True, "more": "", "versions": (1, 2)},
        {"failures": [ModelError("it raised")]},
        f"Internal: it raised{POINTER} (and 1 more)",
    ),
    "native": (
        {"more": parameter("max_instances", 2)},
        {"library": NATIVE},
        (
            "Invalid argument: parameters min_instances and max_instances of model 'm' need a model in Python: the "
            "instances of a native backend cannot be added while it serves"
        ),
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_load_that_fails_says_why_and_leaves_nothing(host, kind, caplog):
    change, facts, reason = FAILURES[kind]
    has_weights = change.pop("weights", False)
    folder = host.add("m", **change)
    for version in change.get("versions", (1,)) if has_weights else ():
        (folder / str(version) / "w.bin").write_text("version https://git-lfs.github.com/spec/v1")
    for name, value in facts.items():
        setattr(host, name, value)
    reason = reason.format(host.folder)
    number = change.get("versions", (1,))[-1]
    is_early = not reason.startswith(("Internal: ", "Invalid argument: "))
    error = await host.fail()
    host.assert_nothing_is_left()
    assert host.index() == [f"m {'' if is_early else number} UNAVAILABLE: {reason}"]
    if is_early:
        assert (type(error), error.message) == (ConfigError, f"failed to load 'm': {reason}")
    else:
        text = f"load failed for model 'm': version {number} is at UNAVAILABLE state: {reason};\n"
        assert (type(error), error.message) == (InvalidRequestError, text)
    what = f"failed to load 'm': {reason}" if is_early else f"failed to load 'm' version {number}: {reason}"
    assert what in [each.getMessage() for each in caplog.records]


async def test_an_unexpected_error_is_passed_on_and_recorded(host):
    host.add("m")
    host.failures = [ValueError("odd")]
    with pytest.raises(ValueError, match="odd"):
        await host.load()
    host.assert_nothing_is_left()
    assert host.index() == ["m 1 UNAVAILABLE: Internal: ValueError('odd')"]
    await host.load()
    assert host.index() == ["m 1 READY: "]


def test_a_load_is_tried_again_as_often_as_the_server_says(host, caplog):
    host.add("m")
    host.failures = [ModelError("one", traceback_text="line 1"), ModelError("two"), None]
    host.run(host.load, load_retries=2)
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert said == [f"loading 'm' failed (attempt {number}): {why}" for number, why in ((1, "one"), (2, "two"))]
    caplog.clear()
    host.failures = [ModelError("one"), ModelError("two", traceback_text="line 1"), None]
    host.run(host.fail, load_retries=1)
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert said == ["loading 'm' failed (attempt 1): one", "failed to load 'm' version 1: Internal: two", "line 1"]


@pytest.mark.parametrize("steps", range(6))
async def test_a_load_can_be_ended_between_its_steps_and_before_each_version(host, monkeypatch, steps):
    """Three steps, and a version each; what it has prepared is started."""
    host.add("m", more="version_policy { all {} }", versions=(1, 2))
    left = [None] * steps

    def check_cancelled() -> None:
        if not left:
            raise NotReadyError("it was ended")
        left.pop()

    monkeypatch.setattr(blocking, "check_cancelled", check_cancelled)
    if steps == 5:
        await host.load()
    else:
        assert "it was ended" in (await host.fail()).message
    prepared = max(0, steps - 3)
    assert len(host.prepared) == len(host.guests) == prepared
    assert [each.split(":")[0] for each in host.index() if "READY" in each] == [
        f"m {number} READY" for number in range(1, prepared + 1)
    ]


async def test_an_unload_ends_the_load_in_progress_if_that_waits_for_something(host, monkeypatch):
    ended: list[blocking.LendableSlot] = []

    def end_when_lent(slot: blocking.LendableSlot) -> None:
        ended.append(slot)

    monkeypatch.setattr(blocking.LendableSlot, "end_when_lent", end_when_lent)
    host.add("m")
    loading = asyncio.ensure_future(host.load())
    await turns(3)
    await host.engine.unload("other")
    assert ended == []
    await host.engine.unload("m")
    assert len(ended) == 1
    await loading


# -- how guests are started


def flat(spec: LaunchSpec) -> dict[str, Any]:
    """All that a guest is started with, by name."""
    load, code = spec.load, spec.load.code
    found = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec) if each.name != "load"}
    found["environ"].pop("PYTEST_CURRENT_TEST", None)
    found["restore"] = found["restore"] is not None
    found["lease"] = found["lease"] is not None
    found |= {f"load.{name}": getattr(load, name) for name in load.__slots__ if name != "code"}
    found["load.model_config"] = orjson.loads(load.model_config)
    return found | {f"code.{name}": getattr(code, name) for name in code.__slots__}


def spec_of(host: Host, more: str = "", **settings: Any) -> dict[str, Any]:
    """How the guest of a model with this configuration is started."""
    host.add("m", more=more)
    host.run(host.load, **settings)
    return flat(host.specs()[-1])


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader.os, "environ", dict(BASIC))


@pytest.mark.parametrize("more", [TWO, instances(3) + parameter("PREWARM", "json")])
async def test_a_configuration_is_rendered_once(host, monkeypatch, more):
    seen = []

    def rendered(message: pb.ModelConfig) -> dict[str, Any]:
        seen.append(message.name)
        return to_json(message)

    monkeypatch.setattr(model_config, "to_json", rendered)
    host.add("m", more=more)
    await host.load()
    assert host.version().config.json["name"] == "m"
    assert seen == ["m"]


@pytest.mark.usefixtures("variables")
def test_a_guest_is_started_in_its_environment_with_its_share_of_the_processors(host):
    found = spec_of(host)
    count = threads_each(1)
    assert found["environ"] == {
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), count),
        "OPENBLAS_THREAD_TIMEOUT": "20",
        **BASIC,
    }
    config = found.pop("load.model_config")
    assert (config["name"], config["instance_group"][0]["count"]) == ("m", 1)
    folder = str(host.folder / "models" / "m")
    expected = {
        "name": "m_0",
        "python": Path("/env/bin/python"),
        "stub": host.layout.artifacts_dir / "triton_python_backend_stub",
        "library": host.layout.library_dir,
        "start_timeout": 30.0,
        "lease": True,
        "restore": True,
        "user": None,
        "prewarm": None,
        "load.completes_config": False,
        "load.model_name": "m",
        "load.model_version": 1,
        "load.model_dir": folder,
        "load.version_dir": f"{folder}/1",
        "load.instance_kind": "CPU",
        "load.instance_name": "m_0",
        "load.inputs": ("IN",),
        "load.outputs": ("OUT",),
        "load.is_decoupled": False,
        "load.writes_stacks": False,
        "code.file": f"{folder}/1/model.py",
        "code.utils_dir": str(host.layout.artifacts_dir),
        "code.environment": "chosen by ",
        "code.imports_from_cwd": False,
    }
    assert {name: found[name] for name in expected} == expected


THREADS = dict.fromkeys(loader.THREAD_VARIABLES)
USER = GuestUser(7, 8, "other", "/home/other")


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("more", "settings", "expected"),
    [
        (parameter("HANG_SECONDS", 5), {}, {"hang_seconds": 5.0, "load.writes_stacks": True}),
        ("", {"hang_seconds": 3.0}, {"hang_seconds": 3.0, "load.writes_stacks": True}),
        (parameter("HANG_SECONDS", 0), {"hang_seconds": 3.0}, {}),
        (parameter("memory_limit", "1GiB"), {}, {"memory_limit": None, "load.memory_limit": 1 << 30}),
        ("", {"busy_poll_us": 9}, {"busy_poll_us": 9, "load.busy_poll_us": 9}),
        ("", {"log_rate": 9}, {"log_rate": 9}),
        ("", {"gpu_pools": {"ab": 1}}, {"load.gpu_pools": {"ab": 1}}),
        ("", {"start_timeout": 7.0}, {"start_timeout": 7.0}),
        ("model_transaction_policy { decoupled: true }", {}, {"load.is_decoupled": True}),
        ("", {"guest_env": ["X*"]}, {}),
        ("", {"guest_env": []}, {"environ": {"XDG_DATA_HOME": None}}),
        (
            "",
            {"guest_user": USER},
            {
                "user": USER,
                "environ": {"XDG_DATA_HOME": None, "HOME": "/home/other", "USER": "other", "LOGNAME": "other"},
            },
        ),
        (
            "",
            {"guest_user": GuestUser(7, 8)},
            {"user": GuestUser(7, 8), "environ": {"XDG_DATA_HOME": None, "HOME": "/"}},
        ),
        (
            "",
            {"debugged": ("m", "pdb")},
            {"start_timeout": inf, "at_terminal": True, "environ": {"NAIAD_STUB_DEBUG": "pdb"}},
        ),
        (
            parameter("HANG_SECONDS", 5),
            {"debugged": ("m", "pdb")},
            {
                "start_timeout": inf,
                "load.writes_stacks": True,
                "at_terminal": True,
                "environ": {"NAIAD_STUB_DEBUG": "pdb"},
            },
        ),
        ("", {"debugged": ("other", "pdb")}, {}),
        (parameter("PREWARM", "json"), {}, {"prewarm": None}),
        ("", {"prewarm": True}, {"prewarm": None}),
        (
            parameter("PREWARM", "json"),
            {"debugged": ("m", "pdb")},
            {"start_timeout": inf, "at_terminal": True, "environ": {"NAIAD_STUB_DEBUG": "pdb"}},
        ),
    ],
)
def test_settings_and_parameters_change_just_what_they_are_about(host, more, settings, expected):
    usual = spec_of(host)
    now = spec_of(host, more, **settings)
    changed = {name for name in now if now[name] != usual[name]} - {"load.model_config"}
    assert changed == set(expected)
    for name, value in expected.items():
        if name == "environ":
            kept = {**usual["environ"], **value}
            assert now["environ"] == {key: text for key, text in kept.items() if text is not None}
        elif value is not None:
            assert now[name] == value


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("more", "count", "started"),
    [
        (instances(3), 3, 3),
        (instances(2) + instances(1).replace("KIND_CPU", "KIND_MODEL"), 3, 3),
        (parameter("max_instances", 4) + parameter("min_instances", 2), 4, 2),
    ],
)
def test_the_instances_of_a_model_share_the_processors(host, monkeypatch, more, count, started):
    monkeypatch.setattr(loader, "threads_each", lambda number: f"1/{number}")
    host.add("m", more=more)
    host.run(host.load)
    specs = host.specs()
    assert len(specs) == started
    for spec in specs:
        assert {spec.environ[name] for name in loader.THREAD_VARIABLES} == {f"1/{count}"}
        assert spec.environ["OPENBLAS_THREAD_TIMEOUT"] == "20"


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("more", "may_complete", "lanes"),
    [
        ("", False, []),
        (instances(2) + parameter("native_shared_model", "true"), True, ["m_0_0", "m_0_1"]),
        (instances(1) + parameter("native_shared_model", "true"), True, []),
        (instances(2), False, []),
        (instances(2) + parameter("native_shared_model", "true") + "sequence_batching {}", False, []),
    ],
)
def test_a_native_backend_gets_the_variables_of_the_server_and_may_run_all_instances_in_one_process(
    host, more, may_complete, lanes
):
    host.library = dataclasses.replace(NATIVE, may_complete=may_complete)
    host.environment = {"environ": lambda _: {"ONLY": "the interpreter's"}}
    host.add("m", more=more)
    host.run(host.load)
    specs = host.specs()
    assert len(specs) == (1 if lanes else max(1, more.count("count: 2") * 2))
    code = specs[0].load.code
    assert isinstance(code, NativeCode)
    assert (code.file, code.backend, list(code.lanes)) == ("/b/libtriton_b.so", "python", lanes)
    assert (code.auto_completes, code.may_set_config) == (False, may_complete)
    assert orjson.loads(code.backend_config)["cmdline"]["default-max-batch-size"] == "4"
    assert code.environ.items() >= BASIC.items()
    assert "OMP_NUM_THREADS" in code.environ
    assert specs[0].environ["ONLY"]
    assert "HOME" not in specs[0].environ
    assert [spec.load.code.auto_completes for spec in host.completions] == [True] * may_complete


def test_a_model_under_the_servers_own_interpreter_says_so(host):
    host.environment = {"is_host": True, "lease": None}
    found = spec_of(host)
    assert (found["code.environment"], found["lease"], found["restore"]) == (
        "the server's own interpreter",
        False,
        False,
    )
    assert found["code.imports_from_cwd"] is loader.imports_from_working_directory()


async def test_a_notice_about_a_file_of_several_models_is_logged_once(host, monkeypatch, caplog):
    found = loader.resolve
    monkeypatch.setattr(
        loader, "resolve", lambda *given, **more: dataclasses.replace(found(*given, **more), notices=("an odd file",))
    )
    caplog.set_level(logging.INFO)
    for name in ("m", "n"):
        host.add(name)
        await host.load(name)
    assert [each.getMessage() for each in caplog.records].count("an odd file") == 1


def test_an_activated_environment_that_does_not_reach_a_model_is_reported_once(host, caplog):
    class Activated:
        def warning_about(self, model: str, python: Path) -> str:
            return "" if model == "a" else f"{model} runs with {python}"

    chosen = parameter("EXECUTION_ENV_PATH", host.folder)
    native = dataclasses.replace(NATIVE, may_complete=False)

    async def check() -> None:
        for name, more, library in (
            ("c", chosen, None),
            ("d", "", native),
            ("a", "", None),
            *((each, "", None) for each in "mn"),
        ):
            host.library = library
            host.add(name, more=more)
            await host.load(name)

    host.run(check, activated=Activated())
    assert [each.getMessage() for each in caplog.records] == ["m runs with /env/bin/python"]


# -- what is seen of a load


def refusal(host: Host, name: str) -> str:
    """What a request to a model is refused with; empty if it is not."""
    try:
        host.version(name)
    except NaiadError as error:
        return f"{error.code.value}: {error.message}"
    return ""


async def test_each_step_of_a_load_is_in_the_index_and_in_the_refusal_of_a_request(host, monkeypatch):
    host.add("n", more=TWO, code=COMPLETING)
    seen: list[str] = []
    refused: list[str] = []
    report = blocking.report

    def look() -> None:
        seen.extend(host.index())
        refused.append(refusal(host, "n"))

    def report_and_look(*arguments: Any) -> None:
        report(*arguments)
        look()

    monkeypatch.setattr(blocking, "report", report_and_look)
    loading = asyncio.ensure_future(host.load("n"))
    while not loading.done():
        await asyncio.sleep(0)
        look()
    first = ["waiting for other loads", "fetching its files", "reading its configuration", "preparing its environment"]
    steps = ["preparing its environment", "completing its configuration", "starting its processes"]
    loading = [*(f"n  LOADING: {step}" for step in first), *(f"n 1 LOADING: {step}" for step in steps)]
    assert list(dict.fromkeys(seen)) == [*loading, "n 1 READY: "]
    text = "Unavailable: Request for unknown model: 'n' has no available versions: it is loading ({})"
    assert list(dict.fromkeys(refused)) == [
        "Not found: Request for unknown model: 'n' is not found",
        *(text.format(step) for step in (*first, *steps[1:])),
        "",
    ]


async def test_the_reason_of_a_failed_load_is_shown_until_a_version_is_loaded_again(host, monkeypatch):
    host.add("m", "max_batch_size: x")
    seen: list[list[str]] = []
    report = blocking.report

    def report_and_look(*arguments: Any) -> None:
        report(*arguments)
        seen.append(host.index())

    await host.fail()
    failed = host.index()
    host.add("m")
    monkeypatch.setattr(blocking, "report", report_and_look)
    await host.load()
    *before, begun = seen
    assert before == [failed] * 3, "a step each"
    assert begun == ["m 1 LOADING: building"]


async def test_a_load_that_builds_says_what_is_built_and_one_that_failed_nothing_more(host):
    host.add("m")
    host.environment = ExecutionEnvironmentError("cannot build")
    loading = asyncio.ensure_future(host.fail())
    while not refusal(host, "m").endswith("'m' has no available versions: it is loading (building)"):
        await asyncio.sleep(0)
    await loading
    assert refusal(host, "m") == "Not found: Request for unknown model: 'm' has no available versions"
    assert host.index() == ["m 1 UNAVAILABLE: Internal: cannot build"]


def test_no_name_is_unknown_before_the_repositories_were_read_at_the_start(host):
    host.add("m")
    host.add("n", more=parameter("LOAD_AFTER", "m"))
    seen: list[str] = []

    async def check() -> None:
        host.start(is_explicit=False)
        before = refusal(host, "n")
        starting = asyncio.ensure_future(host.engine.start())
        while not starting.done():
            assert (host.engine.is_live(), host.engine.is_ready(), host.engine.is_started()) == (True, False, False)
            seen.extend(each for each in host.index() if each.startswith("n"))
            assert not refusal(host, "n").startswith("Not found")
            await asyncio.sleep(0)
        assert (before, refusal(host, "x")) == (
            "Unavailable: Server not ready",
            "Not found: Request for unknown model: 'x' is not found",
        )
        assert (host.engine.is_ready(), host.engine.is_started()) == (True, True)
        await host.engine.stop()

    Clock.run(host, check())
    assert list(dict.fromkeys(seen))[:2] == [
        "n  LOADING: waiting for other loads",
        "n  LOADING: waiting for other models",
    ]
