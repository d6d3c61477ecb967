"""The rate limiter on a real server: models that share a resource take turns."""

from __future__ import annotations

import os
import re
import signal

import pytest
from support.server import ServerProcess

from .batches import BatchModel, Request, wait_for_pending

LIMITED = "--rate-limit=execution_count"


def write(repository, name, need, *, batching="max_batch_size: 2 dynamic_batching { }", count=1):
    model = BatchModel(repository, name, batching)
    set_group(model, need, count)
    return model


def set_group(model, need, count):
    """Let *count* instances of a model each need *need* units."""
    config = model.folder / "config.pbtxt"
    group = f'kind: KIND_CPU count: {count} rate_limiter {{ resources {{ name: "R" count: {need} }} }}'
    config.write_text(
        re.sub(r"instance_group \{ .* \} (?=max_batch)", f"instance_group {{ {group} }} ", config.read_text())
    )


EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


def load(server, model, need, count):
    set_group(model, need, count)
    server.begin_log()
    reply = server.post(f"/v2/repository/models/{model.name}/load")
    assert reply.status == 200, reply.error


def test_instances_are_added_and_removed_while_the_others_keep_their_resources(tmp_path):
    first, second = (write(tmp_path / "models", name, 1) for name in ("first", "second"))
    with ServerProcess(tmp_path / "models", LIMITED, *EXPLICIT, work=tmp_path) as server:
        guests = set(server.children())
        load(server, second, 1, 2)
        added = set(server.children()) - guests
        assert guests < set(server.children())
        assert len(added) == 1
        first.close_gate()
        holds = Request(server, first)
        first.wait_for_call(1)
        waits = [Request(server, second, rows=2) for _ in range(4)]
        wait_for_pending(server, second, 4)
        load(server, second, 1, 1)
        server.wait_for(lambda: set(server.children()) == guests, "the instance that was added to end")
        assert not any(each.is_answered for each in (holds, *waits)), "as one of them uses the resource"
        first.open_gate()
        assert sorted(each.batch[0] for each in waits) == [1, 2, 3, 4], "all in turn by the one that stayed"
        assert Request(server, second).batch[0] == 5


@pytest.mark.parametrize("batching", ["max_batch_size: 2 dynamic_batching { }", "max_batch_size: 2"])
def test_models_that_share_a_resource_take_turns(tmp_path, batching):
    first, second = (write(tmp_path / "models", name, 1, batching=batching) for name in ("first", "second"))
    with ServerProcess(tmp_path / "models", LIMITED, work=tmp_path) as server:
        first.close_gate()
        holds = Request(server, first)
        first.wait_for_call(1)
        waits = Request(server, second)
        assert server.get("/v2/models/second/stats").json()["model_stats"][0]["execution_count"] == 0
        assert not waits.is_answered
        first.open_gate()
        assert (holds.batch, waits.batch) == ([1, 1, 1, 0], [1, 1, 1, 0])
        assert Request(server, first).batch[0] == 2


def test_an_exited_guest_returns_its_resources(tmp_path):
    first, second = (write(tmp_path / "models", name, 1) for name in ("first", "second"))
    with ServerProcess(tmp_path / "models", LIMITED, work=tmp_path) as server:
        first.close_gate()
        holds = Request(server, first)
        first.wait_for_call(1)
        waits = Request(server, second)
        pid = next(child.pid for child in server.children() if is_first(server, child.pid))
        os.kill(pid, signal.SIGKILL)
        assert waits.batch == [1, 1, 1, 0]
        assert holds.refusal[0] == 500
        first.open_gate()


def is_first(server, pid):
    return any("'first_0_0' is ready" in line and f"pid {pid}," in line for line in server.log.splitlines())


def test_without_the_limiter_resources_are_ignored(tmp_path):
    model = write(tmp_path / "models", "greedy", 3)
    with ServerProcess(tmp_path / "models", "--rate-limit-resource=R:2", work=tmp_path) as server:
        assert Request(server, model).batch == [1, 1, 1, 0]
