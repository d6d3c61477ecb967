"""What is written to trace files, and what happens when they are written slowly or not at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from support.waiting import until

from naiad.config.server.trace_options import TraceConfig
from naiad.frontends.tracing import files
from naiad.frontends.tracing.records import CompleteTrace, TensorRecord
from naiad.frontends.tracing.rendering import render_traces
from naiad.frontends.tracing.tracer import Tracer
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor


def strings(*elements: bytes) -> bytes:
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


def elements(datatype: Datatype, data: bytes) -> str:
    record = TensorRecord(1, "TENSOR_QUEUE_INPUT", 'a "name"', datatype, (2, 3), data)
    trace = CompleteTrace([{"id": 1}, record, {"id": 2}], 0)
    pieces = list(render_traces([trace, trace]))
    assert max(map(len, pieces)) < 200_000
    document = json.loads(b"[" + b"".join(pieces) + b"]")
    assert document[0] == {"id": 1}
    assert document[2:4] == [{"id": 2}, {"id": 1}]
    assert document[1] == document[4]
    tensor = document[1]["tensor"]
    assert (tensor["name"], tensor["shape"], tensor["dtype"]) == ('a "name"', "2,3", datatype.name)
    return tensor["data"]


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        (Datatype.BOOL, b"\0\1\1", "0,1,1"),
        (Datatype.UINT8, b"\0\xff", "0,255"),
        (Datatype.INT64, np.array([-(2**62), 1234567]).tobytes(), "-4611686018427387904,1234567"),
        (Datatype.FP32, np.array([1.5, 0.1, 1e9, np.nan], "<f4").tobytes(), "1.5,0.1,1e+09,nan"),
        (Datatype.FP64, np.array([-1 / 3], "<f8").tobytes(), "-0.333333"),
        (Datatype.FP16, b"ab", ""),
        (Datatype.BF16, b"ab", ""),
        (Datatype.BYTES, strings(b"a", b"", 'é"'.encode(), b"\xff"), '"a","","é"","\N{REPLACEMENT CHARACTER}"'),
        (Datatype.BYTES, strings(b"a") + b"\xff\0\0\0x", '"a"'),
        (Datatype.FP32, b"\0\0\0\0\0", "0"),
        (Datatype.INT32, b"", ""),
    ],
)
def test_elements_are_written_as_text(datatype, data, text):
    assert elements(datatype, data) == text


def test_long_tensors_are_written_in_pieces():
    numbers = np.arange(20_000, dtype="<i4")
    assert elements(Datatype.INT32, numbers.tobytes()) == ",".join(map(str, range(20_000)))
    halves = np.arange(20_000, dtype="<f4") / 2
    assert elements(Datatype.FP32, halves.tobytes()) == ",".join(f"{value:g}" for value in halves.tolist())
    long = "aé\N{SMILING FACE WITH SUNGLASSES}" * 50_000
    texts = ["a", long, "b", *["c"] * 10_000]
    data = strings(*(text.encode() for text in texts))
    assert elements(Datatype.BYTES, data) == ",".join(f'"{text}"' for text in texts)


class Ignoring:
    def send(self, response, final):
        pass


def ask(tracer: Tracer, size: int = 0) -> None:
    inputs = [InputTensor("INPUT0", Datatype.UINT8, (size,), bytes(size))] if size else []
    request = InferRequest("m", -1, inputs)
    tracer.wrap_sink(request, Ignoring(), "HTTP").send(InferResponse("m", 1), True)


def tracer_to(path: Path, **options) -> Tracer:
    return Tracer(TraceConfig(**{"levels": ("TENSORS",), "rate": 1, "file": str(path), **options}))


def test_tensors_beyond_the_room_of_a_trace_are_written_without_elements(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("naiad.frontends.tracing.records.TENSORS_SIZE", 1000)
    tracer = tracer_to(tmp_path / "t")
    for size in (1001, 1000, 2000):
        ask(tracer, size)
    tracer.close()
    tensors = [event["tensor"] for event in json.loads((tmp_path / "t").read_text()) if "tensor" in event]
    assert [(tensor["shape"], len(tensor["data"])) for tensor in tensors] == [("1001", 0), ("1000", 1999), ("2000", 0)]
    assert caplog.text.count("cannot trace the elements of tensor 'INPUT0'") == 1


@pytest.fixture
def unread(tmp_path, monkeypatch) -> Path:
    """A pipe that nobody reads: even opening it blocks."""
    monkeypatch.setattr(files, "_STALL_SECONDS", 0.3)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_traces_for_a_file_that_is_not_written_are_dropped_and_counted(unread, caplog, monkeypatch):
    monkeypatch.setattr(files, "_MAX_WAITING", 1 << 20)
    tracer = tracer_to(unread)
    for _ in range(500):
        ask(tracer, 10_000)
    assert caplog.text.count("cannot keep the trace of a request: it is too long, or 1 MiB of traces wait for") == 1
    with unread.open("rb", buffering=0) as reader:
        os.set_blocking(reader.fileno(), False)

        def is_reported() -> bool:
            reader.read(1 << 20)
            ask(tracer, 10_000)
            return f"traces were dropped: they were too long, or {unread} was not written fast enough" in caplog.text

        until(is_reported, "the number of dropped traces")
        tracer.close()


def test_close_does_not_wait_for_a_file_that_is_not_written(unread, caplog):
    tracer = tracer_to(unread)
    ask(tracer, 10)
    with caplog.at_level(logging.ERROR, "naiad.trace"):
        tracer.close()
    assert f"cannot write the last traces to {unread}: it is not written fast enough; they are lost" in caplog.text
    os.close(os.open(unread, os.O_RDONLY | os.O_NONBLOCK))  # lets the thread end


def test_a_trace_that_becomes_too_long_is_dropped_as_a_whole(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("naiad.frontends.tracing.records._TRACE_SIZE", 100_000)
    tracer = tracer_to(tmp_path / "t")
    for size in (200_000, 10):
        ask(tracer, size)
    tracer.close()
    tensors = [event["tensor"] for event in json.loads((tmp_path / "t").read_text()) if "tensor" in event]
    assert [tensor["shape"] for tensor in tensors] == ["10"]
    assert caplog.text.count("cannot keep the trace of a request: it is too long, or") == 1


def test_large_traces_are_written_before_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BATCH_SIZE", 100_000)
    monkeypatch.setattr("naiad.frontends.tracing.tracer.BATCH_SIZE", 100_000)
    one = tracer_to(tmp_path / "one")
    numbered = tracer_to(tmp_path / "numbered", log_frequency=1000)
    for tracer in (one, numbered):
        ask(tracer, 60_000)
        ask(tracer, 60_000)
    until(lambda: (tmp_path / "one").exists() and (tmp_path / "numbered.0").exists(), "both files")
    one.close()
    numbered.close()


def test_same_failure_is_logged_once(tmp_path, caplog):
    tracer = tracer_to(tmp_path / "no" / "t", log_frequency=1)
    for _ in range(5):
        ask(tracer)
    tracer.close()
    # Of this file: the writer of an earlier test may end during this one.
    assert caplog.text.count(f"failed creating trace file: {tmp_path}") == 1


@pytest.mark.parametrize("frequency", [0, 1])
def test_traces_that_a_full_disk_loses_are_counted_and_leave_no_broken_file(tmp_path, caplog, monkeypatch, frequency):
    write_all = files._write_all
    full = threading.Event()

    def write_some(descriptor, data, on_progress):
        if full.is_set():
            os.write(descriptor, bytes(data[: len(data) // 2]))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(descriptor, data, on_progress)

    monkeypatch.setattr(files, "_write_all", write_some)
    file = files.TraceFile(str(tmp_path / "t"))

    def write(number):
        if frequency:
            file.write_numbered([CompleteTrace([{"id": number}], 100)])
        else:
            file.add(CompleteTrace([{"id": number}], 100))
            file.flush()
        file._thread.put(written.release)
        assert written.acquire(timeout=60), "the thread writes"

    written = threading.Semaphore(0)
    for number, is_full in enumerate([True, True, False, False, True, False, True]):
        full.set() if is_full else full.clear()
        write(number)
    full.clear()
    file.close()

    kept = sorted(tmp_path.iterdir())
    assert [each["id"] for path in kept for each in json.loads(path.read_bytes())] == [2, 3, 5]
    assert [path.name for path in kept] == (["t.2", "t.3", "t.5"] if frequency else ["t"])
    where = f"{tmp_path}/t could not be written"
    assert [record.message for record in caplog.records if record.message.startswith("lost ")] == [
        f"lost 2 traces: {where}; traces are written again",
        f"lost 1 trace: {where}; traces are written again",
        f"lost 1 trace: {where}; the server ends",
    ]
