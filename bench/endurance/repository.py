"""The models of the loads: chains of three models, and models that send many responses."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

MODELS = Path(__file__).with_name("models")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """One model of the repository.

    Attributes:
        name: The model's name.
        code: Name of its file in `models/`, without the suffix.
        decoupled: Its transaction policy.
        instances: Number of instances.
        environment: A folder with another Python; None for the server's Python.
        parameters: Parameters of its configuration, which the code reads.
    """

    name: str
    code: str
    decoupled: bool = False
    instances: int = 1
    environment: Path | None = None
    parameters: tuple[tuple[str, str], ...] = ()

    def write(self, repository: Path) -> None:
        """Write the model's folder below *repository*."""
        (repository / self.name / "1").mkdir(parents=True)
        shutil.copy(MODELS / f"{self.code}.py", repository / self.name / "1" / "model.py")
        (repository / self.name / "config.pbtxt").write_text(self._config())

    def _config(self) -> str:
        parameters = dict(self.parameters)
        if self.environment is not None:
            parameters["EXECUTION_ENV_PATH"] = str(self.environment)
        lines = [
            'backend: "python"',
            'input { name: "IN" data_type: TYPE_INT64 dims: -1 }',
            'output { name: "OUT" data_type: TYPE_INT64 dims: -1 }',
            f"instance_group {{ count: {self.instances} kind: KIND_CPU }}",
            *(
                f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
                for key, value in parameters.items()
            ),
        ]
        if self.decoupled:
            lines.append("model_transaction_policy { decoupled: true }")
        return "\n".join(lines) + "\n"


STEPS = (100, 10, 1)
"""The numbers that the links of a chain add, in order; the whole chain adds their sum."""

_LINKS = ("head", "middle", "leaf")


def chain(
    codes: Sequence[str],
    *,
    decoupled: Sequence[bool] = (False, False, False),
    instances: int = 1,
    environments: Sequence[Path | None] = (None, None, None),
) -> tuple[Model, ...]:
    """The three models of a chain, from `head` to `leaf`."""
    return tuple(
        Model(
            name=_LINKS[place],
            code=codes[place],
            decoupled=decoupled[place],
            instances=instances,
            environment=environments[place],
            parameters=(
                ("step", str(STEPS[place])),
                ("next", _LINKS[place + 1] if place < len(_LINKS) - 1 else ""),
                ("next_is_decoupled", "1" if place < len(_LINKS) - 1 and decoupled[place + 1] else "0"),
            ),
        )
        for place in range(len(_LINKS))
    )


def write(models: Sequence[Model], repository: Path) -> Path:
    """Write *models* into a new folder."""
    for model in models:
        model.write(repository)
    return repository
