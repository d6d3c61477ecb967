"""Poll mode notices an environment that was replaced elsewhere than in the model's folder."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from naiad.config.model.environment_source import EnvironmentSource
from naiad.engine.loading import unchanged
from naiad.engine.loading.polling import Poller
from naiad.engine.loading.unchanged import environments_signature
from naiad.engine.registry import Registry
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
