"""The initial states of sequences, and the states in a model's responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.guests import config

from naiad.core.errors import ConfigError, InvalidRequestError, RepositoryError
from naiad.engine.scheduling.sequences.states import SequenceState, StateTensor
from naiad.engine.serving import sequence_states
from naiad.engine.serving.sequence_states import StateOutputs, read_states
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor

FP32, BYTES = Datatype.FP32, Datatype.BYTES


def state(name: str = "S", kind: str = "FP32", dims: str = "[2]", initial: str = "", made: str = "") -> str:
    """One state; its output has the same name with an O before it."""
    return f"""state {{ input_name: "{name}" output_name: "{made or "O" + name}" data_type: TYPE_{kind} dims: {dims}
    {initial} }}"""


def initial(data: str = 'data_file: "s"', kind: str = "FP32", dims: str = "[2]", name: str = "init") -> str:
    return f'initial_state {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} {data} }}'


def model(*states: str, more: str = "") -> Any:
    return config(more=f"sequence_batching {{ {' '.join(states)} }} {more}")


def write(folder: Any, data: bytes) -> None:
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "s").write_bytes(data)


def test_states_begin_with_zeros(tmp_path):
    found = read_states(model(state(), state("T", "INT64", "[-1, 3]"), state("U", "STRING", "[2]")), tmp_path)
    assert [each.output_name for each in found] == ["OS", "OT", "OU"]
    assert [(each.initial.name, each.initial.datatype, each.initial.shape, each.initial.data) for each in found] == [
        ("S", FP32, (2,), bytes(8)),
        ("T", Datatype.INT64, (1, 3), bytes(24)),
        ("U", BYTES, (2,), bytes(8)),
    ]


def test_a_model_with_batches_has_states_of_one_row(tmp_path):
    for size, shape in ((1, (1, 2)), (0, (2,))):
        [found] = read_states(model(state(), more=f"max_batch_size: {size}"), tmp_path)
        assert found.initial.shape == shape


def test_states_begin_with_what_their_files_contain(tmp_path):
    write(tmp_path, b"12345678more")
    [found] = read_states(model(state(dims="[-1]", initial=initial())), tmp_path)
    assert (found.initial.shape, found.initial.data) == ((2,), b"12345678")
    [found] = read_states(model(state(initial=initial("zero_data: true"))), tmp_path)
    assert found.initial.data == bytes(8)


def test_strings_of_a_file_must_be_as_many_as_the_shape_says(tmp_path):
    write(tmp_path, b"\1\0\0\0a\0\0\0\0")
    [found] = read_states(model(state(kind="STRING", initial=initial(kind="STRING"))), tmp_path)
    assert found.initial.data == b"\1\0\0\0a\0\0\0\0"
    with pytest.raises(InvalidRequestError, match=r"initial_state/s: unexpected number of string elements 2 .*'S'"):
        read_states(model(state(kind="STRING", dims="[1]", initial=initial(kind="STRING", dims="[1]"))), tmp_path)
    (tmp_path / "initial_state" / "s").write_bytes(b"\1\0\0\0")
    with pytest.raises(InvalidRequestError, match=r"initial_state/s: incomplete string data for inference input 'S'"):
        read_states(model(state(kind="STRING", dims="[1]", initial=initial(kind="STRING", dims="[1]"))), tmp_path)


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([state(name="")], "sequence batching state must specify 'input_name' for m"),
        (['state { input_name: "S" dims: 1 data_type: TYPE_FP32 }'], "must specify 'output_name' for m"),
        (['state { input_name: "S" output_name: "O" dims: 1 }'], "must specify 'data_type' for m"),
        ([state("IN")], "cannot use 'IN' as a state input of m: it is an input or a control as well"),
        ([state("C")], "cannot use 'C' as a state input of m"),
        ([state(dims="[-2]")], "sequence batching state 'S' has a negative dimension for m"),
        (
            [state(initial=initial() + initial())],
            "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements.",
        ),
        (
            [state(initial=initial(kind="INT32"))],
            "The data type used for 'initial_state' field of state 'S' does not match the state data type.",
        ),
        (
            [state(initial=initial(name=""))],
            "Field 'name' must be set when using initial_state for state input 'S'.",
        ),
        (
            [state(initial=initial("zero_data: true")), state(made="other", initial=initial("zero_data: true"))],
            "State input name 'S' specified more than once.",
        ),
        (
            [state(initial=initial(dims="[1, 2]"))],
            (
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'. "
                "2 != 1"
            ),
        ),
        (
            [state(dims="[-1]", initial=initial(dims="[-1]"))],
            "'initial_state' field for state input name 'S' contains variable dimensions.",
        ),
        (
            [state(initial=initial(dims="[3]"))],
            "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2",
        ),
        ([state(initial=initial(""))], "initial_state setting expects state'S' to have state_data set"),
        (
            [state(dims="[2]", initial=initial(dims="[2]"))],
            "initial_state setting expects 8 bytes, but the data provided from sonly has 7 bytes.",
        ),
        ([state(dims="[1073741825]")], "cannot fill state 'S' with zeros: shape [1073741825] exceeds 4294967296 bytes"),
        (
            [state(kind="STRING", dims="[1073741825]")],
            "cannot fill state 'S' with zeros: shape [1073741825] exceeds 4294967296 bytes",
        ),
    ],
)
def test_invalid_states_are_rejected(tmp_path, states, text):
    write(tmp_path, b"1234567")
    control = 'control_input { name: "C" }'
    with pytest.raises(ConfigError) as caught:
        read_states(model(*states, control), tmp_path)
    assert text in caught.value.message


def test_a_dimension_of_zero_is_allowed(tmp_path):
    [found] = read_states(model(state(dims="[0]", initial=initial("zero_data: true", dims="[0]"))), tmp_path)
    assert (found.initial.shape, found.initial.data) == ((0,), b"")


def test_zeros_may_have_as_many_bytes_as_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(sequence_states, "MAX_TENSOR_BYTES", 8)
    [found] = read_states(model(state()), tmp_path)
    assert len(found.initial.data) == 8
    monkeypatch.setattr(sequence_states, "MAX_TENSOR_BYTES", 7)
    with pytest.raises(ConfigError):
        read_states(model(state()), tmp_path)


def test_a_file_outside_of_the_model_is_not_read(tmp_path):
    with pytest.raises(RepositoryError, match=r"data_file of the initial state of 'S': .* is outside of the model"):
        read_states(model(state(initial=initial('data_file: "../../s"'))), tmp_path)
    with pytest.raises(RepositoryError, match="failed to open text file for read"):
        read_states(model(state(initial=initial())), tmp_path)


@pytest.mark.parametrize(
    ("second", "text"),
    [(state("S", made="P"), "'input_name' in the state"), (state("T", made="OS"), "'output_name' in the state")],
)
def test_a_state_that_is_there_twice_is_ignored_and_logged(tmp_path, caplog, second, text):
    found = read_states(model(state(), second, state("U")), tmp_path)
    assert [each.output_name for each in found] == ["OS", "OU"]
    [record] = caplog.records
    assert f"Detected duplicate {text} configuration of model 'm': " in record.getMessage()
    assert record.getMessage().endswith("This state configuration will be ignored.")


# -- in responses


def output(name: str, data: bytes = b"new.....") -> OutputTensor:
    return OutputTensor(name, FP32, (2,), data)


class Kept:
    """A model with the states S and T, of which T is also an output."""

    def __init__(self, tmp_path: Any, *, decoupled: bool = False) -> None:
        more = 'output { name: "OT" data_type: TYPE_FP32 dims: 2 } '
        more += "model_transaction_policy { decoupled: true }" if decoupled else ""
        made = model(state(), state("T"), more=more)
        self.states: tuple[StateTensor, ...] = read_states(made, tmp_path)
        self.outputs = StateOutputs(made, self.states)
        self.sequence = SequenceState(self.states)

    def keep(self, *names: str, requested: tuple[str, ...] = (), **more: Any) -> tuple[bool, list[str], Any]:
        """Whether the client gets a response, which outputs it has then, and its layout."""
        pending: Any = SimpleNamespace(
            state=more.pop("state", self.sequence), request=InferRequest("m", -1, [], requested_outputs=requested)
        )
        response = InferResponse("m", 1, outputs=[output(name) for name in names], layout="layout", **more)
        is_sent = self.outputs.keep(pending, response)
        return is_sent, [each.name for each in response.outputs], response.layout


def test_states_are_kept_for_the_sequence_and_only_declared_outputs_are_sent(tmp_path):
    kept = Kept(tmp_path)
    assert kept.keep("OUT", "OS", "OT") == (True, ["OUT", "OT"], None)
    assert [each.data for each in kept.sequence.inputs] == [b"new....."] * 2
    assert [each.name for each in kept.sequence.inputs] == ["S", "T"]


def test_a_response_without_states_is_left_as_it_is(tmp_path):
    kept = Kept(tmp_path)
    assert kept.keep("OUT") == (True, ["OUT"], "layout")
    assert [each.data for each in kept.sequence.inputs] == [bytes(8)] * 2
    assert kept.keep("OUT", "OT", state=None) == (True, ["OUT", "OT"], "layout")


def test_a_state_that_is_an_output_is_sent_to_those_who_request_it(tmp_path):
    kept = Kept(tmp_path)
    assert kept.keep("OUT", "OT", requested=("OUT",)) == (True, ["OUT"], None)
    assert kept.keep("OUT", "OT", requested=("OT",)) == (True, ["OUT", "OT"], "layout")


def test_a_decoupled_model_may_send_states_alone(tmp_path):
    kept = Kept(tmp_path, decoupled=True)
    assert kept.keep("OS") == (False, [], None)
    assert kept.keep("OS", parameters={"p": 1}) == (True, [], None)
    assert kept.keep("OS", "OUT") == (True, ["OUT"], None)
    assert Kept(tmp_path).keep("OS") == (True, [], None)
