"""Models that serve and change: loaded again, handed over, put to sleep, scaled and unloaded."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine.loading.host import CODE, COMPLETING, UNNAMED, Guest, Host, instances, parameter
from fakes.clock import turns
from naiad_stub.load_spec import NativeCode

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.server.metrics_options import MetricsConfig
from naiad.core import blocking
from naiad.core.errors import Code, ModelError, NaiadError
from naiad.engine.loading import instance_change, loader, unchanged
from naiad.engine.response_cache import ResponseCache
from naiad.engine.serving.dormant import DormantVersion
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.repositories import LocalRepository, Repositories
from naiad.models.resolution.native_library import NativeLibrary
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START

SCALED = parameter("min_instances", 1) + parameter("max_instances", 3) + parameter("scale_idle_seconds", 10)
SEQUENTIAL = UNNAMED + "sequence_batching { direct {} max_sequence_idle_microseconds: 60000000 }\n"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged since the last call."""
    found = [each.getMessage() for each in caplog.records]
    caplog.clear()
    return found


def stops(guests: list[Guest]) -> list[Any]:
    """With which timeout each guest was stopped; None for those that were not."""
    return [next((call[1] for call in guest.calls if call[0] == "stop"), None) for guest in guests]


def give_up(version: Any) -> None:
    """The only instance of a version is given up."""
    (only,) = version.instances
    only.worker.is_running = False
    only.worker, only.reason = None, "it died too often"
    version.on_given_up(only, None)


# -- loaded again, or not


def environment(host: Host, path: str) -> Path:
    """A folder beside the repository."""
    folder = host.folder / path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


CHANGES: dict[str, tuple[Callable[[Host], object], bool]] = {
    "nothing": (lambda _: None, False),
    "bytecode": (lambda host: (host.folder / "models/m/1/x.pyc").write_text(""), False),
    "code": (lambda host: (host.folder / "models/m/1/model.py").write_text(CODE + " "), True),
    "older code": (lambda host: os.utime(host.folder / "models/m/1/model.py", (0, 0)), True),
    "a file": (lambda host: (host.folder / "models/m/data").write_text(""), True),
    "the environment": (lambda host: (environment(host, "e/bin") / "python").write_text("new"), True),
    "a package": (lambda host: (environment(host, "e/lib/python3.11/site-packages") / "x").write_text(""), True),
    "elsewhere in the environment": (lambda host: (environment(host, "e/share") / "x").write_text(""), False),
    "the environment is gone": (lambda host: (host.folder / "e").rename(host.folder / "f"), True),
    "configuration": (lambda host: host.add("m", more=in_environment(host) + parameter("x", "y")), True),
}


def in_environment(host: Host) -> str:
    return parameter("EXECUTION_ENV_PATH", host.folder / "e")


@pytest.mark.parametrize("what", CHANGES)
async def test_a_model_is_loaded_again_only_if_its_files_or_its_environment_have_changed(host, what, caplog):
    change, is_loaded = CHANGES[what]
    for path in ("e/bin", "e/lib/python3.11/site-packages", "e/share"):
        environment(host, path)
    host.add("m", more=in_environment(host))
    await host.load()
    before = host.version()
    change(host)
    with caplog.at_level(logging.INFO):
        if what == "the environment is gone":
            await host.fail()
        else:
            await host.load()
    assert (host.version() is not before) is (is_loaded and what != "the environment is gone")
    assert ("'m' is loaded and has not changed since" in said(caplog)) is not is_loaded
    # One that was given up is loaded again, as is one whose version failed.
    if not is_loaded:
        give_up(before)
        await host.load()
        assert host.version() is not before


async def test_a_model_of_which_one_version_was_given_up_is_loaded_again(host):
    host.add("m", more="version_policy { all {} }", versions=(1, 2))
    await host.load()
    give_up(host.version(number=1))
    before = host.version(number=1)
    await host.load()
    assert host.version(number=1) is not before


@pytest.mark.parametrize(
    ("outside", "changed", "is_loaded"),
    [("x", "x/model.py", True), ("x", "y/model.py", False), ("", "x/model.py", False)],
)
async def test_a_shared_backend_that_changes_has_its_models_loaded_again(host, outside, changed, is_loaded):
    for name in "xy":
        (host.folder / "backends" / name).mkdir(parents=True)
        (host.folder / "backends" / name / "model.py").write_text(CODE)
    host.add("m", UNNAMED.replace("python", outside or "python"))
    await host.load()
    assert host.guests[0].spec.load.code.is_shared is bool(outside)
    assert (host.version().config.json.get("runtime") == "model.py") is bool(outside)
    before = host.version()
    (host.folder / "backends" / changed).write_text(COMPLETING)
    await host.load()
    assert (host.version() is not before) is is_loaded


def test_an_environment_that_may_change_remotely_and_a_folder_that_cannot_be_read_are_always_loaded_again():
    def resolution(**facts: Any) -> Any:
        return SimpleNamespace(**{"environment": None, "outside_dir": None, **facts})

    source = EnvironmentSource(uri="https://host/e.tar", is_mutable=True)
    assert unchanged.version_signature({}, resolution(environment=source)) is None
    assert unchanged.version_signature({}, resolution(outside_dir=Path("/nosuch"))) is None
    assert unchanged.version_signature(None, resolution()) is None
    assert unchanged.version_signature({}, None) is None
    assert unchanged.version_signature({"a": (1,)}, resolution()) == {"a": (1,)}
    gone = unchanged.version_signature({}, resolution(environment=Path("/nosuch")))
    assert gone == {"/nosuch": ("gone",)}


async def test_what_is_loaded_with_files_of_the_request_is_always_loaded_again(host):
    for _ in range(2):
        config = '{"backend": "python", "input": [], "output": []}'
        await host.load(config=config, **{"file:1/model.py": CODE.encode()})
    assert len(host.guests) == 2
    assert stops(host.guests) == [30, None]
    await asyncio.sleep(1)
    folders = [Path(guest.spec.load.model_dir) for guest in host.guests]
    assert list(map(Path.is_dir, folders)) == [False, True]
    await host.engine.unload("m")
    await asyncio.sleep(1)
    assert list(map(Path.is_dir, folders)) == [False, False]


async def test_a_configuration_of_a_request_holds_until_the_next_load(host):
    host.add("m", more=instances(1))
    sent = json.dumps({"backend": "python", "max_batch_size": 3, "instance_group": [{"count": 2, "kind": "KIND_CPU"}]})
    seen = []
    for parameters in ({}, {"config": sent}, {}, {"config": sent, "file:1/model.py": CODE.encode()}, {}):
        await host.load(**parameters)
        version = host.version()
        seen.append((version.number, version.config.max_batch_size, len(version.instances)))
    assert [each[1:] for each in seen] == [(0, 1), (3, 2), (0, 1), (3, 2), (0, 1)]
    assert len({number for number, *_ in seen}) == 5


async def test_requests_in_flight_are_answered_by_the_version_that_has_them(host, caplog):
    host.add("m")
    await host.load()
    first = host.ask()
    host.add("m", more=parameter("x", "y"))
    with caplog.at_level(logging.INFO):
        assert await host.load(), "the replaced version is still ending"
    assert "'m': replaced instances still have requests in flight, and end after these" in said(caplog)
    second = host.ask()
    old, new = host.guests
    assert [len(each.executed) for each in (old, new)] == [1, 1]
    new.answer()
    assert second.is_ended
    assert not first.is_ended
    assert stops(host.guests) == [None, None]
    old.answer()
    assert first.is_ended
    await asyncio.sleep(0.1)
    assert [timeout is None for timeout in stops(host.guests)] == [False, True]
    host.assert_nothing_is_left("m")
    assert not await host.load()


@pytest.mark.settings(exit_timeout=6)
async def test_a_replaced_version_has_the_exit_timeout_for_its_requests(host):
    host.add("m")
    await host.load()
    host.ask()
    host.add("m", more=parameter("x", "y"))
    await host.load()
    await asyncio.sleep(5.3)
    assert stops(host.guests) == [None, None]
    await asyncio.sleep(0.3)
    assert stops(host.guests) == [0.1, None]


@pytest.mark.parametrize("is_ended", [True, False], ids=["they end", "the time ends"])
def test_sequences_stay_with_the_version_that_has_begun_them(host, is_ended):
    def ask(number: int, flags: int = 0) -> int:
        """The guest that gets it, by its number."""
        before = [len(guest.executed) for guest in host.guests]
        host.ask(correlation_id=number, flags=flags)
        (chosen,) = [at for at, guest in enumerate(host.guests) if len(guest.executed) > (*before, 0)[at]]
        host.guests[chosen].answer()
        return chosen

    async def check() -> None:
        await host.load()
        assert ask(1, SEQUENCE_START) == 0
        for number in (1, 2):
            host.add("m", SEQUENTIAL, more=parameter("x", number))
            await host.load()
            assert ask(number + 1, SEQUENCE_START) == number
        record = host.registry.record("m").versions[1]
        assert len(record.handover.olds) == 2
        assert [ask(number) for number in (1, 2, 3)] == [0, 1, 2]
        assert host.registry.versions_alive.keys() > {host.version().number}
        await asyncio.sleep(1)
        assert stops(host.guests) == [None] * 3
        if is_ended:
            assert ask(1, SEQUENCE_END) == 0
            await asyncio.sleep(0.2)
            assert record.handover.olds == [record.handover.olds[0]]
            assert ask(2, SEQUENCE_END) == 1
            await asyncio.sleep(0.2)
        else:
            await asyncio.sleep(6.5)
        assert record.handover is None
        assert [each is None for each in stops(host.guests)] == [False, False, True]
        assert ask(3) == 2
        host.assert_nothing_is_left("m")
        await host.engine.unload("m")
        await asyncio.sleep(10)
        host.assert_nothing_is_left()

    host.add("m", SEQUENTIAL)
    host.run(check, exit_timeout=5)


async def test_the_sequences_of_an_old_version_are_not_waited_for_once_the_model_is_unloaded(host):
    host.add("m", SEQUENTIAL)
    await host.load()
    host.ask(correlation_id=1, flags=SEQUENCE_START)
    host.guests[0].answer()
    host.add("m", SEQUENTIAL, more=parameter("x", "y"))
    await host.load()
    await asyncio.sleep(1)
    assert stops(host.guests) == [None, None]
    await host.engine.unload("m")
    await asyncio.sleep(0.2)
    assert None not in stops(host.guests)
    host.assert_nothing_is_left()


# -- versions


async def test_the_version_policy_decides_which_versions_serve(host, caplog):
    host.add("m", versions=(1, 2, 3))
    await host.load()
    assert host.index() == ["m 3 READY: "]
    host.add("m", more="version_policy { specific { versions: [1, 3] } }")
    await host.load()
    await asyncio.sleep(1)
    assert host.index() == ["m 1 READY: ", "m 3 READY: "]
    with caplog.at_level(logging.INFO):
        host.add("m", more="version_policy { specific { versions: 1 } }")
        await host.load()
        await asyncio.sleep(1)
    assert host.index() == ["m 1 READY: ", "m 3 UNAVAILABLE: unloaded"]
    assert "successfully unloaded 'm' version 3" in said(caplog)
    # A version that fails keeps those that are not selected any more.
    host.failures = [ModelError("no"), ModelError("no")]
    host.add("m", more="version_policy { latest { num_versions: 2 } }")
    error = await host.fail()
    assert error.message == (
        "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: no;\n"
        "version 3 is at UNAVAILABLE state: Internal: no;\n"
    )
    assert host.index() == ["m 1 READY: ", "m 2 UNAVAILABLE: Internal: no", "m 3 UNAVAILABLE: Internal: no"]


async def test_loading_and_unloading_are_logged_and_counted(host, caplog):
    host.add("m", COMPLETE_LABELS)
    (host.folder / "models" / "m" / "l.txt").write_text("cat\ndog")
    with caplog.at_level(logging.INFO):
        loading = asyncio.ensure_future(host.load())
        while host.index() != ["m 1 LOADING: building"]:
            await turns(1)
        host.advance(1.5)
        await loading
    assert [each for each in said(caplog) if "load" in each] == [
        "loading: m:1",
        "successfully loaded 'm' in 1.50 s",
    ]
    served = host.version()
    assert served.totals.load_ns == 1_500_000_000
    assert served.statistics().load_seconds == 1.5
    assert served.metadata.outputs[0].labels == ("cat", "dog")
    assert served.resolution.backend == "python"
    assert host.loader.launching.is_set()
    assert (host.loader.resolutions["m", 1], host.loader.steps) == (served.resolution, {})
    assert host.prepared == [(None, "m")]
    answers = host.ask()
    await host.engine.unload("m")
    await turns(3)
    assert host.index() == ["m 1 UNLOADING: "]
    assert host.registry.record("m").versions[1].leaving is served
    host.guests[0].answer()
    assert answers.is_ended
    await asyncio.sleep(0.1)
    assert host.index() == ["m 1 UNAVAILABLE: unloaded"]
    host.assert_nothing_is_left()
    await host.load()
    assert host.index() == ["m 1 READY: "]


COMPLETE_LABELS = UNNAMED.replace('"OUT"', '"OUT" label_filename: "l.txt"')


async def test_a_model_that_is_loaded_while_it_is_unloaded_serves(host):
    host.add("m")
    await host.load()
    host.ask()
    await host.engine.unload("m")
    await turns(3)
    await host.load()
    assert host.index() == ["m 1 READY: "]
    host.guests[0].answer()
    await asyncio.sleep(0.1)
    assert host.index() == ["m 1 READY: "]
    assert stops(host.guests)[1] is None
    host.assert_nothing_is_left("m")


def test_the_server_waits_for_what_is_being_unloaded(host):
    host.add("m")

    async def check() -> None:
        await host.load()
        host.ask()
        await host.engine.unload("m")

    host.run(check)
    assert stops(host.guests) != [None]


async def test_a_resolution_that_fails_keeps_its_steps_for_explanations(host):
    host.add("m", more=parameter("EXECUTION_ENV_PATH", "nosuch"))
    await host.fail()
    assert [step.subject for step in host.loader.steps["m", 1]][:1] == ["backend"]
    assert host.loader.resolutions == {}
    host.add("m")
    await host.load()
    assert host.loader.steps == {}
    assert list(host.loader.resolutions) == [("m", 1)]
    assert host.loader.activity() == {"m": "building"}


def test_what_a_version_counts_is_as_the_settings_say(host, monkeypatch):
    async def check() -> None:
        host.add("m")
        await host.load()
        served = host.version()
        is_measured = host.engine._settings.counts_latencies
        assert (served.totals.latencies is None, served.totals.durations is None) == (not is_measured,) * 2
        assert served.totals.namespace == ""
        waiting: list[None] = []
        calls = host.engine._order._loads._services.calls
        monkeypatch.setattr(calls, "on_call_waiting", lambda: waiting.append(None))
        host.add("m", more=parameter("x", "y"))
        await host.load()
        give_up(host.version())
        assert waiting == [None], "a call may wait for an instance that there is no more"

    host.run(check)
    host.run(check, metrics=MetricsConfig(summaries=True), counts_latencies=True)


def test_a_version_of_a_namespace_counts_for_that(host):
    folder = host.add("m").parent
    repositories = Repositories([LocalRepository(folder)], is_namespaced=True)

    async def check() -> None:
        await host.load()
        assert host.version().totals.namespace == str(folder)

    host.run(check, repositories=repositories)


# -- ensembles


async def test_an_ensemble_serves_what_its_members_do_and_fails_without_them(host, caplog):
    steps = 'step { model_name: "m" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }'
    text = UNNAMED.replace('backend: "python"', 'platform: "ensemble"') + f"ensemble_scheduling {{ {steps} }}"
    host.add("e", text)
    host.add("other", text.replace('"m"', '"nosuch"'))
    host.add("m")
    error = await host.fail("other")
    reason = "ensemble other contains models that are not available or ambiguous: nosuch"
    assert error.message == f"load failed for model 'other': {reason}\n"
    assert reason in said(caplog)
    assert host.index() == [f"other  UNAVAILABLE: {reason}"]
    await host.load("e")
    assert host.index()[:2] == ["e 1 READY: ", "m 1 READY: "]
    answers = host.ask("e")
    host.guests[0].answer()
    assert answers.is_ended
    loads = host.engine._order._loads
    assert (loads.needs["e"], set(loads.ensembles)) == ({"m"}, {"e", "other"})
    before = host.version("e")
    await host.load("e")  # cheap, and its members may have changed
    assert host.version("e") is not before
    host.add("e")
    await host.load("e")
    assert ("e" in loads.needs, set(loads.ensembles)) == (False, {"other"})


# -- on demand


def test_a_model_on_demand_is_described_without_its_guests_and_counts_through_its_loads(host):
    host.add("m", COMPLETE_LABELS, code=COMPLETING, more=parameter("PREWARM", "json"))
    (host.folder / "models" / "m" / "l.txt").write_text("cat")
    host.add("incomplete", 'backend: "python"', code=COMPLETING)
    host.add("pinned", more=parameter("demand", "pinned"))
    host.completed = {"input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}]}

    async def check() -> None:
        assert host.index() == ["incomplete 1 READY: ", "m 1 READY: ", "pinned 1 READY: "]
        assert [guest.spec.load.model_name for guest in host.guests] == ["pinned"]
        assert [spec.load.model_name for spec in host.completions] == ["incomplete"]
        assert host.completions[0].load.completes_config
        assert host.engine.model_metadata("m").outputs[0].labels == ("cat",)
        assert [each.name for each in host.engine.model_metadata("incomplete").inputs] == ["IN"]
        assert [server.is_running for server in host.fork_servers] == [True]
        assert host.fork_servers[0].modules == ("numpy", "json")
        known = [host.version(name).is_known for name in ("m", "incomplete")]
        assert known == [False, True]
        answers = host.ask()
        await asyncio.sleep(0.1)
        host.guests[-1].answer()
        assert answers.is_ended
        assert host.version().statistics().success.count == 1
        ending = host.engine._order._loads.put_to_sleep("m")
        assert isinstance(host.version(), DormantVersion)
        assert host.engine.model_metadata("m").outputs[0].labels == ("cat",)
        await asyncio.gather(*ending)
        assert [each.is_running for each in host.guests] == [True, False]
        assert host.version().statistics().success.count == 1
        assert [server.is_running for server in host.fork_servers] == [True], "it stays for the next load"
        host.ask()
        await asyncio.sleep(0.1)
        host.guests[-1].answer()
        assert host.version().statistics().success.count == 2
        assert host.engine.demand_status().loads == {"m": 2}
        # A version that a request has woken is not loaded again.
        await host.engine._order.wake("m")
        await host.engine._order.wake("nosuch")
        assert len(host.guests) == 3

    host.run(check, is_demand=True, is_explicit=False)
    assert [server.is_running for server in host.fork_servers] == [False]


def test_a_model_on_demand_that_is_loaded_again_sleeps_on_or_serves_on_and_keeps_its_counts(host):
    on_demand = parameter("demand", "true")
    host.add("m", more=on_demand)

    async def answer() -> None:
        answers = host.ask()
        await asyncio.sleep(0.1)
        host.guests[-1].answer()
        assert answers.is_ended

    async def check() -> None:
        await host.load()
        await answer()
        for number, is_dormant in enumerate((False, True)):
            if is_dormant:
                await asyncio.gather(*host.engine._order._loads.put_to_sleep("m"))
            before = host.version()
            host.add("m", more=on_demand + parameter("x", number))
            await host.load()
            assert host.version() is not before
            assert isinstance(host.version(), DormantVersion) is is_dormant
            if is_dormant:
                assert host.version().statistics().success.count == 1
                await answer()
                assert host.version().statistics().success.count == 2
            else:
                await answer()

    host.run(check)


@pytest.mark.parametrize("code", [CODE, COMPLETING])
def test_a_model_on_demand_whose_configuration_is_invalid_is_not_served_if_a_load_cannot_complete_it(host, code):
    host.add("m", UNNAMED.replace("dims: 2", "dims: 0", 1), code=code)

    async def check() -> None:
        is_invalid = code == CODE
        assert host.index()[0].startswith("m 1 UNAVAILABLE: " if is_invalid else "m 1 READY: ")

    host.run(check, is_demand=True, is_explicit=False)


@pytest.mark.parametrize(
    ("text", "code", "settings", "completes"),
    [
        (UNNAMED, CODE, {}, 0),
        (UNNAMED, COMPLETING, {}, 1),
        (UNNAMED, COMPLETING, {"auto_complete": False}, 0),
    ],
)
def test_code_that_may_complete_the_configuration_is_asked(host, text, code, settings, completes):
    host.add("m", text, code=code)
    host.completed = {"max_batch_size": 3}
    host.run(host.load, **settings)
    assert len(host.completions) == completes
    assert [spec.load.completes_config for spec in host.completions] == [True] * completes
    assert [guest.spec.load.completes_config for guest in host.guests] == [False]
    assert ('"max_batch_size":3' in host.guests[0].spec.load.model_config) is bool(completes)


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch, host: Host) -> list[str]:
    """The functions for which the loop was left; each costs two switches between threads."""
    found: list[str] = []
    in_thread = blocking.run

    def run(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        found.append(function.__name__)
        return in_thread(function, *arguments, **options)

    monkeypatch.setattr(blocking, "run", run)
    return found


def test_the_load_of_a_model_leaves_the_loop_once(host, switches):
    for name in "abc":
        host.add(name, more=instances(2), versions=(1, 2))

    async def check() -> None:
        assert switches == ["scan", *["prepare"] * 3]

    host.run(check, is_explicit=False)


async def test_a_load_on_request_leaves_the_loop_once_more_to_find_what_it_names(host, switches):
    host.add("m", code=COMPLETING)
    switches.clear()
    await host.load()
    assert switches == ["find_sources", "prepare", "_checked"], "completing the configuration is on the loop"
    switches.clear()
    await host.load()
    assert switches == ["find_sources", "prepare"], "nothing has changed"


class Unfetchable(Repositories):
    """Repositories whose files cannot be fetched, as soon as `problem` is set."""

    problem: Exception | None = None

    def fetch(self, files: ModelFiles) -> None:
        if self.problem is not None:
            raise self.problem


def test_files_that_cannot_be_fetched_are_an_error_of_the_load_and_what_served_stays(host, caplog):
    host.add("m")
    repositories = Unfetchable()
    repositories.add(LocalRepository(host.folder / "models"))

    async def check() -> None:
        repositories.problem = NaiadError("no such bucket", code=Code.UNAVAILABLE)
        error = await host.fail()
        assert (error.message, error.code) == ("failed to load 'm': no such bucket", Code.UNAVAILABLE)
        assert host.index() == ["m  UNAVAILABLE: no such bucket"]
        assert "failed to load 'm': no such bucket" in said(caplog)
        repositories.problem = None
        await host.load()
        repositories.problem = NaiadError("no such bucket")
        await host.fail()
        assert host.index() == ["m 1 READY: "]
        repositories.problem = ValueError("odd")
        with pytest.raises(ValueError, match="odd"):
            await host.load()
        assert host.index() == ["m 1 READY: "]

    host.run(check, repositories=repositories)


async def test_an_ensemble_that_is_sent_with_its_load_has_its_members_loaded(host):
    host.add("m")
    host.add("e")
    tensor = {"data_type": "TYPE_FP32", "dims": [2]}
    step = {"model_name": "m", "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
    config = {
        "platform": "ensemble",
        "input": [{"name": "IN", **tensor}],
        "output": [{"name": "OUT", **tensor}],
        "ensemble_scheduling": {"step": [step]},
    }
    await host.load("e", config=json.dumps(config))
    assert sorted(model.key for model in host.registry if model.serving()) == ["e", "m"]


async def test_only_the_last_load_of_a_prewarmed_model_ends_its_fork_server(host):
    for name in ("m", "n"):
        host.add(name, more=parameter("PREWARM", "json"), code=COMPLETING)
    await host.load("m")
    await host.load("n")
    assert len(host.fork_servers) == 1
    for name, is_running in (("m", True), ("n", False)):
        await host.engine.unload(name)
        await asyncio.sleep(1)
        assert [server.is_running for server in host.fork_servers] == [is_running]


# -- the cache


@pytest.mark.settings(response_cache_size=10**6)
async def test_the_responses_of_a_version_are_kept_until_it_ends(host):
    host.add("m", more="response_cache { enable: true }")
    host.add("n")
    for name in ("m", "n"):
        await host.load(name)
        first = host.ask(name)
        host.guests[-1].answer()
        assert first.is_ended
        assert host.ask(name).is_ended is (name == "m")
    host.guests[-1].answer()
    cache = host.engine.response_cache
    assert isinstance(cache, ResponseCache)
    assert cache.statistics().entries == 1
    await host.engine.unload("m")
    await asyncio.sleep(1)
    assert cache.statistics().entries == 0


# -- instances


async def test_a_change_of_instances_alone_starts_and_ends_only_those(host, caplog):
    host.add("m", more=instances(2))
    await host.load()
    before = host.version()
    kept = host.ask()
    host.add("m", more=instances(3))
    with caplog.at_level(logging.INFO):
        await host.load()
    assert [guest.spec.name for guest in host.guests] == ["m_0_0", "m_0_1", "m_0_2"]
    assert said(caplog)[-1].startswith("successfully loaded 'm' in 0.00 s")
    for message in ("is loaded and has not changed since", "version 1: all stay", "has not changed since"):
        with caplog.at_level(logging.INFO):
            await host.load()
        assert any(each.endswith(message) for each in said(caplog))
        host.add("m", more=instances(3) + "# a comment")
        os.utime(host.folder / "models/m/config.pbtxt", (1, 1))
    assert len(host.guests) == 3
    host.add("m", more=instances(1))
    await host.load()
    await asyncio.sleep(1)
    assert host.version() is before
    assert host.index() == ["m 1 READY: "]
    assert [each is None for each in stops(host.guests)] == [True, False, False]
    host.guests[0].answer()
    assert kept.is_ended
    await host.load()
    assert host.version() is before
    host.failures = [ModelError("no")]
    host.add("m", more=instances(2))
    await host.fail()
    assert (len(before.instances), host.index()) == (1, ["m 1 READY: "])
    host.assert_nothing_is_left("m")
    # Instances that were given up are tried again by a whole load.
    give_up(before)
    await host.load()
    assert host.version() is not before


@pytest.mark.parametrize(
    ("more", "now", "expected"),
    [
        ("", "1/3", {}),
        ("", "1/3", {"MKL_NUM_THREADS": "7"}),
        (SCALED, "1/3", {}),
    ],
    ids=["by default", "with a variable of the environment", "that follow the load"],
)
async def test_instances_that_are_added_share_the_processors_with_the_others(host, monkeypatch, more, now, expected):
    for module in (loader, instance_change):
        monkeypatch.setattr(module, "threads_each", lambda number: f"1/{number}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1/2")  # the user's, who may have chosen what is usual
    host.environment = {"environ": lambda own: {**own, **expected}}
    host.add("m", more=more or instances(2))
    await host.load()
    if more:
        for _ in range(4):
            host.ask()
        await asyncio.sleep(1)
    else:
        host.add("m", more=instances(3))
        await host.load()
    spec = host.guests[-1].spec
    expected.setdefault("MKL_NUM_THREADS", now)
    assert {name: spec.environ[name] for name in (*expected, "OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS")} == {
        **expected,
        "OMP_NUM_THREADS": "1/2",
        "NUMEXPR_NUM_THREADS": now,
    }
    assert (spec.name, spec.load.instance_name) == (host.version().instances[-1].name,) * 2
    (group,) = json.loads(spec.load.model_config)["instance_group"]
    assert group["count"] == len(host.version().instances)


@pytest.mark.parametrize(
    ("now", "started"),
    [
        (instances(2).replace("KIND_CPU", "KIND_MODEL"), 2),
        (instances(2, "rate_limiter { priority: 2 }"), 2),
        (instances(2, 'name: "m_0"'), 0),
        (instances(2) + "version_policy { latest { num_versions: 3 } }", 0),
    ],
    ids=["another kind", "something else of the group", "the name that it had", "the versions"],
)
async def test_instances_are_started_again_if_more_than_their_number_changes(host, now, started):
    host.add("m", more=instances(2))
    await host.load()
    before = host.version()
    host.add("m", more=now)
    await host.load()
    assert host.version() is before
    assert len(host.guests) == 2 + started
    kind = "MODEL" if "KIND_MODEL" in now else "CPU"
    assert [guest.spec.load.instance_kind for guest in host.guests[2:]] == [kind] * started
    assert before.config.message.version_policy.latest.num_versions == (3 if "latest" in now else 1)


async def test_sequences_keep_the_instances_that_have_them(host):
    host.add("m", SEQUENTIAL, more=instances(2))
    await host.load()
    before = host.version()
    host.ask(correlation_id=1, flags=SEQUENCE_START)
    host.add("m", SEQUENTIAL, more=instances(3))
    await host.load()
    assert host.version() is before, "instances are added"
    host.add("m", SEQUENTIAL, more=instances(1))
    await host.load()
    is_first = any(guest.executed for guest in host.guests[:1])
    assert (host.version() is before) is is_first


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (instances(2), instances(3) + parameter("x", "y")),
        (instances(1, 'name: "a"'), instances(1, 'name: "a"') + instances(1, 'name: "a"')),
        (instances(2), instances(2, 'rate_limiter { resources { name: "R" count: 1 } }')),
    ],
    ids=["something else", "a name twice", "resources"],
)
async def test_other_changes_load_the_model_again(host, before, now):
    host.add("m", more=before)
    await host.load()
    served = host.version()
    host.add("m", more=now)
    await host.load()
    assert host.version() is not served


async def test_the_instances_of_a_native_model_are_loaded_again_together(host):
    host.library = NativeLibrary(path=Path("/b/libtriton_b.so"))
    host.add("m", more=instances(1))
    await host.load()
    before = host.version()
    host.add("m", more=instances(2))
    await host.load()
    assert host.version() is not before
    assert isinstance(host.guests[-1].spec.load.code, NativeCode)


async def test_the_number_of_instances_follows_the_load(host, caplog):
    host.add("m", more=SCALED)
    await host.load()
    answers = [host.ask() for _ in range(4)]
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(0.35)
        assert len(host.version().instances) == 1
        await asyncio.sleep(0.4)
    assert any("'m': 2 instances instead of 1, since requests waited 0." in each for each in said(caplog))
    assert len(host.version().instances) == 2
    await asyncio.sleep(1)
    assert len(host.version().instances) == 3
    for _ in range(4):
        next(guest for guest in host.guests if guest.batches).answer()
    assert all(each.is_ended for each in answers)
    with caplog.at_level(logging.INFO):
        await asyncio.sleep(9)
        assert len(host.version().instances) == 3
        await asyncio.sleep(3)
    assert len(host.version().instances) == 1
    assert "'m': 1 instance instead of 3, since fewer are needed" in said(caplog)
    assert [each is None for each in stops(host.guests)] == [True, False, False]
    host.assert_nothing_is_left("m")
    await host.engine.unload("m")
    await asyncio.sleep(1)
    assert host.engine._scaling._versions == {}
    assert host.engine._scaling._watching.done()
    await host.load()
    assert not host.engine._scaling._watching.done()


async def test_instances_that_are_in_use_and_versions_that_were_replaced_are_not_scaled(host):
    host.add("m", more=parameter("max_instances", 4))
    await host.load()
    scale, served = host.engine._order.scale, host.version()
    await scale("m", served, 4)
    assert len(served.instances) == len(host.guests) == 4
    for _ in range(2):
        host.ask()
    await scale("m", served, 1)
    assert len(served.instances) == 2
    await scale("m", served, 2)
    assert len(host.guests) == 4
    for guest in host.guests[:2]:
        guest.answer()
    host.add("m", more=parameter("max_instances", 4) + parameter("x", "y"))
    await host.load()
    await asyncio.sleep(1)
    await scale("m", served, 3)
    assert len(host.guests) == 5


async def test_instances_that_cannot_be_added_are_tried_again_later(host, caplog):
    host.add("m", more=SCALED)
    await host.load()
    for _ in range(4):
        host.ask()
    host.failures = [ModelError("no luck")]
    await asyncio.sleep(1)
    assert said(caplog) == ["cannot add instances of 'm': no luck; tried again after 5 s"]
    assert len(host.version().instances) == 1
    await asyncio.sleep(3.5)
    assert len(host.version().instances) == 1
    host.failures = [ModelError("no luck")]
    await asyncio.sleep(2)
    assert said(caplog) == ["cannot add instances of 'm': no luck; tried again after 10 s"]
    await asyncio.sleep(11)
    assert len(host.version().instances) > 1
    assert next(iter(host.engine._scaling._versions.values())).state.failures == 0


async def test_nothing_is_scaled_after_the_stop(host):
    host.add("m", more=SCALED)
    await host.load()
    await host.engine._scaling.stop()
    host.add("m", more=SCALED + parameter("x", "y"))
    await host.load()
    for _ in range(4):
        host.ask()
    await asyncio.sleep(2)
    assert len(host.version().instances) == 1


async def test_a_model_that_is_changing_or_was_replaced_is_not_scaled(host, monkeypatch, caplog):
    host.add("m", more=SCALED)
    await host.load()
    served = host.version()
    for _ in range(4):
        host.ask()
    with monkeypatch.context() as patched:
        patched.setattr(host.engine._order, "is_changing", lambda _: True)
        await asyncio.sleep(2)
        assert len(served.instances) == 1
        patched.setattr(served, "instance_load", lambda: 1 / 0)
        patched.setattr(host.engine._order, "is_changing", lambda _: False)
        await asyncio.sleep(0.15)
    assert set(said(caplog)) == {"cannot read the load of models"}
    await asyncio.sleep(1)
    assert len(served.instances) > 1
