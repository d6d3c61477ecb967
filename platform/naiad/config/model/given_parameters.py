"""A model's `parameters` as they are given, and the errors about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import ParameterError

T = TypeVar("T")


class GivenParameters:
    """The parameters of a configuration; an empty one is not given."""

    def __init__(self, message: pb.ModelConfig) -> None:
        self.message = message
        self._texts = {name: parameter.string_value for name, parameter in message.parameters.items()}

    def text(self, name: str) -> str:
        """The value without spaces around it."""
        return self._texts.get(name, "").strip()

    def converted(self, name: str, convert: Callable[[str], T | None], wanted: str) -> T | None:
        """The converted value; None if it is not given, an error that asks for *wanted* if its conversion is None."""
        if not self.text(name):
            return None
        value = convert(self.text(name))
        if value is None:
            raise self.parameter_error(name, f"is '{self._texts[name]}': give {wanted}")
        return value

    def choice(self, name: str, values: Mapping[str, bool], wanted: str) -> bool | None:
        return self.converted(name, lambda text: values.get(text.lower()), wanted)

    def seconds(self, name: str, zero: str) -> float | None:
        return self.converted(name, _seconds, f"a number of seconds, or 0 for {zero}")

    def parameter_error(self, name: str, problem: str) -> ParameterError:
        text = f"parameter {name} of model '{self.message.name}' {problem}"
        return ParameterError(text, parameter=name)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
