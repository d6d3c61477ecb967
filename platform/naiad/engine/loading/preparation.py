"""What a load of a model needs before anything of it starts: found, read and checked by one function, which blocks.

It runs once for a load, on a thread of its own (`naiad.core.blocking`): files, configuration, and for each version its
resolution, environment, labels, samples and states. It can be cancelled between its steps, and where these wait.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze_version_policy
from naiad.config.model.parameters import or_default
from naiad.core import blocking
from naiad.core.errors import NaiadError, without_frames
from naiad.engine.loading.instance_change import are_instances_alone, has_other_changes
from naiad.engine.loading.loader import Loader, PreparedDormant, PreparedVersion
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.loading.unchanged import version_signature
from naiad.engine.registry import ModelRecord, VersionRecord
from naiad.engine.served import ServedVersion
from naiad.engine.serving.version import ModelVersion
from naiad.engine.settings import EngineSettings
from naiad.models.polling import Signature
from naiad.models.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.models.repository.read import config_path
from naiad.models.repository.repositories import directory_signature
from naiad.models.resolution.decision import Resolution
from naiad.protocol.metadata import ModelState

logger = logging.getLogger("naiad.engine")

FETCHING = "fetching its files"
# The configuration parameter that names models to load before this one, because it calls them.
LOAD_AFTER = "LOAD_AFTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrigin:
    """What a version was loaded from."""

    source: ModelSource
    message: pb.ModelConfig
    signature: Signature | None  # the signature of its files and of what it uses besides; None if it is unknown


class PreparedParts(NamedTuple):
    """What is known of a version before anything of it starts."""

    signature: Signature | None  # as that of its `LoadOrigin`
    # None if the version serves, and changes its instances alone.
    prepared: PreparedVersion | PreparedDormant | None = None


@dataclass(slots=True, kw_only=True)
class Preparation:
    """One preparation of a model: what it is given, and what `prepare` finds."""

    settings: EngineSettings
    loader: Loader
    source: ModelSource
    model: ModelRecord
    is_first: bool  # whether its files are still to be fetched, and the models that it needs still to be loaded
    models: Mapping[str, ModelFiles] | None
    before: Signature | None  # the signature with which the load has nothing to do; None if it is a load in any case
    serving: Mapping[int, ServedVersion]
    origins: Mapping[int, LoadOrigin]  # what those were loaded from whose instances can be changed
    may_sleep: bool  # whether its versions only become dormant, if it is on demand
    step: str = ""
    is_unchanged: bool = False
    needs_others: bool = False  # Whether its configuration names models to load before it. Nothing else was found then.
    own: Signature | None = None
    message: pb.ModelConfig = field(default_factory=pb.ModelConfig)
    is_on_demand: bool = False
    numbers: tuple[int, ...] = ()  # the versions to load, without those that stay as they are
    selected: tuple[int, ...] = ()
    begun: list[int] = field(default_factory=list)  # the versions that count as being loaded
    # What was found for each version, or why it cannot be loaded. An ensemble's need nothing.
    versions: dict[int, PreparedParts | NaiadError] = field(default_factory=dict)

    def prepare(self) -> None:
        """Find whatever a load needs. Blocks, for as long as it takes to build environments."""
        source, files, settings = self.source, self.source.files, self.settings
        if self.is_first:
            self._begin_step(FETCHING)
            settings.repositories.fetch(files)
        # Before the files are read: a later change must lead to another load.
        self.own = directory_signature(files.directory)
        if self.before is not None and self.before == self._signature_now():
            self.is_unchanged = True
            return
        self._begin_step("reading its configuration")
        self.message = source.read_config(
            strict=settings.strict_config, config_name=settings.config_name, gpus=settings.gpus
        )
        is_ensemble = self.message.HasField("ensemble_scheduling")
        if self.is_first and (is_ensemble or LOAD_AFTER in self.message.parameters):
            self.needs_others = True
            if self.models is None:
                self.models = settings.repositories.scan().models
            return
        parameters = source.parameters(self.message, config_name=settings.config_name)
        policy = freeze_version_policy(self.message.version_policy)
        self.selected = versions_to_load(policy, available_versions(files), files.name, files.directory)
        self.numbers = tuple(each for each in self.selected if each not in source.kept & self.serving.keys())
        if is_ensemble:
            return
        self.is_on_demand = or_default(parameters.is_on_demand, settings.is_demand)
        self._begin_step("preparing its environment")
        for number in self.numbers:
            blocking.check_cancelled()
            blocking.report(self.begin, number)
            try:
                self.versions[number] = self.find_version(number)
            except NaiadError as error:
                self.versions[number] = without_frames(error)

    def find_version(self, number: int, *, changes_instances: bool = True) -> PreparedParts:
        """Find what one version needs; *changes_instances* if it may change its instances alone. Blocks."""
        files, own, message = self.source.files, self.own, self.message
        origin = self.origins.get(number) if changes_instances else None
        if origin is not None and origin.source.files.directory == files.directory:
            now = version_signature(own, _resolution_of(self.serving[number]))
            path = str(config_path(files, self.settings.config_name).relative_to(files.directory))
            has_changed = has_other_changes(origin.signature, now, path, number)
            if not has_changed and are_instances_alone(origin.message, message):
                return PreparedParts(now)
        if self.is_dormant:
            return PreparedParts(None, self.loader.prepare_dormant(files, message, number))
        prepared = self.loader.prepare(files, message, number)
        return PreparedParts(version_signature(own, prepared.resolution), prepared)

    @property
    def is_dormant(self) -> bool:
        return self.is_on_demand and self.may_sleep

    def begin(self, number: int) -> None:
        record = self.model.versions.setdefault(number, VersionRecord())
        self.model.reason = ""
        self.begun.append(number)
        if record.loaded is None:
            record.become(ModelState.LOADING)
        if not self.is_dormant:
            logger.info("loading: %s:%d", self.model.key, number)

    def note_step(self, step: str) -> None:
        self.model.step = step

    def _begin_step(self, step: str) -> None:
        blocking.check_cancelled()
        self.step = step
        blocking.report(self.note_step, step)

    def _signature_now(self) -> Signature | None:
        """The signature of the model's own files and of what its versions use besides; None if it is unknown."""
        signature = self.own
        for version in self.serving.values():
            signature = version_signature(signature, _resolution_of(version))
        return signature


def _resolution_of(version: ServedVersion) -> Resolution | None:
    return version.resolution if isinstance(version, ModelVersion) else None
