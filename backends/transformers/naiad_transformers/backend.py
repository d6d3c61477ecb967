"""The class that the server calls for each model of this backend."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from saved_models.execution import BatchRunner
from saved_models.interface import check, complete_from
from saved_models.settings import ModelSettings, read

from naiad_transformers.loading import load, prepare_process
from naiad_transformers.source import Source, find_source
from naiad_transformers.tasks import RowRunner, Task, task_of, try_out


class TritonPythonModel:
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

    def execute(self, requests: List[Any]) -> List[Any]:
        return self._runner.execute(requests)


def _read(settings: ModelSettings) -> Tuple[Source, Task]:
    source = find_source(settings)
    return source, task_of(source, settings)
