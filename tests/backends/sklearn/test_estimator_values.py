"""What an estimator is given, and who is to blame where it refuses that. Stand-ins for the estimator and pandas."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from saved_models.conversion import InputError
from saved_models.settings import read_config


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """The backend's module, with dictionaries in place of tables."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    for name in ("naiad_sklearn", "naiad_sklearn.estimator"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import naiad_sklearn.estimator as found

    yield found
    for name in ("naiad_sklearn", "naiad_sklearn.estimator"):
        sys.modules.pop(name, None)


def run(module, predict, data_type: str, **inputs: np.ndarray):
    tensors = [{"name": name, "data_type": "TYPE_STRING", "dims": [-1]} for name in inputs]
    config = {"name": "m", "max_batch_size": 8, "input": tensors}
    config["output"] = [{"name": "predict", "data_type": data_type, "dims": [1]}]
    settings = read_config(config)
    return module.Estimator(SimpleNamespace(predict=predict), settings).run(inputs, ["predict"])["predict"].tolist()


def test_columns_are_texts_and_numbers(module):
    def predict(table):
        return [f"{city}{age}" for city, age in zip(table["city"], table["age"], strict=True)]

    cities, ages = np.array([["ü".encode()], [b"b"]], object), np.array([[1], [2]])
    assert run(module, predict, "TYPE_STRING", city=cities, age=ages) == [["ü1"], ["b2"]]


def test_what_an_estimator_refuses_is_the_clients_error_and_what_it_answers_is_not(module):
    def refuse(_given):
        raise ValueError("Input X contains NaN.")

    with pytest.raises(InputError, match=r"Input X contains NaN\."):
        run(module, refuse, "TYPE_FP64", X=np.array([[np.nan]]))
    for city, message in [
        (np.array([[b"\xff"]], object), "input 'city' has a string that is not UTF-8"),
        (np.array([[b"a", b"b"]], object), "input 'city' is a column, and has 2 values for each row instead of one"),
    ]:
        with pytest.raises(InputError, match=message):
            run(module, refuse, "TYPE_FP64", city=city, age=np.array([[1]]))
    with pytest.raises(ValueError, match="cannot convert output 'predict' to TYPE_INT64") as caught:
        run(module, lambda _: np.array([1.5]), "TYPE_INT64", X=np.array([[1.0]]))
    assert not isinstance(caught.value, InputError)
