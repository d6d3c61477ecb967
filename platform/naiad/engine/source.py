"""Where a model to be loaded comes from: a repository, or what a load request brought along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.config import model_config_pb2 as pb
from naiad.errors import Code, NaiadError
from naiad.repository.layout import ModelFiles, scan
from naiad.repository.override import LoadOverride, ModelDirectory, check_model_name, parse_override
from naiad.repository.read import read_config


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to be loaded.

    Attributes:
        files: Where it lies.
        override: A configuration in place of that in its files.
        directory: Keeps files that a request brought along, for as long as a version loaded from them serves.
    """

    files: ModelFiles
    override: LoadOverride | None = None
    directory: ModelDirectory | None = None

    def read_config(self, *, strict: bool, config_name: str) -> pb.ModelConfig:
        """Its configuration, filled in, normalised and checked; blocks.

        Raises:
            ConfigError: If it is missing, broken or contradicts itself.
        """
        if self.override is not None:
            return self.override.prepared_config(self.files, strict=strict)
        return read_config(self.files, strict=strict, config_name=config_name)


def find_source(
    name: str, parameters: Mapping[str, str | bytes], repositories: Sequence[Path], *, strict: bool
) -> ModelSource:
    """Where the model that a load request names comes from; blocks.

    A configuration that comes with the request is checked here, before anything is noted of the model: a bad request
    must not make what serves count as broken.

    Raises:
        NaiadError: If there is no such model, or the request's parameters are wrong.
    """
    try:
        check_model_name(name)
        override = parse_override(name, parameters)
        directory = override.make_directory() if override is not None and override.contents else None
        files = directory.files if directory is not None else scan(repositories).models.get(name)
        if override is not None and files is not None:
            override.prepared_config(files, strict=strict)
    except NaiadError as error:
        raise not_found(name, error.message) from error
    if files is None:
        looked = ", ".join(f"'{repository}'" for repository in repositories)
        raise not_found(name, f"looked in {looked}")
    return ModelSource(files=files, override=override, directory=directory)


def not_found(name: str, why: str) -> NaiadError:
    """The error for a model that cannot be loaded as it is asked for."""
    return NaiadError(f"failed to load '{name}', failed to poll from model repository ({why})", code=Code.INTERNAL)
