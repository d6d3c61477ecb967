"""`naiad.testing`: what a server keeps of a sequence for a model, kept by the test's own process."""

from __future__ import annotations

import numpy as np
import pytest
from embedded.testing.models import write_model

from naiad.testing import InvalidRequestError, load

START, END = 1, 2
STATES = """
sequence_batching {
  direct { }
  state {
    input_name: "TOTAL_IN" output_name: "TOTAL_OUT" data_type: TYPE_FP32 dims: 1
    initial_state { name: "x" data_type: TYPE_FP32 dims: 1 %s }
  }
}
"""
ADDS = """
    def execute(self, requests):
        responses = []
        for request in requests:
            total = pb_utils.get_input_tensor_by_name(request, "TOTAL_IN").as_numpy()
            total = total + pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if total.sum() > 1000:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("too much")))
                continue
            tensors = [pb_utils.Tensor("TOTAL_OUT", total), pb_utils.Tensor("OUT", total)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""


def write(folder, initial="zero_data: true", code=ADDS, **more):
    path = write_model(folder, "m", code, **more)
    with (path / "config.pbtxt").open("a") as file:
        file.write(STATES % initial)
    return path


def add(model, value, sequence=7, flags=0):
    response = model.infer({"IN": [value]}, correlation_id=sequence, flags=flags)
    assert list(response) == ["OUT"], "a state that is no output stays with the server"
    return response["OUT"].tolist()


def test_states_go_from_one_request_of_a_sequence_to_the_next(tmp_path):
    with load(write(tmp_path)) as model:
        assert add(model, 1, flags=START) == [1]
        assert add(model, 10, sequence="other", flags=START) == [10]
        assert [add(model, 2), add(model, 3)] == [[3], [6]]
        assert add(model, 5, sequence="other") == [15]
        assert add(model, 1, flags=END) == [7]
        assert add(model, 1, flags=START) == [1]


def test_a_response_without_states_leaves_them_as_they_were(tmp_path):
    with load(write(tmp_path)) as model:
        add(model, 1, flags=START)
        assert model.stream({"IN": [5000]}, correlation_id=7)[0].error.message == "too much"
        assert add(model, 1) == [2]


def test_states_begin_with_the_content_of_a_file(tmp_path):
    path = write(tmp_path, 'data_file: "first"')
    (path / "initial_state").mkdir()
    (path / "initial_state" / "first").write_bytes(np.array([40], np.float32).tobytes())
    with load(path) as model:
        assert add(model, 2, flags=START) == [42]


@pytest.mark.parametrize("datatype", ["TYPE_STRING", "TYPE_UINT64"])
def test_a_request_without_a_sequence_id_is_refused_whatever_type_ids_have(tmp_path, datatype):
    path = write(tmp_path)
    config = (path / "config.pbtxt").read_text()
    control = f'control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}'
    (path / "config.pbtxt").write_text(config.replace("sequence_batching {", f"sequence_batching {{ {control}", 1))
    with load(path) as model, pytest.raises(InvalidRequestError, match="must specify a non-zero or non-empty"):
        model.infer({"IN": [1]})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({}, "inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        (
            {"correlation_id": 8},
            "inference request for sequence 8 to model 'm' must specify the START flag on the first request of the sequence",
        ),
    ],
)
def test_requests_that_belong_to_no_sequence_are_refused_as_by_a_server(tmp_path, request_, text):
    with load(write(tmp_path)) as model:
        add(model, 1, flags=START)
        add(model, 1, flags=END)
        with pytest.raises(InvalidRequestError) as caught:
            model.infer({"IN": [1]}, **request_)
        assert caught.value.message == text


def test_a_state_that_is_also_an_output_is_returned_on_request(tmp_path):
    path = write(tmp_path)
    with (path / "config.pbtxt").open("a") as file:
        file.write('output { name: "TOTAL_OUT" data_type: TYPE_FP32 dims: 1 }')
    with load(path) as model:
        response = model.infer({"IN": [1]}, correlation_id=7, flags=START)
        assert sorted(response) == ["OUT", "TOTAL_OUT"]
        asked = model.infer({"IN": [1]}, correlation_id=7, requested_outputs=["OUT"])
        assert (list(asked), asked["OUT"].tolist()) == (["OUT"], [2])


def test_an_iterative_model_finds_the_state_it_has_just_sent(tmp_path):
    code = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            total = pb_utils.get_input_tensor_by_name(request, "TOTAL_IN").as_numpy() + 1
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL_OUT", total)]))
            if total[0] < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
    path = write(tmp_path, code=code)
    config = path / "config.pbtxt"
    text = config.read_text().replace("direct { }", "direct { } iterative_sequence: true")
    config.write_text(text + "model_transaction_policy { decoupled: true }\n")
    with load(path) as model:
        [response] = model.stream({"IN": [0]})
        assert response["OUT"].tolist() == [3]
