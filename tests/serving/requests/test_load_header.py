"""The load of a model's cache in a header of responses. Texts are the reference's (SRV src/orca_http.cc)."""

from __future__ import annotations

import pytest
from support.model_files import write_files
from support.server import ServerProcess

CONFIG = """
backend: "python"
input [{ name: "I" data_type: TYPE_STRING dims: [1] }]
output [{ name: "O" data_type: TYPE_STRING dims: [1] }]
instance_group [{ kind: KIND_CPU }]
"""
MODEL = """
def initialize(self, args):
    name = "nv_trt_llm_kv_cache_block_metrics"
    self.family = pb_utils.MetricFamily(name, "blocks of the cache", pb_utils.MetricFamily.GAUGE)
    labels = {"model": args["model_name"], "version": "1"}
    self.blocks = {
        kind: self.family.Metric(labels={"kv_cache_block_type": kind, **labels})
        for kind in ("used", "max", "tokens_per", "fraction")
    }

def execute(self, requests):
    for request in requests:
        said = request.inputs()[0].as_numpy()[0].decode()
        for kind, value in zip(self.blocks, said.split()):
            self.blocks[kind].set(float(value))
    return [pb_utils.InferenceResponse([pb_utils.Tensor("O", r.inputs()[0].as_numpy())]) for r in requests]
"""
SILENT = """
def execute(self, requests):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("O", r.inputs()[0].as_numpy())]) for r in requests]
"""


def serving(path, code):
    write_files(path / "models", "llm", CONFIG, code)
    return ServerProcess(path / "models", work=path / "work")


@pytest.fixture(scope="module")
def server(work):
    with serving(work, MODEL) as running:
        yield running


def header(server, said, form, endpoint="generate"):
    headers = {} if form is None else {"endpoint-load-metrics-format": form}
    reply = server.post(f"/v2/models/llm/{endpoint}", {"I": said}, headers)
    assert reply.status == 200
    return reply.headers.get("endpoint-load-metrics")


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("said", "form", "expected"),
    [
        ("1 4 64", "json", 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":256}}'),
        ("1 3 64", "text", "TEXT named_metrics.kv_cache_utilization=0.333333, named_metrics.max_token_capacity=192"),
        ("0 0 64", "json", 'JSON {"named_metrics":{"kv_cache_utilization":0.0,"max_token_capacity":0}}'),
        ("1 4 64", None, None),
        ("1 4 -1", "json", None),
    ],
)
def test_the_use_of_the_cache_is_reported_in_the_requested_format(server, endpoint, said, form, expected):
    assert header(server, said, form, endpoint) == expected


def test_another_format_is_noticed_in_the_log(server):
    assert header(server, "1 4 64", "xml") is None
    server.wait_log("endpoint-load-metrics-format is set to an invalid type: xml")


def test_a_model_without_these_metrics_has_no_header_and_the_log_says_so(tmp_path):
    with serving(tmp_path, SILENT) as server:
        assert header(server, "1", "json") is None
        server.wait_log("no endpoint-load-metrics: one or more of the kv metrics was not found or invalid")
