"""gRPC messages that are long for protobuf: typed contents, a million of anything, strings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from attacks.watching import watched
from support.client_inputs import input_of
from support.server import HOST, ServerProcess
from tritonclient.grpc import service_pb2

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
COUNT = 10_000_000


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}", UNLIMITED) as opened:
        yield opened


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(model: str, *parts: bytes) -> bytes:
    return b"".join([field(1, model.encode()), *parts])


def tensor(datatype: str, shape: int, contents: bytes | None = None) -> bytes:
    body = field(1, b"INPUT0") + field(2, datatype.encode()) + field(3, varint(shape))
    return field(5, body if contents is None else body + field(5, contents))


STRINGS = b"\1\0\0\0a" * COUNT
WRONG_COUNT = (
    f"[request id: <id_unknown>] expected {COUNT + 1} string elements for inference input 'INPUT0' for model 'words', "
    f"got {COUNT}"
)

ATTACKS: dict[str, Callable[[], tuple[bytes, str]]] = {
    "raw strings": lambda: (message("words", tensor("BYTES", COUNT + 1), field(7, STRINGS)), WRONG_COUNT),
    "raw strings of varied lengths": lambda: (
        message("words", tensor("BYTES", 9), field(7, b"\1\0\0\0a\2\0\0\0ab\3\0\0\0abc" * 3_000_000)),
        "unexpected number of string elements 10 for inference input 'INPUT0' for model 'words', expecting 9",
    ),
    "typed strings": lambda: (message("words", tensor("BYTES", COUNT + 1, b"\x42\1a" * COUNT)), WRONG_COUNT),
    "varints": lambda: (
        message("bytes", tensor("UINT8", 1, field(4, b"\1" * 20_000_000))),
        "input byte size mismatch for input 'INPUT0' for model 'bytes'. Expected 1, got",
    ),
    "varints that are not packed": lambda: (
        message("bytes", tensor("UINT8", 1, b"\x20\1" * 8_000_000)),
        "input byte size mismatch for input 'INPUT0' for model 'bytes'. Expected 1, got",
    ),
    "dimensions": lambda: (
        message(
            "bytes", field(5, field(1, b"INPUT0") + field(2, b"UINT8") + field(3, b"\1" * 60_000_000)), field(7, b"\1")
        ),
        "it has 60000000 dimensions; at most 32 are supported",
    ),
    "inputs": lambda: (
        message("bytes", field(5, b"") * 1_000_000),
        "[request id: <id_unknown>] expected 1 inputs but got 1000000 inputs for model 'bytes'.",
    ),
    "a few inputs": lambda: (
        message("bytes", field(5, b"") * 30_000),
        "[request id: <id_unknown>] expected 1 inputs but got 30000 inputs for model 'bytes'.",
    ),
    "outputs": lambda: (
        message("bytes", *(field(6, field(1, b"%d" % index)) for index in range(100_000))),
        "unexpected inference output '0' for model 'bytes'",
    ),
    "raw contents": lambda: (
        message("words", tensor("BYTES", 1), field(7, b"\1\0\0\0b") * 1_000_000),
        "",
    ),
    "parameters": lambda: (
        message("words", *(field(4, field(1, b"%d" % index) + field(2, b"\x08\1")) for index in range(300_000))),
        "it has 300000 parameters; at most 4096 are supported",
    ),
    "nothing that is known": lambda: (
        message("words", field(99, b"") * 5_000_000),
        "expected 1 inputs but got 0 inputs",
    ),
    "no message": lambda: (message("words", field(5, b"\xff" * 60_000_000)), "Unable to parse request"),
}
OFTEN = {"a few inputs", "varints that are not packed"}
"""Those that are no matter of endurance."""


def ask(channel: grpc.Channel, data: bytes) -> str:
    """The text of the error of a call of ModelInfer; empty for a response."""
    try:
        channel.unary_unary(INFER)(data, timeout=240)
    except grpc.RpcError as error:
        return str(error.details())
    return ""


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.endurance) for name in ATTACKS],
)
def test_others_are_served_while_a_long_message_is_read(
    server: ServerProcess, channel: grpc.Channel, name: str
) -> None:
    data, text = ATTACKS[name]()
    with watched(server) as seen:
        error = ask(channel, data)
    assert text in error if text else not error, error[:500]
    seen.assert_others_served()
    seen.assert_memory(5 * len(data) + (32 << 20))


def test_typed_tensors_of_any_size_give_the_same_response(server: ServerProcess, channel: grpc.Channel) -> None:
    floats = np.arange(200_000, dtype=np.float32) / 7
    reply = service_pb2.ModelInferResponse.FromString(
        channel.unary_unary(INFER)(message("identity", tensor("FP32", len(floats), field(6, floats.tobytes()))))
    )
    assert reply.raw_output_contents[0] == floats.tobytes()
    texts = [b"a" * (index % 7) for index in range(50_000)]
    contents = b"".join(field(8, text) for text in texts)
    reply = service_pb2.ModelInferResponse.FromString(
        channel.unary_unary(INFER)(message("words", tensor("BYTES", len(texts), contents)))
    )
    assert reply.raw_output_contents[0] == b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def test_raw_tensors_are_not_read_in_another_process(server: ServerProcess, channel: grpc.Channel) -> None:
    data = np.arange(10_000_000, dtype=np.float32).tobytes()
    before = [child.pid for child in server.children()]
    reply = channel.unary_unary(INFER)(message("identity", tensor("FP32", 10_000_000), field(7, data)))
    assert reply.endswith(data)
    assert {child.pid for child in server.children()} <= set(before)


def test_messages_of_a_stream_keep_their_order(server: ServerProcess, channel: grpc.Channel) -> None:
    """A long message in the middle, and a long one that is refused: responses come in the order of the requests."""
    long = message("bytes", field(3, b"long"), tensor("UINT8", 300_000, field(4, b"\1" * 300_000)))
    wrong = message("bytes", field(3, b"wrong"), tensor("UINT8", 299_999, field(4, b"\1" * 300_000)))
    strings = message("words", field(3, b"strings"), tensor("BYTES", 100_000), field(7, b"\1\0\0\0a" * 100_000))
    few = message("words", field(3, b"few"), tensor("BYTES", 100_001), field(7, b"\1\0\0\0a" * 100_000))
    short = message("bytes", field(3, b"short"), tensor("UINT8", 1), field(7, b"\7"))
    replies = [
        service_pb2.ModelStreamInferResponse.FromString(data)
        for data in channel.stream_stream(STREAM)(iter([long, short, wrong, strings, short, few, short]), timeout=240)
    ]
    assert [(each.infer_response.id, bool(each.error_message)) for each in replies] == [
        ("long", False),
        ("short", False),
        ("wrong", True),
        ("strings", False),
        ("short", False),
        ("few", True),
        ("short", False),
    ]


def test_call_that_is_cancelled_while_it_is_read_leaves_nothing(server: ServerProcess, channel: grpc.Channel) -> None:
    data = message("bytes", tensor("UINT8", 1, field(4, b"\1" * 30_000_000)))
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="Deadline Exceeded"):
            channel.unary_unary(INFER)(data, timeout=0.3)
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        given = input_of(tritonclient.grpc, "INPUT0", np.zeros(100_000, np.uint8))
        assert len(client.infer("bytes", [given]).as_numpy("OUTPUT0")) == 100_000


def test_other_methods_take_no_long_messages(channel: grpc.Channel) -> None:
    method = channel.unary_unary("/inference.GRPCInferenceService/LogSettings")
    with pytest.raises(grpc.RpcError, match="request of 1000000 bytes exceeds the limit of 131072 bytes for this"):
        method(field(1, b"") * 500_000)
