"""Values of requests as the columns of a table, and predictions as tensors. Needs pandas, and no MLflow."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

pd = pytest.importorskip("pandas")
from naiad_mlflow.inputs import InputReader  # noqa: E402 - after pandas
from naiad_mlflow.outputs import OutputWriter  # noqa: E402
from naiad_mlflow.predictor import Predictor  # noqa: E402
from naiad_mlflow.signature import Column, Form, Parameter, Signature  # noqa: E402
from saved_models.conversion import InputError  # noqa: E402
from saved_models.interface import ModelTensor  # noqa: E402
from saved_models.settings import read_config  # noqa: E402


def table(kind: str, *texts: str, form: Form = Form.TABLE):
    config = {"name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_STRING", "dims": [1]}]}
    column = Column(kind, ModelTensor("x", "TYPE_STRING", (-1, 1), kind))
    reader = InputReader(read_config(config), Signature(form, (column,), {}))
    found = reader.read({"x": np.array([[text.encode()] for text in texts], object)})
    return found["x"] if form is Form.TABLE else found


def written(value, data_type: str):
    config = {"name": "m", "max_batch_size": 8, "output": [{"name": "y", "data_type": data_type, "dims": [1]}]}
    return OutputWriter(read_config(config)).write(value, ["y"])["y"][:, 0].tolist()


@pytest.mark.parametrize(
    "text",
    ["9999-12-31", "0001-01-01", "2262-04-12", "1677-09-21", "2262-04-12T00:00:00+00:00"],
)
def test_a_time_that_nanoseconds_cannot_hold_is_refused(text):
    with pytest.raises(InputError, match=f"input 'x' has .*{text[:10]}"):
        table("datetime", "2024-05-31", text)


@pytest.mark.parametrize(
    "text", ["now", "today", "NaT", "", "10:00", "12", "May 31, 2024", "2024-13-01", "2024-05-31 x"]
)
def test_words_and_times_without_a_date_are_no_times(text):
    with pytest.raises(InputError, match=r"input 'x' has a value that is no time: .*; write it as 2024-05-31T12:00:00"):
        table("datetime", text)


def test_times_are_those_of_the_text_and_zones_become_utc():
    found = table("datetime", "2024-05-31", "2024-05-31T12:00:00+02:00", "20240531", "2262-04-11T23:47:16.854775807")
    assert found.dtype == "datetime64[ns]"
    assert [time.isoformat() for time in found] == [
        "2024-05-31T00:00:00",
        "2024-05-31T10:00:00",
        "2024-05-31T00:00:00",
        "2262-04-11T23:47:16.854775807",
    ]


def test_times_in_lists_and_records_are_times_and_not_integers():
    time = pd.Timestamp("2024-05-31T12:00:00")
    assert table("datetime", "2024-05-31T12:00:00", form=Form.LIST) == [time]
    assert table("datetime", "2024-05-31T12:00:00", form=Form.RECORDS) == [{"x": time}]
    assert type(table("datetime", "2024-05-31", form=Form.LIST)[0]) is pd.Timestamp


def test_times_in_parameters_are_times_and_wrong_ones_are_errors_of_the_client():
    class Model:
        def predict(self, _given, params):
            return [str(params)]

    parameters = {
        "since": Parameter("since", "datetime", is_list=False),
        "days": Parameter("days", "datetime", is_list=True),
    }
    config = {"name": "m", "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": [1]}]}
    config["input"] = [{"name": "x", "data_type": "TYPE_INT64", "dims": [1]}]
    settings = read_config(config)
    reader = InputReader(settings, Signature(None, (), {}))
    predictor = Predictor(Model(), reader, OutputWriter(settings), parameters)

    def ask(**values):
        return predictor.run({"x": np.array([1])}, ["y"], json.dumps(values))["y"].tolist()[0]

    assert "9999-12-31" in ask(since="9999-12-31")
    assert "2024-05-31T10" in ask(days='["2024-05-31T12:00:00+02:00"]')
    for values in ({"since": "now"}, {"since": 5}, {"days": '["today"]'}, {"days": "5"}, {"days": "["}):
        with pytest.raises(InputError, match=f"the parameter '{next(iter(values))}' "):
            ask(**values)


def test_parameters_named_like_those_of_the_protocol_reach_the_model_by_a_prefix():
    names = ("priority", "factor")
    settings = read_config({"name": "m", "input": [{"name": "x", "data_type": "TYPE_INT64", "dims": [1]}]})
    parameters = {name: Parameter(name, "long", is_list=False) for name in names}
    predictor = Predictor(None, InputReader(settings, Signature(None, (), {})), OutputWriter(settings), parameters)

    def given(**values):
        found = predictor.arguments(SimpleNamespace(parameters=lambda: json.dumps(values)))
        return json.loads(found[0]) if found else None

    assert given(**{"params.priority": 3, "factor": 2}) == {"priority": 3, "factor": 2}
    assert given(**{"params.factor": 5, "factor": 2, "other": 1, "params.other": 1}) == {"factor": 5}
    assert given(other=1) is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.array(["2024-05-31T12:00:00"], "datetime64[ns]"), ["2024-05-31T12:00:00"]),
        (pd.Series(pd.to_datetime(["2024-05-31T12:00:00"])), ["2024-05-31T12:00:00"]),
        ([{"when": np.datetime64("2024-05-31T12:00:00", "ns")}], ['{"when": "2024-05-31T12:00:00.000000000"}']),
        ([np.array([1, 2])], ["[1, 2]"]),
    ],
)
def test_times_and_arrays_are_texts(value, wanted):
    assert written(value, "TYPE_STRING") == wanted


def test_the_record_of_an_agent_is_one_row_and_lacks_what_is_optional():
    names = {"id": "TYPE_STRING", "choices": "TYPE_STRING", "created": "TYPE_INT64", "custom": "TYPE_STRING"}
    outputs = [{"name": name, "data_type": kind, "dims": [1]} for name, kind in names.items()]
    settings = read_config({"name": "m", "max_batch_size": 8, "output": outputs})
    record = {"created": 5, "choices": [{"text": "a"}, {"text": "b"}], "id": "abc", "object": "completion"}
    writer = OutputWriter(settings, frozenset({"custom"}))
    wanted = {"id": [["abc"]], "choices": [['[{"text": "a"}, {"text": "b"}]']], "created": [[5]]}
    for prediction in (record, [record], [{**record, "custom": None}]):
        found = writer.write(prediction, [*names])
        custom = found.pop("custom", None)
        assert {name: array.tolist() for name, array in found.items()} == wanted
        assert custom is None
    assert writer.write({**record, "custom": {"a": 1}}, ["custom"])["custom"].tolist() == [['{"a": 1}']]
    assert "custom" not in writer.write(pd.DataFrame([record]), [*names])
    with pytest.raises(ValueError, match="output 'custom' has a missing value in row 0"):
        OutputWriter(settings).write(record, [*names])


def test_a_missing_value_is_none_of_an_integer_and_nan_of_a_fraction():
    values = pd.Series([1, None], dtype="Int64")
    assert written(values, "TYPE_FP64") == [1, pytest.approx(np.nan, nan_ok=True)]
    with pytest.raises(ValueError, match=r"output 'y' has a missing value in row 1, which TYPE_INT64 cannot be; write"):
        written(values, "TYPE_INT64")
    with pytest.raises(ValueError, match=r"output 'y' to TYPE_INT64: the model's value in row 0 is 1.5, .* TYPE_FP64"):
        written(pd.DataFrame({"y": [1.5]}), "TYPE_INT64")
