"""Asks an estimator: which of its methods an output is, and what its inputs are."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Sequence

import numpy as np
import pandas as pd
from saved_models.conversion import InputError, as_array, fitted, row_values, strings
from saved_models.execution import Arrays
from saved_models.interface import ModelInterface, ModelTensor
from saved_models.settings import ModelSettings

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform")
"""Methods that may be outputs, under their own names."""

_PARAMETER = "method"


def interface_of(estimator: Any, settings: ModelSettings) -> ModelInterface:
    """What can be asked of an estimator: one input with all features, and its prediction or its transformation.

    What it gives is found by asking it about a row of zeros.
    """
    features = getattr(estimator, "n_features_in_", None)
    if features is None:
        raise settings.error(
            f"a {type(estimator).__name__} does not say how many features it has; write its inputs and outputs in "
            "config.pbtxt"
        )
    first = "predict" if hasattr(estimator, "predict") else "transform"
    methods = [first, *(["predict_proba"] if first == "predict" and hasattr(estimator, "predict_proba") else [])]
    row = np.zeros((1, int(features)))
    try:
        with _without_warning_of_names():
            answers = {name: as_array(getattr(estimator, name)(row)) for name in methods}
    except Exception as problem:  # noqa: BLE001 - estimators raise anything
        names = getattr(estimator, "feature_names_in_", None)
        columns = "" if names is None else f", one for each of its columns {', '.join(names)}"
        raise settings.error(
            f"its {first} was asked about a row of {features} zeros, and failed ({type(problem).__name__}: "
            f"{str(problem).splitlines()[0]}); write its inputs and outputs in config.pbtxt{columns}"
        ) from None
    return ModelInterface(
        inputs=(ModelTensor("X", "TYPE_FP64", (-1, int(features))),),
        outputs=tuple(ModelTensor(name, _type_of(array), (-1, *array.shape[1:])) for name, array in answers.items()),
    )


def _type_of(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.kind in "iu":
        return "TYPE_INT64"
    return {"b": "TYPE_BOOL", "f": "TYPE_FP64"}.get(array.dtype.kind, "TYPE_STRING")


@contextmanager
def _without_warning_of_names() -> Iterator[None]:
    """That an array has no names of features is known, and no mistake of whoever asks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


class Estimator:
    """An estimator, with its inputs and outputs by the configuration.

    One input is the matrix of all features. Several are its columns, by their names, as of a table: pipelines choose
    columns by name, and columns may have different types.
    """

    def __init__(self, estimator: Any, settings: ModelSettings) -> None:
        self._columns = [tensor.name for tensor in settings.inputs] if len(settings.inputs) > 1 else None
        self._methods: Dict[str, Any] = {}
        self._tensors = {tensor.name: tensor for tensor in settings.outputs}
        self._is_batching = settings.max_batch_size > 0
        for name in self._tensors:
            method = name if name in METHODS else settings.parameters.get(_PARAMETER, "predict")
            found = getattr(estimator, method, None)
            if found is None:
                able = [each for each in METHODS if hasattr(estimator, each)]
                raise settings.error(
                    f"output '{name}' is the method {method}, which a {type(estimator).__name__} has not; it has "
                    f"{', '.join(able)}. The parameter {_PARAMETER} names the method of outputs with other names"
                )
            self._methods[name] = found
        self._check_features(estimator, settings)

    def _check_features(self, estimator: Any, settings: ModelSettings) -> None:
        names = getattr(estimator, "feature_names_in_", None)
        if self._columns is not None:
            if names is not None and set(names) != set(self._columns):
                raise settings.error(
                    f"its columns are {', '.join(names)}, and the configuration's inputs {', '.join(self._columns)}"
                )
            # In the order of the fit, whatever that of the configuration is.
            self._columns = list(self._columns if names is None else names)
            return
        features = getattr(estimator, "n_features_in_", None)
        sizes = settings.inputs[0].dims if settings.inputs else ()
        if features is not None and sizes[-1:] not in ((features,), (-1,)):
            raise settings.error(
                f"the estimator has {features} features, and input '{settings.inputs[0].name}' has dims {list(sizes)}"
            )

    def run(self, arrays: Arrays, wanted: Sequence[str]) -> Dict[str, np.ndarray[Any, Any]]:
        """The answers of the methods behind these outputs; InputError if the estimator refuses the input."""
        given: Any
        if self._columns is None:
            (given,) = arrays.values()
        else:
            columns = {name: row_values(name, arrays[name]) for name in self._columns}
            given = pd.DataFrame(
                {name: strings(name, column) if column.dtype == object else column for name, column in columns.items()}
            )
        answers: Dict[str, Any] = {}
        with _without_warning_of_names():
            for name in wanted:
                method = self._methods[name]
                key = method.__name__
                if key not in answers:
                    try:
                        answers[key] = method(given)
                    except ValueError as problem:  # how estimators refuse what they are given
                        raise InputError(str(problem)) from problem
        arrays = {name: as_array(answers[self._methods[name].__name__]) for name in wanted}
        return {
            name: fitted(array, self._tensors[name], is_batching=self._is_batching) for name, array in arrays.items()
        }
