"""Life of a server in this process: options, start, models, stop."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import time

import numpy as np
import psutil
import pytest
from serving.repositories import repository
from support.waiting import until

import naiad
import naiad as tritonserver
from naiad_embedded.inprocess.options import log_settings, server_options

IN = np.array([1.0], np.float32)
EXPIRED = r"^Exit timeout expired\. Exiting immediately\.$"


@pytest.fixture
def options(tmp_path, store):
    def make(*models, **fields):
        place = tmp_path / "models"
        if not place.exists():
            repository(place, models)
        return naiad.Options(model_repository=place, flags=[f"--env-store={store}"], **fields)

    return make


def guests():
    """Processes of models of this process, those of the server that all tests share among them."""
    return {
        child.pid
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "triton_python_backend_stub" in " ".join(child.cmdline())
    }


def test_calls_before_the_start_are_errors(options):
    server = naiad.Server(options("identity"))

    for use in (server.ready, server.live, server.models, server.metadata, server.metrics, server.stop):
        with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
            use()
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
        server.model("identity")


def test_a_server_starts_once_stops_once_and_starts_again(options):
    server = naiad.Server(options("identity"))

    for _ in range(2):
        before = guests()
        assert server.start(wait_until_ready=True, timeout=60) is server
        own, thread = guests() - before, server._running.loop._thread
        with pytest.raises(naiad.InvalidArgumentError, match=r"^Server already started$"):
            server.start()
        assert server.live()
        server.stop()
        with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
            server.stop()
        assert len(own) == 1
        assert not own & guests()
        assert not thread.is_alive()


def test_a_server_without_references_stops(options):
    before = guests()
    model = naiad.Server(options("identity")).start().model("identity")
    own, thread = guests() - before, model._server.loop._thread
    gc.collect()

    (response,) = model.infer(inputs={"IN": IN})  # the model keeps it
    assert response.final

    del model, response
    gc.collect()
    until(lambda: not own & guests() and not thread.is_alive(), "the end of the server")


def test_a_model_of_a_stopped_server_says_so(options):
    with naiad.Server(options("identity")) as server:
        model = server.model("identity")

    with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
        model.infer(inputs={"IN": IN})
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
        model.ready()


def test_a_model_that_cannot_be_loaded_fails_the_start_with_its_reason(options):
    with pytest.raises(naiad.InternalError, match=r"(?s)^failed to load all models\n.*no_class") as raised:
        naiad.Server(options("no_class", "identity")).start()

    assert "TritonPythonModel" in str(raised.value)


def test_a_model_that_cannot_be_loaded_is_left_out_without_exit_on_error(options):
    with naiad.Server(options("no_class", "identity", exit_on_error=False)) as server:
        broken = server.models()["no_class", 1]
        assert (broken.state, server.ready()) == ("UNAVAILABLE", False)
        assert "TritonPythonModel" in broken.reason
        assert list(server.models(exclude_not_ready=True)) == [("identity", 1)]
        server.stop()
        with pytest.raises(naiad.UnavailableError, match=r"^Timeout before ready$"):
            server.start(wait_until_ready=True, polling_interval=0.01, timeout=0.05)


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"model_repository": None}, naiad.InvalidArgumentError, r"^Model repository must be specified\.$"),
        ({"model_repository": 1}, TypeError, "Options.model_repository must be str or Path, not 1"),
        ({"server_id": 1}, TypeError, "Options.server_id must be str or Path, not 1"),
        ({"exit_timeout": "1"}, TypeError, "Options.exit_timeout must be int or float, not '1'"),
        ({"exit_timeout": True}, TypeError, "Options.exit_timeout must be int or float, not True"),
        ({"model_control_mode": "none"}, TypeError, "must be ModelControlMode, not 'none'"),
        ({"model_repository": "nowhere"}, naiad.InternalError, "nowhere"),
        ({"flags": ["--no-such-flag=1"]}, naiad.InvalidArgumentError, "unknown flag"),
        ({"flags": ["word"]}, naiad.InvalidArgumentError, "expected a flag, got 'word'"),
        ({"log_error": True, "log_file": "/nowhere/x.log"}, naiad.InvalidArgumentError, "log_file=/nowhere/x.log"),
    ],
)
def test_options_are_checked_at_the_start(tmp_path, fields, kind, text):
    given = {"model_repository": str(tmp_path), **fields}
    server = naiad.Server(**given)

    with pytest.raises(kind, match=text):
        server.start()


def test_options_become_those_of_the_server(tmp_path):
    options = server_options(
        naiad.Options(
            model_repository=[str(tmp_path / "a"), str(tmp_path / "b")],
            server_id="here",
            model_control_mode=naiad.ModelControlMode.EXPLICIT,
            startup_models=["m"],
            strict_model_config=True,
            rate_limiter_mode=naiad.RateLimitMode.EXEC_COUNT,
            rate_limiter_resources=[naiad.RateLimiterResource("R", 4, 0), naiad.RateLimiterResource("S", 2)],
            exit_timeout=7,
            strict_readiness=False,
            cpu_metrics=False,
            backend_directory=str(tmp_path / "backends"),
            backend_configuration={"python": {"stub-timeout-seconds": "9"}, "": {"x": "y"}},
            pinned_memory_pool_size=0,
            host_policies={"p": {"numa-node": "0"}},
            flags=["--stub-restart-limit=2"],
        )
    )

    assert [path.name for path in options.models.repositories] == ["a", "b"]
    assert (options.general.server_id, options.models.startup_models, options.models.auto_complete) == (
        "here",
        ("m",),
        False,
    )
    assert [(each.name, each.count, each.device) for each in options.rate_limit.resources] == [
        ("R", 4, 0),
        ("S", 2, None),
    ]
    assert (options.general.exit_timeout_secs, options.general.strict_readiness, options.metrics.with_cpu) == (
        7,
        False,
        False,
    )
    assert options.backends.directories[0] == tmp_path / "backends"
    assert options.backends.python.stub_timeout_seconds == 9
    assert options.guests.restart_limit == 2
    assert (options.http.is_enabled, options.grpc.is_enabled) == (False, False)
    assert len(options.notices) == 2  # pinned memory and host policies have no effect


def test_a_level_of_the_log_includes_the_more_severe_ones():
    assert log_settings(naiad.Options()) is None
    levels = log_settings(naiad.Options(log_warn=True, log_format=naiad.LogFormat.ISO8601))
    assert (levels.verbose, levels.info, levels.warning, levels.error, levels.iso8601) == (0, False, True, True, True)
    levels = log_settings(naiad.Options(log_verbose=2))
    assert (levels.verbose, levels.info, levels.warning, levels.error) == (2, True, True, True)


def test_the_log_goes_to_its_file_alone(options, tmp_path, capfd):
    with naiad.Server(options("identity", log_info=True, log_file=str(tmp_path / "log"))):
        logging.getLogger("another").warning("not ours")

    text = (tmp_path / "log").read_text()
    assert "identity" in text
    assert "not ours" not in text
    assert "identity" not in "".join(capfd.readouterr())


def test_two_servers_print_each_line_once(options, tmp_path, capfd):
    first = naiad.Server(options("identity", log_info=True)).start()
    with naiad.Server(options("identity", log_verbose=1, log_format=naiad.LogFormat.ISO8601)):
        tritonserver._api._logging.LogMessage(tritonserver._api._logging.LogLevel.WARN, "both are open")
        tritonserver._api._logging.LogMessage(tritonserver._api._logging.LogLevel.VERBOSE, "the second alone")
        with naiad.Server(options("identity", log_warn=True, log_file=str(tmp_path / "log"))):
            logging.getLogger("naiad.engine").warning("to each place")
    logging.getLogger("naiad.engine").info("the first goes on")
    first.stop()
    logging.getLogger("naiad.engine").warning("nobody writes")

    text = capfd.readouterr().err
    for line in ("both are open", "the second alone", "to each place", "the first goes on"):
        assert text.count(line) == 1, text
    assert "test_inprocess_server.py:" in next(line for line in text.splitlines() if "both are open" in line)
    assert "nobody writes" not in text
    assert (tmp_path / "log").read_text().count("to each place") == 1


def test_logging_is_as_before_in_whatever_order_servers_stop(options, capfd):
    logger = logging.getLogger("naiad")
    before = logger.level, logger.propagate, list(logger.handlers)
    first = naiad.Server(options("identity", log_info=True)).start()
    second = naiad.Server(options("identity", log_verbose=1)).start()
    first.stop()
    logging.getLogger("naiad.engine").info("the second goes on")
    second.stop()

    assert capfd.readouterr().err.count("the second goes on") == 1
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_without_a_log_the_programs_own_logging_gets_the_lines(options, caplog, capfd):
    with caplog.at_level(logging.INFO, "naiad"), naiad.Server(options("identity")):
        pass

    assert any("identity" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr().err == ""


def test_models_are_loaded_and_unloaded_where_that_is_explicit(options):
    with naiad.Server(
        options("identity", "two_instances", model_control_mode=naiad.ModelControlMode.EXPLICIT)
    ) as server:
        model = server.load("identity")
        assert model.ready()
        assert len(list(model.infer(inputs={"IN": IN}))) == 1

        server.unload(model, wait_until_unloaded=True, polling_interval=0.01, timeout=60)
        assert server.models()["identity", 1].state == "UNAVAILABLE"
        with pytest.raises(naiad.TritonError, match=r"'identity' has no available versions"):
            model.infer(inputs={"IN": IN})
        with pytest.raises(naiad.InternalError, match=r"nobody"):
            server.load("nobody")


def test_a_model_may_be_loaded_with_another_configuration_and_files(options):
    code = b"import triton_python_backend_utils as p\nclass TritonPythonModel:\n def execute(self, rs):\n  return [p.InferenceResponse([p.Tensor('OUT', -r.inputs()[0].as_numpy())]) for r in rs]\n"
    config = {"backend": "python", "max_batch_size": 4}
    config["input"] = [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}]
    config["output"] = [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}]

    with naiad.Server(options("identity", model_control_mode=naiad.ModelControlMode.EXPLICIT)) as server:
        model = server.load("identity", {"config": json.dumps(config), "file:1/model.py": code})
        (response,) = model.infer(inputs={"IN": IN.reshape(1, 1)})
        assert response.outputs["OUT"].to_numpy().tolist() == [[-1.0]]
        assert model.batch_properties() is naiad.ModelBatchFlag.FIRST_DIM


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("..", "invalid model name '..', model name must not contain path traversal characters"),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
    ],
)
def test_an_impossible_name_of_a_model_is_an_invalid_argument(options, name, text):
    with (
        naiad.Server(options("identity", model_control_mode=naiad.ModelControlMode.EXPLICIT)) as server,
        pytest.raises(naiad.InvalidArgumentError) as raised,
    ):
        server.load(name)

    assert str(raised.value) == text


def test_loading_needs_the_explicit_mode(shared):
    with pytest.raises(naiad.UnavailableError, match=r"explicit model load / unload is not allowed"):
        shared.load("identity")
    with pytest.raises(naiad.UnavailableError, match=r"explicit model load / unload is not allowed"):
        shared.unload("identity")


def test_models_are_found_by_name_and_by_version(shared):
    models = shared.models()

    assert models["identity"].version == -1
    assert repr(models["identity", 1]) == "{'name': 'identity', 'version': 1, 'state': 'READY'}"
    for key in ("nobody", ("identity", 9)):
        with pytest.raises(KeyError, match=r"Unknown Model: "):
            models[key]


def test_a_model_says_what_http_says_of_it(shared):
    model = shared.model("identity")

    assert model.metadata()["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1]}]
    assert (model.config()["name"], model.config()["max_batch_size"]) == ("identity", 0)
    assert model.statistics()["model_stats"][0]["name"] == "identity"
    assert model.batch_properties() is naiad.ModelBatchFlag.UNKNOWN
    assert model.transaction_properties() is naiad.ModelTxnPropertyFlag.ONE_TO_ONE
    assert shared.model("repeats").transaction_properties() is naiad.ModelTxnPropertyFlag.DECOUPLED
    with pytest.raises(naiad.UnsupportedError, match=r"configuration version 2 not supported"):
        model.config(2)
    with pytest.raises(naiad.NotFoundError, match=r"'nobody' is not found"):
        shared.model("nobody").ready()
    assert shared.metadata()["name"] == "triton"


def test_metrics_are_those_of_the_server_and_of_the_program(shared):
    family = naiad.MetricFamily(naiad.MetricKind.COUNTER, "pages_total", "Pages read.")
    metric = naiad.Metric(family, {"kind": "a"})
    metric.increment(2)
    naiad.Metric(naiad.MetricFamily(naiad.MetricKind.COUNTER, "pages_total", "Other words."), {"kind": "a"}).increment(
        1
    )

    assert (metric.value, metric.kind) == (3, naiad.MetricKind.COUNTER)
    page = shared.metrics()
    assert '# HELP pages_total Pages read.\n# TYPE pages_total counter\npages_total{kind="a"} 3\n' in page
    assert 'nv_inference_count{model="identity",version="1"}' in page
    with pytest.raises(naiad.InvalidArgumentError, match=r"only be incremented monotonically"):
        metric.increment(-1)
    with pytest.raises(naiad.UnsupportedError, match=r"does not support Set"):
        metric.set_value(1)
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Family name already exists with different type$"):
        naiad.MetricFamily(naiad.MetricKind.GAUGE, "pages_total", "")
    del family, metric
    assert "pages_total" not in shared.metrics()


def test_metrics_may_be_off(options):
    with (
        naiad.Server(options("identity", metrics=False)) as server,
        pytest.raises(naiad.UnsupportedError, match=r"^metrics not supported$"),
    ):
        server.metrics()


def test_coroutines_start_load_and_stop_without_blocking_their_loop(options):
    async def use():
        turns = 0

        async def turn():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.create_task(turn())
        async with naiad.Server(options("identity", model_control_mode=naiad.ModelControlMode.EXPLICIT)) as server:
            started = turns
            model = await server.async_load("identity")
            assert turns > started
            responses = [response async for response in model.async_infer(inputs={"IN": IN})]
            await server.async_unload(model)
            state = server.models()["identity", 1].state
        turning.cancel()
        return len(responses), state

    assert asyncio.run(use()) == (1, "UNAVAILABLE")


def test_many_threads_ask_at_once(shared):
    wrong = []

    def ask(number):
        for step in range(20):
            (response,) = shared.model("identity").infer(inputs={"IN": np.array([number, step], np.float32)})
            if response.outputs["OUT"].to_numpy().tolist() != [number, step]:
                wrong.append((number, step))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_request_in_flight_ends_when_the_server_stops(options):
    ended = []
    server = naiad.Server(options("repeats", exit_timeout=1)).start()
    responses = server.model("repeats").infer(inputs={"IN": np.array([1e9, 0], np.float32)}, raise_on_error=False)
    next(responses)
    reader = threading.Thread(target=lambda: ended.extend(each for each in responses if each.final))
    reader.start()

    with pytest.raises(naiad.InternalError, match=EXPIRED):
        server.stop()

    reader.join(60)
    assert [each.final for each in ended] == [True]
    with pytest.raises(naiad.InvalidArgumentError, match=r"^Server not started$"):
        server.stop()


def test_an_error_of_a_block_is_not_hidden_by_a_stop_that_takes_too_long(options):
    with pytest.raises(KeyError), naiad.Server(options("repeats", exit_timeout=0)) as server:  # noqa: PT012 - the block
        responses = server.model("repeats").infer(inputs={"IN": np.array([1e9, 0], np.float32)}, raise_on_error=False)
        next(responses)
        raise KeyError


def test_a_stop_without_time_and_without_requests_raises_nothing(options):
    with naiad.Server(options("identity", exit_timeout=0)) as server:
        list(server.model("identity").infer(inputs={"IN": IN}))


SEQUENCES = """
sequence_batching { direct { } max_sequence_idle_microseconds: 60000000 }
instance_group { count: 3 kind: KIND_CPU }  # slots: one sequence must not wait for another
"""


def of_sequence(model, **request):
    [response] = model.infer(inputs={"IN": IN}, correlation_id=7, **request)
    return response


def test_a_sequence_may_end_while_the_server_stops_and_none_begins(tmp_path, store):
    place = repository(tmp_path / "models", ["identity"], identity=SEQUENCES)
    server = naiad.Server(model_repository=place, flags=[f"--env-store={store}"], exit_timeout=60)
    server.start(wait_until_ready=True)
    model = server.model("identity")
    of_sequence(model, flags=1)
    stopping = threading.Thread(target=server.stop)
    stopping.start()

    def begins_none():
        try:
            list(model.infer(inputs={"IN": IN}, correlation_id=8, flags=3))
        except naiad.UnavailableError as error:
            return "has stopped accepting new inference requests" in str(error)

    until(begins_none, "new sequences to be refused")
    assert of_sequence(model).final
    assert stopping.is_alive()
    assert of_sequence(model, flags=2).final
    stopping.join(60)
    assert not stopping.is_alive()


def test_a_stop_waits_for_a_sequence_no_longer_than_it_may(tmp_path, store):
    place = repository(tmp_path / "models", ["identity"], identity=SEQUENCES)
    server = naiad.Server(model_repository=place, flags=[f"--env-store={store}"], exit_timeout=1).start()
    of_sequence(server.model("identity"), flags=1)
    began = time.monotonic()
    with pytest.raises(naiad.InternalError, match=EXPIRED):
        server.stop()
    assert 1 <= time.monotonic() - began < 20
