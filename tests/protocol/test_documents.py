"""The JSON documents of metadata, statistics and the index."""

from __future__ import annotations

from naiad.protocol.documents import index_document, metadata_document, server_document, statistics_document
from naiad.protocol.metadata import (
    BatchStatistics,
    Duration,
    IndexEntry,
    MemoryUse,
    ModelMetadata,
    ModelState,
    ModelStatistics,
    ResponseStatistics,
    ServerMetadata,
    TensorMetadata,
    with_labels,
)

INPUT = TensorMetadata(name="IN", datatype="FP32", shape=(-1, 2), required=True)
OUTPUTS = (TensorMetadata(name="X", datatype="BYTES", shape=(1,)), TensorMetadata(name="Y", datatype="BOOL", shape=()))
METADATA = ModelMetadata(name="m", versions=("1", "3"), platform="python", inputs=(INPUT,), outputs=OUTPUTS)


def duration(count: int) -> Duration:
    return Duration(count, 100 * count)


def as_json(count: int) -> dict[str, int]:
    return {"count": count, "ns": 100 * count}


def test_the_document_of_the_server_has_name_version_and_extensions():
    assert server_document(ServerMetadata(name="triton", version="2.1", extensions=("a", "b"))) == {
        "name": "triton",
        "version": "2.1",
        "extensions": ["a", "b"],
    }


def test_the_document_of_a_model_has_its_tensors():
    assert metadata_document(METADATA) == {
        "name": "m",
        "versions": ["1", "3"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [
            {"name": "X", "datatype": "BYTES", "shape": [1]},
            {"name": "Y", "datatype": "BOOL", "shape": []},
        ],
    }


def test_the_index_leaves_out_what_an_entry_does_not_have():
    entries = [
        IndexEntry(name="never"),
        IndexEntry(name="ready", version="2", state=ModelState.READY),
        IndexEntry(name="failed", version="1", state=ModelState.UNAVAILABLE, reason="unloaded"),
        IndexEntry(name="loading", state=ModelState.LOADING),
    ]
    assert index_document(entries) == [
        {"name": "never"},
        {"name": "ready", "version": "2", "state": "READY"},
        {"name": "failed", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "loading", "state": "LOADING"},
    ]


def test_the_document_of_statistics_has_every_duration():
    first = ResponseStatistics(
        compute_infer=duration(11),
        compute_output=duration(12),
        success=duration(13),
        fail=duration(14),
        empty_response=duration(15),
        cancel=duration(16),
    )
    batch = BatchStatistics(
        batch_size=4, compute_input=duration(21), compute_infer=duration(22), compute_output=duration(23)
    )
    model = ModelStatistics(
        name="m",
        version="1",
        last_inference=31,
        inference_count=32,
        execution_count=33,
        success=duration(1),
        fail=duration(2),
        queue=duration(3),
        compute_input=duration(4),
        compute_infer=duration(5),
        compute_output=duration(6),
        cache_hit=duration(7),
        cache_miss=duration(8),
        responses=[(0, first)],
        batch_stats=(batch,),
        memory_usage=(MemoryUse("GPU", 1, 4096),),
    )
    assert statistics_document([model]) == {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "last_inference": 31,
                "inference_count": 32,
                "execution_count": 33,
                "inference_stats": {
                    "success": as_json(1),
                    "fail": as_json(2),
                    "queue": as_json(3),
                    "compute_input": as_json(4),
                    "compute_infer": as_json(5),
                    "compute_output": as_json(6),
                    "cache_hit": as_json(7),
                    "cache_miss": as_json(8),
                },
                "response_stats": {
                    "0": {
                        "compute_infer": as_json(11),
                        "compute_output": as_json(12),
                        "success": as_json(13),
                        "fail": as_json(14),
                        "empty_response": as_json(15),
                        "cancel": as_json(16),
                    }
                },
                "batch_stats": [
                    {
                        "batch_size": 4,
                        "compute_input": as_json(21),
                        "compute_infer": as_json(22),
                        "compute_output": as_json(23),
                    }
                ],
                "memory_usage": [{"type": "GPU", "id": 1, "byte_size": 4096}],
            }
        ]
    }
    assert statistics_document([]) == {"model_stats": []}


def test_labels_are_added_to_the_outputs_they_are_for():
    assert with_labels(METADATA, {}) is METADATA
    labelled = with_labels(METADATA, {"X": ("cat", "dog"), "IN": ("no",)})
    assert [tensor.labels for tensor in labelled.outputs] == [("cat", "dog"), ()]
    assert labelled.inputs == METADATA.inputs
    assert [tensor.labels for tensor in METADATA.outputs] == [(), ()]
