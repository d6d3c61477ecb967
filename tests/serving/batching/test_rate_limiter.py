"""The rate limiter on a real server: models that share a resource take turns."""

from __future__ import annotations

import os
import re
import signal

import numpy as np
import pytest
import tritonclient.grpc
from support.server import ServerProcess
from support.waiting import until

from .batches import BatchModel, Request, metrics, statistics, wait_for_pending

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


def test_a_smaller_need_lowers_the_capacity_for_all(tmp_path):
    first, second = write(tmp_path / "models", "first", 10), write(tmp_path / "models", "second", 3, count=2)
    with ServerProcess(tmp_path / "models", LIMITED, *EXPLICIT, "--log-verbose=1", work=tmp_path) as server:
        assert r"Resource: R\t Count: 10" in server.log
        second.close_gate()
        side_by_side = [Request(server, second, rows=2)]
        second.wait_for_call(1)
        (second.folder / "began-1").unlink()
        side_by_side.append(Request(server, second, rows=2))
        second.wait_for_call(1)  # the first one of the other instance
        second.open_gate()
        assert [each.batch[0] for each in side_by_side] == [1, 1]
        load(server, first, 3, 1)
        server.wait_log(r"\nMax Resource Map===>\n\tDevice: 0\n\t\tResource: R\t Count: 3\n")
        second.close_gate()
        in_turn = [Request(server, second, rows=2) for _ in range(2)]
        second.wait_for_call(2)
        wait_for_pending(server, second, 1)
        assert not any(each.is_answered for each in in_turn)
        second.open_gate()
        assert all(each.batch for each in in_turn)


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


def test_models_run_side_by_side_if_the_resources_suffice_for_both(tmp_path):
    first, second = (write(tmp_path / "models", name, 1) for name in ("first", "second"))
    with ServerProcess(tmp_path / "models", LIMITED, "--rate-limit-resource=R:2", work=tmp_path) as server:
        first.close_gate()
        holds = Request(server, first)
        first.wait_for_call(1)
        assert Request(server, second).batch == [1, 1, 1, 0]
        first.open_gate()
        assert holds.batch == [1, 1, 1, 0]


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


def test_a_model_that_needs_more_than_the_capacity_does_not_load(tmp_path):
    write(tmp_path / "models", "greedy", 3)
    options = (LIMITED, "--rate-limit-resource=R:2", "--exit-on-error=false")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path, wait="live") as server:
        index = server.wait_for(lambda: server.post("/v2/repository/index").json()[0].get("reason"), "the load to fail")

    assert index == (
        'Invalid argument: Resource count for "R" is limited to 2 which will prevent scheduling of one or more model '
        "instances, the minimum required count is 3"
    )


def test_without_the_limiter_resources_are_ignored(tmp_path):
    model = write(tmp_path / "models", "greedy", 3)
    with ServerProcess(tmp_path / "models", "--rate-limit-resource=R:2", work=tmp_path) as server:
        assert Request(server, model).batch == [1, 1, 1, 0]


QUEUE = "max_batch_size: 2 dynamic_batching {{ max_queue_delay_microseconds: 1000 default_queue_policy {{ {} }} }}"


def ask_over_grpc(client, model):
    """Ask without waiting; what can be cancelled, and where the error will be."""
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 1), dtype=np.float32))
    errors = []
    return client.async_infer(model.name, [tensor], callback=lambda result, error: errors.append(error)), errors


def reasons(server, model, reason):
    line = f'nv_inference_request_failure{{model="{model.name}",reason="{reason}",version="1"}} '
    return next(float(text[len(line) :]) for text in metrics(server).splitlines() if text.startswith(line))


def test_a_request_that_is_cancelled_while_it_waits_for_a_resource_is_never_executed(tmp_path):
    first = write(tmp_path / "models", "first", 1)
    second = write(tmp_path / "models", "second", 1, batching="max_batch_size: 2 dynamic_batching { }")
    with (
        ServerProcess(tmp_path / "models", LIMITED, work=tmp_path) as server,
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
    ):
        first.close_gate()
        holds = Request(server, first)
        first.wait_for_call(1)
        call, errors = ask_over_grpc(client, second)
        wait_for_pending(server, second, 1)
        call.cancel()
        until(lambda: reasons(server, second, "CANCELED") == 1, "the cancelled request to be counted")
        until(lambda: errors, "the client's own thread to tell of it")
        assert "CANCELLED" in str(errors[0].status())
        stays = Request(server, second)
        assert holds.is_answered is stays.is_answered is False
        first.open_gate()
        assert (holds.batch, stays.batch) == ([1, 1, 1, 0], [1, 1, 1, 0])
        assert statistics(server, second)["execution_count"] == 1


def test_a_request_waits_for_a_resource_no_longer_than_it_may_wait_at_all(tmp_path):
    first = write(tmp_path / "models", "first", 1)
    patience = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    second = write(tmp_path / "models", "second", 1, batching=QUEUE.format(patience))
    with ServerProcess(tmp_path / "models", LIMITED, work=tmp_path) as server:
        first.close_gate()
        holds = Request(server, first)
        first.wait_for_call(1)
        assert Request(server, second, timeout=200000).refusal == (503, "Request timeout expired")
        assert reasons(server, second, "REJECTED") == 1
        assert not holds.is_answered
        first.open_gate()
        assert (holds.batch, Request(server, second).batch) == ([1, 1, 1, 0], [1, 1, 1, 0])
