"""Poll mode: which models are loaded and unloaded after which look at the repositories, and when that is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock

from naiad.config.model.environment_source import EnvironmentSource
from naiad.core import blocking
from naiad.core.errors import NaiadError
from naiad.engine.loading import unchanged
from naiad.engine.loading.polling import Poller
from naiad.engine.loading.unchanged import environments_signature
from naiad.engine.registry import Registry
from naiad.models.repository.layout import DUPLICATE_REASON, ModelFiles
from naiad.models.repository.repositories import open_repositories


class Loaded:
    """A loaded version, of which only the resolution counts here."""

    def __init__(self, environment, model_dir):
        self.resolution = SimpleNamespace(environment=environment, model_dir=model_dir)


class Order:
    """Remembers what is to be loaded."""

    def __init__(self):
        self.loaded = []

    async def update(self, sources, _removed):
        self.loaded.append({key: sorted(source.kept) for key, source in sources.items()})
        return dict.fromkeys(sources)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A repository with a model of two versions, and a function that has it loaded in an environment."""
    monkeypatch.setattr(unchanged, "ModelVersion", Loaded)
    for number in "12":
        (tmp_path / "models" / "m" / number).mkdir(parents=True)
    registry = Registry()

    def load(environment):
        loaded = Loaded(environment, tmp_path / "models" / "m")
        monkeypatch.setattr(type(registry.record("m")), "serving", lambda _: [loaded])
        return registry

    return load


def test_a_replaced_archive_reloads_all_versions_once_it_has_settled(tmp_path, models):
    archive = tmp_path / "e.tar"
    archive.write_bytes(b"old")
    registry, order = models(archive), Order()
    repositories = open_repositories([tmp_path / "models"])
    poller = Poller(repositories, order, registry, 1)
    poller.begin(repositories.snapshot()[1], {"m": None})

    async def polls() -> list[bool]:
        unsettled = [await poller.poll_once(is_regular=True)]
        archive.write_bytes(b"newer")
        return [*unsettled, *[await poller.poll_once(is_regular=True) for _ in range(3)]]

    assert asyncio.run(polls()) == [False, True, False, False]
    assert order.loaded == [{"m": []}]


@pytest.mark.parametrize("place", ["models/m/e.tar", "folder", "uri", "none"])
def test_only_files_outside_the_model_are_examined(tmp_path, models, place):
    """Those inside are part of the model's own files, and directories change while somebody works in them."""
    (tmp_path / "folder").mkdir()
    environment = {"uri": EnvironmentSource(uri="https://host/e.tar"), "none": None}.get(place, tmp_path / place)

    assert environments_signature(models(environment).record("m")) == {}


def test_a_pinned_archive_is_examined(tmp_path, models):
    (tmp_path / "e.tar").write_bytes(b"x")
    source = EnvironmentSource(path=tmp_path / "e.tar", digest="0" * 64)

    assert environments_signature(models(source).record("m")).keys() == {str(tmp_path / "e.tar")}


class World(Clock):
    """Repositories whose files are the test's, and a record of what is loaded when.

    Attributes:
        files: The signature of each model's files: a text, or the time of each file; None if it could not be read.
        duplicates: Models that two repositories have.
        failures: Why models cannot be loaded.
        problem: Why the repositories cannot be read.
        done: Seconds since the start, what is loaded with the versions that stay, and what is unloaded.
    """

    def __init__(self, folder: Path, seconds: int = 10) -> None:
        super().__init__()
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.duplicates: dict[str, tuple[()]] = {}
        self.failures: dict[str, BaseException] = {}
        self.problem: Exception | None = None
        self.done: list[tuple[Any, ...]] = []
        self.looks: list[float] = []
        self.registry = Registry()
        self.poller = Poller(self, self, self.registry, seconds)  # type: ignore[arg-type] # both are this
        self.began = self.monotonic()

    def snapshot(self) -> tuple[Any, dict[str, Any]]:
        self.looks.append(round(self.monotonic() - self.began, 3))
        if self.problem is not None:
            raise self.problem
        models = {
            key: ModelFiles(name=key, repository=self.folder, directory=self.folder / key, namespace="")
            for key in self.files
        }
        signatures = {key: {"x": (each,)} if isinstance(each, str) else each for key, each in self.files.items()}
        return SimpleNamespace(models=models, duplicates=self.duplicates), signatures

    async def update(self, sources: Mapping[str, Any], removed: Collection[str]) -> dict[str, BaseException | None]:
        loaded = {key: sorted(each.kept) for key, each in sources.items()}
        self.done.append((round(self.monotonic() - self.began, 3), loaded, *removed))
        return {key: self.failures.get(key) for key in sources}

    def start(self) -> None:
        found, snapshot = self.snapshot()
        self.looks.clear()
        self.poller.begin(snapshot, {key: self.failures.get(key) for key in found.models})

    def watch(self, *changes: tuple[float, Any], until: float) -> list[tuple[Any, ...]]:
        """Poll, with changes of the files, or calls, at these times; what was done."""

        async def run() -> None:
            self.start()
            task = asyncio.ensure_future(self.poller.run())
            for when, files in changes:
                await asyncio.sleep(self.began + when - self.monotonic())
                if callable(files):
                    files()
                    continue
                for key, each in files.items():
                    if each == "gone":
                        del self.files[key]
                    else:
                        self.files[key] = each
            await asyncio.sleep(self.began + until - self.monotonic())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.run(run())
        return self.done


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    async def at_once(function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(blocking, "run", at_once)
    made = World(tmp_path)
    made.files["m"] = "first"
    return made


@pytest.fixture
def run_coroutine(world):
    return world.run


def test_a_change_is_loaded_at_the_second_look_that_shows_it(world):
    """The second look comes sooner; one for which nothing is unsettled waits for the usual pause."""
    done = world.watch((11, {"m": "second", "n": "new"}), (35, {"n": "gone"}), until=60)
    assert done == [(22, {"m": [], "n": []}), (44, {}, "n")]
    assert world.looks == [10, 20, 22, 32, 42, 44, 54]


def test_what_is_known_from_the_start_is_not_loaded_again(world):
    assert world.watch((15, {"m": "second"}), (16, {"m": "first"}), until=45) == []


def test_a_pause_that_is_shorter_than_the_time_to_settle_counts_for_both(tmp_path, world):
    world.poller = Poller(world, world, world.registry, 1)
    assert world.watch((1.5, {"m": "second"}), until=5) == [(3, {"m": []})]
    assert world.looks == [1, 2, 3, 4]


def test_without_seconds_the_repositories_are_looked_at_every_hour(world):
    world.poller = Poller(world, world, world.registry, 0)
    world.watch(until=3 * 3600 + 1)
    assert world.looks == [3600, 7200, 10800]


def test_files_that_keep_changing_are_left_alone_for_the_usual_pause_now_and_then(world):
    changes = [(9 + each, {"m": str(each)}) for each in range(120)]
    assert world.watch(*changes, until=129) == []
    gaps = [round(now - before, 3) for before, now in zip(world.looks, world.looks[1:], strict=False)]
    assert gaps == [2.0] * 29 + [10.0] + [2.0] * (len(gaps) - 30)


async def test_a_poll_on_request_waits_until_what_changed_is_loaded(world):
    world.start()
    await world.poller.poll()
    assert len(world.looks) == 1
    world.files["m"] = "second"
    await world.poller.poll()
    assert world.done == [(2.0, {"m": []})]
    world.looks.clear()
    world.files["m"] = "third"
    for _ in range(100):  # never settled: as long as something that settles needs
        asyncio.get_running_loop().call_later(_ * 0.9, world.files.update, {"m": str(_)})
    await world.poller.poll()
    assert len(world.looks) == 30


def test_only_the_versions_that_changed_are_loaded_again(world):
    for name in ("1", "2", "3"):
        (world.folder / "m" / name).mkdir(parents=True)
    before = {"config.pbtxt": (1,), "1/model.py": (1,), "2/model.py": (1,), "3/model.py": (1,)}
    world.files["m"] = before
    after = {**before, "2/model.py": (2,)}
    done = world.watch((15, {"m": after}), (35, {"m": {**after, "config.pbtxt": (2,)}}), until=60)
    assert [loaded for _, loaded in done] == [{"m": [1, 3]}, {"m": []}]
    # One that failed is loaded whole: the versions that stayed may have failed as well.
    world.failures["m"] = NaiadError("no")
    world.done.clear()
    done = world.watch((75, {"m": before}), (76, {"m": {**before, "2/model.py": (9,)}}), until=83)
    assert done[0][1] == {"m": []}


def test_models_that_failed_are_tried_after_ever_more_looks(world, caplog):
    world.failures = {"m": NaiadError("no"), "odd": ValueError("odd")}
    world.files["odd"] = "x"
    done = world.watch((35, {"n": "new"}), until=100)
    tried = [when for when, loaded, *_ in done if "m" in loaded]
    assert tried == [10, 20, 40, 82]  # the looks 1, 2, 4 and 8: those for something that settles do not count
    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert {each.getMessage() for each in logged} == {"loading 'odd' failed"}
    assert logged[0].exc_info[1] is world.failures["odd"]


def test_a_model_that_was_loaded_at_last_is_not_tried_again(world):
    world.failures = {"m": NaiadError("no")}
    assert world.watch((15, world.failures.clear), until=200) == [(10, {"m": []}), (20, {"m": []})]


def test_a_failed_model_that_is_removed_is_forgotten(world):
    world.failures = {"m": NaiadError("no")}
    assert world.watch((5, {"m": "gone"}), until=60) == [(12, {}, "m")]


def test_a_model_that_could_not_be_read_is_looked_at_again(world):
    world.files["new"] = None
    done = world.watch((15, {"new": "whole"}), until=40)
    assert done == [(18, {"new": []})]


def test_repositories_that_cannot_be_read_leave_the_models_as_they_are(world, caplog):
    world.problem = None

    async def check() -> None:
        world.start()
        task = asyncio.ensure_future(world.poller.run())
        for problem in (NaiadError("cannot read 's3://x'"), OSError("odd"), None):
            world.problem = problem
            await asyncio.sleep(10.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    world.run(check())
    assert world.done == []
    assert world.looks == [10, 20, 30], "not sooner"
    assert [each.getMessage() for each in caplog.records] == [
        "cannot read 's3://x'; models stay as they are",
        "cannot poll the model repositories",
    ]


def test_changes_are_logged(world, caplog):
    with caplog.at_level(logging.INFO):
        world.watch((5, {"m": "second", "n": "new"}), (15, {"n": "gone"}), (16, {"m": "third"}), until=40)
    assert [each.getMessage() for each in caplog.records] == [
        "model repositories changed: load m, n",
        "model repositories changed: load m; unload n",
    ]


async def test_a_model_of_two_repositories_is_reported_until_one_of_them_has_it(world):
    world.duplicates = {"d": (), "m": ()}

    def reason(key: str) -> str:
        model = world.registry.known(key)
        return "" if model is None else model.reason

    world.start()
    await world.poller.poll_once(is_regular=True)
    assert DUPLICATE_REASON == "model appears in two or more repositories"
    assert (reason("d"), reason("m")) == (DUPLICATE_REASON, "")
    world.registry.record("other").reason = "its own"
    world.files["d"] = "x"
    world.duplicates = {}
    await world.poller.poll_once(is_regular=True)
    assert reason("d") == DUPLICATE_REASON, "loading it replaces that"
    del world.files["d"]
    await world.poller.poll_once(is_regular=True)
    assert (reason("d"), reason("other")) == ("", "its own")
