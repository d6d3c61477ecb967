"""`--gpu-fallback=cpu`: repositories for GPUs start where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving.repositories import index
from serving.written import evaluate, write_model
from support.server import ServerProcess

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
WARNING = "there is no GPU that models may use: instance groups of KIND_GPU are placed on the CPU (--gpu-fallback=cpu)"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_model(tmp_path / "models", name, config="instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]")
    return tmp_path / "models"


def test_groups_for_gpus_run_on_the_cpu_with_one_warning(repository, tmp_path):
    with ServerProcess(repository, "--gpu-fallback=cpu", work=tmp_path, environ=NO_GPU) as server:
        assert evaluate(server, "a", "1 + 1") == "2"
        (group,) = server.get("/v2/models/b/config").json()["instance_group"]
        assert (group["kind"], group["gpus"]) == ("KIND_CPU", [])
        assert server.log.count(WARNING) == 1


def test_without_the_flag_they_are_refused_and_the_error_names_it(repository, tmp_path):
    options = ("--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(repository, *options, work=tmp_path, wait="loaded", environ=NO_GPU) as server:
        reason = server.wait_for(lambda: index(server)["a"].get("reason"), "the failure")

    assert "instance group a_0 of model a has kind KIND_GPU but server does not support GPUs" in reason
    assert "or start with --gpu-fallback=cpu, which places such groups on the CPU" in reason
