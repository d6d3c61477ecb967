# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "pillow", "torch==2.13.*", "transformers"]
# ///
"""The backend `transformers`: serves pipelines of Hugging Face's transformers. See the README beside this file."""

import sys
from pathlib import Path
from typing import Any, Dict, Tuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "saved_models"))

from naiad_transformers.loading import load, prepare_process
from naiad_transformers.source import Source, find_source
from naiad_transformers.tasks import RowRunner, Task, task_of, try_out
from saved_models.execution import BatchRunner, SavedModelBackend
from saved_models.interface import check, complete_from
from saved_models.settings import ModelSettings, read


class TritonPythonModel(SavedModelBackend):
    """One instance of a model, with weights of its own."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the tensors of the task, unless inputs and outputs are configured."""
        return complete_from(config, lambda settings: _read(settings)[1].interface)

    def initialize(self, args: Dict[str, str]) -> None:
        settings = read(args)
        source, task = _read(settings)
        check(settings, task.interface)
        prepare_process(settings, source)
        asked = load(settings, source, task.kind)
        rows = RowRunner(task.make(asked, settings), asked.tokenizer)
        try_out(rows, asked, task, settings, source)
        self._runner = BatchRunner(settings, rows.run)


def _read(settings: ModelSettings) -> Tuple[Source, Task]:
    source = find_source(settings)
    return source, task_of(source, settings)
