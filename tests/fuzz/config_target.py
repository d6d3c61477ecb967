"""Configurations, from text, JSON and generated messages, through everything that a load does with them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson

from naiad.config.model.model_config import freeze, instance_names
from naiad.config.model.render import to_json
from naiad.config.model.text import parse_json, parse_text
from naiad.core.errors import NaiadError
from naiad.engine.scheduling.factory import scheduler_for
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.sequence_states import read_states
from naiad.engine.serving.warmup import read_samples
from naiad.models.repository.layout import ModelFiles
from naiad.models.repository.read import prepare_config

_SILENT = "rejected without a text"
_DATA = Path(__file__).parents[1] / "config" / "model" / "data"


class ConfigTarget:
    """Reads configurations, and checks that errors have texts.

    Attributes:
        outcomes: How many configurations were accepted, and how many rejected.
    """

    def __init__(self, folder: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        (folder / "m" / "1").mkdir(parents=True, exist_ok=True)
        (folder / "m" / "1" / "model.py").touch()
        self._files = ModelFiles(name="m", repository=folder, directory=folder / "m")

    def try_text(self, data: bytes, *, strict: bool) -> None:
        """Read `config.pbtxt`. Raises any error other than `NaiadError`."""
        self._try(data.decode("utf-8", "replace"), parse_text, strict=strict)

    def try_json(self, data: bytes, *, strict: bool) -> None:
        """Read the JSON configuration of a load request. Raises as `try_text`."""
        self._try(data.decode("utf-8", "replace"), parse_json, strict=strict)

    def _try(self, text: str, parse: object, *, strict: bool) -> None:
        outcome = self._read(text, parse, strict=strict)
        assert outcome != _SILENT
        self.outcomes[outcome] += 1

    def _read(self, text: str, parse: object, *, strict: bool) -> str:
        try:
            message = parse(text, "config.pbtxt")
            message.name = "m"
            prepared = prepare_config(message, self._files, strict=strict)
            config = freeze(prepared)
            instance_names(config)
            compile_plan(config, 1)
            read_samples(config, self._files.directory)
            states = read_states(config, self._files.directory)
            scheduler_for(config, states).add_instance("an instance")
            orjson.dumps(to_json(prepared))
        except NaiadError as error:
            return "rejected" if error.message else _SILENT
        return "accepted"


def samples() -> list[bytes]:
    """The configurations of the tests of `config/model`."""
    return [path.read_bytes() for path in sorted(_DATA.glob("*/config.pbtxt"))]
