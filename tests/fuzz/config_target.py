"""Configurations: from text, from JSON and from messages made up, to what the server works with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson
from naiad.config.model.model_config import freeze, instance_names
from naiad.config.model.render import to_json
from naiad.config.model.text import parse_json, parse_text
from naiad.engine.loading.warmup import read_samples
from naiad.engine.serving.compile_plan import compile_plan
from naiad.engine.serving.sequence_states import read_states
from naiad.errors import NaiadError
from naiad.repository.layout import ModelFiles
from naiad.repository.read import prepare_config
from naiad.scheduling.factory import scheduler_for

_SILENT = "refused without a word"
_DATA = Path(__file__).parents[1] / "config" / "model" / "data"


class ConfigTarget:
    """Reads configurations, and judges how that ends.

    Attributes:
        answers: How many were read, and how many refused.
    """

    def __init__(self, folder: Path) -> None:
        self.answers: Counter[str] = Counter()
        (folder / "m" / "1").mkdir(parents=True, exist_ok=True)
        (folder / "m" / "1" / "model.py").touch()
        self._files = ModelFiles(name="m", repository=folder, directory=folder / "m")

    def try_text(self, data: bytes, *, strict: bool) -> None:
        """Read `config.pbtxt`; raises whatever is no error of ours."""
        self._try(data.decode("utf-8", "replace"), parse_text, strict=strict)

    def try_json(self, data: bytes, *, strict: bool) -> None:
        """Read the configuration of a load request."""
        self._try(data.decode("utf-8", "replace"), parse_json, strict=strict)

    def _try(self, text: str, parse: object, *, strict: bool) -> None:
        verdict = self._read(text, parse, strict=strict)
        assert verdict != _SILENT
        self.answers[verdict] += 1

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
            return "refused" if error.message else _SILENT
        return "read"


def samples() -> list[bytes]:
    """Configurations that the tests have for other ends."""
    return [path.read_bytes() for path in sorted(_DATA.glob("*/config.pbtxt"))]
