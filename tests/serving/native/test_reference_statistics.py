"""What native backends report, in the statistics and metrics of naiad and of the real server, which load the same files.

Needs an installed reference: NAIAD_BENCH_REFERENCE names its folder, as for `python -m bench`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from serving.native.test_native_backends import add_reporting_models, ask_reporting_models
from support.server import ServerProcess

REFERENCE = Path(os.environ.get("NAIAD_BENCH_REFERENCE", "/nowhere"))
_DURATIONS = re.compile(r"_duration_us|_histogram_ms|_summary_us")

pytestmark = [
    pytest.mark.skipif(not (REFERENCE / "READY").exists(), reason="NAIAD_BENCH_REFERENCE names no installed Triton"),
]


def reported(server: ServerProcess) -> tuple[dict[str, Any], dict[str, float]]:
    """Statistics of each model without what depends on the machine's speed; the counters of models on /metrics."""
    ask_reporting_models(server)
    models = {}
    for entry in server.get("/v2/models/stats").json()["model_stats"]:
        entry["last_inference"] = entry["last_inference"] > 0
        for each in (entry["inference_stats"], *({**batch, "batch_size": {}} for batch in entry["batch_stats"])):
            for duration in each.values():
                duration.pop("ns", None)
        models[entry["name"]] = entry
    page = {}
    for line in server.metrics().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("nv_inference_") and not _DURATIONS.search(name):
            page[name] = float(value)
    return models, page


def test_both_servers_count_alike_what_backends_report(tmp_path):
    repository = tmp_path / "models"
    add_reporting_models(repository)
    with ServerProcess(repository, work=tmp_path / "ours") as server:
        ours, our_page = reported(server)
    command = [REFERENCE / "bin" / "tritonserver"]
    with ServerProcess(repository, work=tmp_path / "theirs", command=command) as server:
        theirs, their_page = reported(server)

    assert ours == theirs
    assert our_page == their_page
    assert our_page['nv_inference_count{model="echo",version="1"}'] == 4
