"""An engine that loads models from a repository on disk. Its guests are the test's, and its time is too."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock, turns
from fakes.guests import PLAIN, Answers, FakeGuest, request
from packaging.specifiers import SpecifierSet

from naiad.config.model.model_config import ModelConfig
from naiad.core import blocking
from naiad.core.errors import NaiadError, fresh, without_frames
from naiad.engine.engine import Engine
from naiad.engine.loading import loader
from naiad.engine.loading.loader import Loader, LoadSettings
from naiad.engine.serving import instance
from naiad.engine.settings import EngineSettings
from naiad.guests import prewarm
from naiad.guests.launch import LaunchSpec
from naiad.models.repository.repositories import open_repositories
from naiad.models.resolution.decision import STUB_FILENAME, UTILS_FILENAME, GuestLayout, Resolution
from naiad.models.resolution.native_library import NativeLibrary
from naiad.models.resolution.resolve import ResolutionSettings, resolve
from naiad.protocol.inference import InferRequest
from naiad.protocol.model_names import LATEST

UNNAMED = PLAIN.replace('name: "m"', "")
"""The configuration of a model of any name."""
CODE = "class TritonPythonModel:\n    pass\n"
COMPLETING = "class TritonPythonModel:\n    def auto_complete_config(config): pass\n"


class Guest(FakeGuest):
    """A guest that knows whether its process would run."""

    is_running = False

    async def start(self) -> str:
        self.is_running = True
        try:
            return await super().start()
        except BaseException:
            self.is_running = False
            raise

    async def stop(self, timeout: float) -> None:
        await super().stop(timeout)
        self.is_running = False

    async def kill(self) -> None:
        await super().kill()
        self.is_running = False


class Lease:
    """Keeps an environment, until it is released or dropped."""

    def __init__(self, host: Host) -> None:
        self._host = weakref.ref(host)
        host.leases.add(self)

    def release(self) -> None:
        if (host := self._host()) is not None:
            host.leases.discard(self)


class ForkServer:
    """A process that forks guests; `is_running` until it is closed."""

    is_replaceable = False

    def __init__(self, spec: LaunchSpec, modules: tuple[str, ...]) -> None:
        self.spec, self.modules, self.is_running = replace(spec, lease=None), modules, True

    def close(self) -> None:
        self.is_running = False


class Host(Clock):
    """An engine, its repository and its guests.

    Attributes:
        guests: All guests, in the order of their starts.
        failures: Why the next guests do not start; None for one that does.
        completed: What `auto_complete_config` adds to a configuration, or raises.
        completions: How it was run.
        fork_servers: All of them.
        prepared: The arguments with which environments were prepared.
        environment: What is unusual in the environments that are prepared, or why they cannot be.
        leases: Leases of environments that are held.
        library: The library of all models, if that is what runs them.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.folder = folder
        self.guests: list[Guest] = []
        self.failures: list[BaseException | None] = []
        self.completed: dict[str, Any] | Exception = {}
        self.completions: list[LaunchSpec] = []
        self.fork_servers: list[ForkServer] = []
        self.prepared: list[tuple[Any, ...]] = []
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self.environment: Any = {}
        self.library: NativeLibrary | None = None
        guest = folder / "guest"
        for name in (STUB_FILENAME, UTILS_FILENAME):
            (guest / name).parent.mkdir(exist_ok=True)
            (guest / name).write_text("#!python")
        self.layout = GuestLayout(artifacts_dir=guest, library_dir=guest, requires_python=SpecifierSet(">=3.8"))
        (folder / "models").mkdir()
        self.install(monkeypatch)
        monkeypatch.setattr(blocking, "run", _in_a_later_turn)
        monkeypatch.setattr(instance, "Worker", self._make_guest)
        monkeypatch.setattr(loader, "complete_in_guest", self._complete)
        monkeypatch.setattr(loader, "resolve", self._resolve)
        monkeypatch.setattr(prewarm, "ForkServer", self._make_fork_server)

    # -- the repository

    def add(
        self, name: str, text: str = UNNAMED, more: str = "", code: str = CODE, versions: Collection[int] = (1,)
    ) -> Path:
        """A model in the repository, or its changed configuration; its folder."""
        directory = self.folder / "models" / name
        for number in versions:
            (directory / str(number)).mkdir(parents=True, exist_ok=True)
            if not (directory / str(number) / "model.py").exists():
                (directory / str(number) / "model.py").write_text(code)
        (directory / "config.pbtxt").write_text(text + more)
        return directory

    # -- the engine

    def run(self, check: Callable[[], Coroutine[Any, Any, None]], **settings: Any) -> None:  # type: ignore[override]
        """Run *check* with an engine of these settings; at the end it is stopped, and nothing runs any more."""

        async def with_engine() -> None:
            self.start(**settings)
            await self.engine.start()
            try:
                await check()
            finally:
                await self.engine.stop()
            self._assert_nothing_runs()
            assert len(asyncio.all_tasks()) == 1

        super().run(with_engine())

    def start(self, **settings: Any) -> None:
        """Make the engine; settings of loading are those that the engine has not."""
        own = {name: settings.pop(name) for name in list(settings) if name in EngineSettings.__slots__}
        resolution = ResolutionSettings(backend_directories=(self.folder / "backends",), guest=self.layout)
        self.loader = Loader(LoadSettings(resolution=resolution, **settings), self)
        repositories = own.pop("repositories", None) or open_repositories([self.folder / "models"])
        self.engine = Engine(EngineSettings(**{"is_explicit": True, "repositories": repositories, **own}), self.loader)
        self.registry = self.engine._registry

    def assert_nothing_is_left(self, *serving: str) -> None:
        """Nothing runs but for the versions that serve; their models are these."""
        versions = [each for model in self.registry for each in model.serving()]
        running = {guest.spec.name for guest in self.guests if guest.is_running}
        assert running == {each.name for version in versions for each in version.instances}
        assert [model.key for model in self.registry if model.serving()] == list(serving)
        numbers = {version.number for version in versions}
        assert set(self.registry.versions_alive) == numbers
        if not serving:
            self._assert_nothing_runs()
        assert not any(self.engine._order.is_changing(model.key) for model in self.registry)

    def _assert_nothing_runs(self) -> None:
        gc.collect()
        assert not self.leases
        assert not any(each.is_running for each in (*self.guests, *self.fork_servers))

    async def load(self, name: str = "m", **parameters: Any) -> bool:
        return await self.engine.load(name, parameters)

    async def fail(self, name: str = "m", **parameters: Any) -> NaiadError:
        """The error of a load, without what its frames refer to."""
        with pytest.raises(NaiadError) as caught:
            await self.load(name, **parameters)
        return without_frames(caught.value)

    def version(self, name: str = "m", number: int = LATEST) -> Any:
        return self.registry.find_loaded(name, number)

    def is_serving(self, name: str = "m") -> bool:
        return self.registry.is_serving(name)

    def index(self) -> list[str]:
        """The index, an entry as `NAME VERSION STATE: REASON`."""
        return [
            f"{each.name} {each.version} {'' if each.state is None else each.state.value}: {each.reason}"
            for each in self.registry.index(ready_only=False)
        ]

    def ask(self, name: str = "m", **more: Any) -> Answers:
        """A request, which a guest has to answer."""
        answers = Answers()
        self.engine.submit(replace_model(request(**more), name), answers)
        return answers

    def specs(self) -> list[LaunchSpec]:
        """How all guests were started since the last call."""
        made, self.guests = self.guests, []
        return [guest.spec for guest in made]

    # -- environments

    def prepare(self, source: object, **more: Any) -> Any:
        self.prepared.append((source, more["label"]))
        if isinstance(self.environment, Exception):
            raise fresh(self.environment)
        usual = {"python": Path("/env/bin/python"), "version": (3, 11, 4), "is_host": False, "lease": Lease(self)}
        return SimpleNamespace(**{**usual, "environ": dict, **self.environment})

    def _resolve(self, config: ModelConfig, **more: Any) -> Resolution:
        return replace(resolve(config, **more), library=self.library)

    def activity(self) -> Mapping[str, str]:
        return {"m": "building"}

    # -- guests

    def _make_guest(self, *arguments: Any) -> Guest:
        guest = Guest(*arguments, pid=100 + len(self.guests))
        guest.problem = self.failures.pop(0) if self.failures else None
        self.guests.append(guest)
        return guest

    async def _complete(self, spec: LaunchSpec) -> str:
        self.completions.append(replace(spec, lease=None))
        if spec.prewarm is not None:
            spec.prewarm.start_early(spec)
        await turns(2)
        if isinstance(self.completed, Exception):
            raise fresh(self.completed)
        return json.dumps({**json.loads(spec.load.model_config), **self.completed})

    def _make_fork_server(self, *arguments: Any) -> ForkServer:
        self.fork_servers.append(ForkServer(*arguments))
        return self.fork_servers[-1]


def replace_model(asked: InferRequest, name: str) -> InferRequest:
    """The same request to another model."""
    asked.model_name = name
    return asked


def parameter(name: str, value: object) -> str:
    """A parameter of a model, for its configuration."""
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def instances(count: int, rest: str = "") -> str:
    """An instance group, for the configuration of a model."""
    return f"instance_group {{ count: {count} kind: KIND_CPU {rest} }}\n"


async def _in_a_later_turn(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """In place of a thread: time does not pass meanwhile, but others have their turn."""
    await asyncio.sleep(0)
    return function(*arguments, **named)
