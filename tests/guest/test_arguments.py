"""What is taken for a text, a number or a list throughout the API: what models find in tensors, for one."""

from collections import deque
from fractions import Fraction

import numpy as np
import pytest
from naiad_stub import control, logger, runtime
from naiad_stub.arguments import integer, sequence, text
from naiad_stub.exceptions import TritonError
from naiad_stub.metrics import MetricFamily
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.tensor import Tensor


class Loud(str):
    """A str that prints itself in another way."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


@pytest.mark.parametrize("given", ["n\u00e9", "n\u00e9".encode(), bytearray("n\u00e9".encode()), np.bytes_("n\u00e9".encode()), np.str_("n\u00e9"), Loud("n\u00e9")])  # fmt: skip
def test_texts_and_bytes_are_texts(given):
    taken = text("name must be a str", given)

    assert (taken, type(taken)) == ("n\u00e9", str)


@pytest.mark.parametrize(
    ("given", "kind"), [(None, "NoneType"), (7, "int"), (memoryview(b"a"), "memoryview"), ([b"a"], "list")]
)
def test_other_values_are_not_texts(given, kind):
    with pytest.raises(TypeError, match=rf"^name must be a str, got {kind}$"):
        text("name must be a str", given)


def test_bytes_that_are_no_utf8_are_refused():
    with pytest.raises(UnicodeDecodeError, match="invalid start byte"):
        text("name must be a str", b"\xff")


@pytest.mark.parametrize(
    "given",
    [
        5,
        np.uint8(5),
        np.array(5),
        np.array([5]),
        np.array([[5]], np.uint64),
        np.float32(5),
        np.array([5.0]),
        Fraction(5),
    ],
)
def test_whatever_can_be_made_an_int_is_one_unless_it_is_a_float(given):
    taken = integer("timeout", given, 0, 64)

    assert (taken, type(taken)) == (5, int)


@pytest.mark.parametrize(
    ("given", "kind"),
    [(5.0, "float"), (np.float64(5), "float64"), ("5", "str"), (b"5", "bytes"), (None, "NoneType"), (1j, "complex"),
     (np.array([1, 2]), "ndarray"), (np.array([]), "ndarray"), (np.float32("nan"), "float32"), (np.array(["x"]), "ndarray")],
)  # fmt: skip
def test_other_values_are_not_ints(given, kind):
    with pytest.raises(TypeError, match=rf"^timeout must be an int, got {kind}$"):
        integer("timeout", given, 0, 64)


@pytest.mark.parametrize("given", [["a", "b"], ("a", "b"), deque(["a", "b"]), np.array(["a", "b"])])
def test_sequences_are_lists(given):
    assert list(sequence("inputs", given)) == ["a", "b"]


@pytest.mark.parametrize("given", ["ab", b"ab", bytearray(b"ab"), {"a": 1}, {"a"}, iter("ab"), None, {"a": 1}.keys()])
def test_texts_mappings_sets_and_iterators_are_no_lists(given):
    with pytest.raises(TypeError, match=rf"^inputs must be a list, got {type(given).__name__}$"):
        sequence("inputs", given)


def test_a_request_is_made_of_what_tensors_hold():
    names = np.array([b"model", b"id"], object)
    tensor = Tensor(names[0], np.zeros(1))

    request = InferenceRequest(
        model_name=names[0],
        request_id=names[1],
        inputs=np.array([tensor], object),
        requested_output_names=np.array([b"A", b"B"], object),
        timeout=np.array([7]),
        model_version=np.array([1], np.int32),
    )

    assert (request._model_name, request.request_id()) == ("model", "id")
    assert ([each.name() for each in request.inputs()], request.requested_output_names()) == (["model"], {"A", "B"})
    assert (request.timeout(), request._model_version) == (7, 1)


def test_the_rest_of_the_api_takes_bytes_and_sequences_as_well():
    told = []
    tensor = Tensor.from_dlpack(b"OUT", Tensor(bytearray(b"IN"), np.zeros(1)))
    with runtime.activate(runtime.Runtime(log=lambda level, _file, _line, message: told.append((level, message)))):
        logger.Logger.log_warn(b"beware")

    assert (tensor.name(), Tensor.allocate(b"MADE", (1,), "f4").name()) == ("OUT", "MADE")
    assert InferenceResponse(deque([tensor])).output_tensors() == [tensor]
    assert TritonError(b"bad").message() == "bad"
    assert told == [(1, "beware")]


class Recorder(runtime.ModelControl):
    """Keeps what a server would be asked."""

    def __init__(self):
        self.asked = []

    def load_model(self, *arguments):
        self.asked.append(arguments)

    def unload_model(self, *arguments):
        self.asked.append(arguments)

    def is_model_ready(self, *arguments):
        self.asked.append(arguments)
        return True


def test_models_are_controlled_by_names_as_bytes():
    server = Recorder()

    with runtime.activate(runtime.Runtime(control=server)):
        control.load_model(b"m", b"{}", {b"file:1/model.py": b"pass"})
        control.unload_model(b"m")
        control.is_model_ready(b"m", b"2")

    assert server.asked == [("m", "{}", {"file:1/model.py": b"pass"}), ("m", False), ("m", "2")]


def test_files_are_bytes_by_texts():
    with pytest.raises(
        TypeError, match=r"^load_model takes files as bytes by their paths as str, got str in place of bytes$"
    ):
        control.load_model("m", files={"file:1/model.py": "pass"})
    with pytest.raises(TypeError, match=r"^load_model takes files as bytes by their paths as str: a path, got int$"):
        control.load_model("m", files={1: b"pass"})


class Families(runtime.MetricStore):
    """Keeps what it is told of families."""

    def __init__(self):
        self.told = []

    def new_family(self, name, description, kind):
        self.told.append((name, description, kind))


def test_families_of_metrics_are_named_by_bytes():
    server = Families()

    with runtime.activate(runtime.Runtime(metrics=server)):
        MetricFamily(b"seen", b"What was seen", MetricFamily.COUNTER)

    assert server.told == [("seen", "What was seen", MetricFamily.COUNTER)]
