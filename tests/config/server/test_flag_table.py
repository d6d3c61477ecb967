"""No flag is ever silently ignored: each is used, accepted with a reason, or refused with one."""

from __future__ import annotations

import pytest
from cli.parsing import parse, refusal

from naiad.config.server.flag import NoEffect, Unsupported, UsageError
from naiad.config.server.options import SERVER_FLAGS

# Section 5 of the reference's behaviour, with the names of its own source.
REFERENCE_FLAGS = [
    "help",
    "id",
    "model-repository",
    "model-store",
    "exit-on-error",
    "exit-timeout-secs",
    "strict-readiness",
    "disable-auto-complete-config",
    "strict-model-config",
    "model-control-mode",
    "repository-poll-secs",
    "load-model",
    "model-config-name",
    "model-load-thread-count",
    "model-load-retry-count",
    "model-namespacing",
    "backend-directory",
    "backend-config",
    "repoagent-directory",
    "allow-http",
    "http-address",
    "http-port",
    "reuse-http-port",
    "http-thread-count",
    "http-max-input-size",
    "http-header-forward-pattern",
    "http-restricted-api",
    "allow-grpc",
    "grpc-address",
    "grpc-port",
    "reuse-grpc-port",
    "grpc-header-forward-pattern",
    "grpc-restricted-protocol",
    "grpc-infer-thread-count",
    "grpc-infer-allocation-pool-size",
    "grpc-max-response-pool-size",
    "grpc-use-ssl",
    "grpc-use-ssl-mutual",
    "grpc-server-cert",
    "grpc-server-key",
    "grpc-root-cert",
    "grpc-infer-response-compression-level",
    "grpc-keepalive-time",
    "grpc-keepalive-timeout",
    "grpc-keepalive-permit-without-calls",
    "grpc-http2-max-pings-without-data",
    "grpc-http2-min-recv-ping-interval-without-data",
    "grpc-http2-max-ping-strikes",
    "grpc-max-connection-age",
    "grpc-max-connection-age-grace",
    "log-verbose",
    "log-info",
    "log-warning",
    "log-error",
    "log-format",
    "log-file",
    "allow-metrics",
    "metrics-address",
    "metrics-port",
    "metrics-interval-ms",
    "metrics-config",
    "allow-cpu-metrics",
    "allow-gpu-metrics",
    "trace-config",
    "trace-file",
    "trace-level",
    "trace-rate",
    "trace-count",
    "trace-log-frequency",
    "cache-config",
    "cache-directory",
    "response-cache-byte-size",
    "rate-limit",
    "rate-limit-resource",
    "allow-client-shm",
    "host-policy",
    "buffer-manager-thread-count",
    "pinned-memory-pool-byte-size",
    "enable-peer-access",
    "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size",
    "min-supported-compute-capability",
    "model-load-gpu-limit",
    "allow-sagemaker",
    "sagemaker-port",
    "sagemaker-safe-port-range",
    "sagemaker-thread-count",
    "allow-vertex-ai",
    "vertex-ai-port",
    "vertex-ai-thread-count",
    "vertex-ai-default-model",
]


def test_every_flag_of_the_reference_is_known_and_only_our_own_are_more():
    known = {flag.name: flag for flag in SERVER_FLAGS}
    assert len(known) == len(SERVER_FLAGS)
    assert sorted(name for name, flag in known.items() if not flag.own) == sorted(REFERENCE_FLAGS)


def test_a_flag_without_effect_says_why_and_a_refused_one_what_is_missing_and_has_a_harmless_default():
    for flag in SERVER_FLAGS:
        if isinstance(flag.support, NoEffect | Unsupported):
            assert len(flag.support.reason.split()) > 3, flag.name
        if isinstance(flag.support, Unsupported) and flag.default:
            assert flag.support.is_harmless(flag.default), flag.name


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--allow-sagemaker=true", "SageMaker's API is not implemented"),
        ("--allow-vertex-ai=true", "the API of Vertex AI is not implemented"),
    ],
)
def test_unsupported_flags_are_refused_and_never_ignored(argument, reason):
    error = refusal(argument)
    assert not isinstance(error, UsageError)
    assert error.message.startswith(f"{argument} is refused: {reason}")


@pytest.mark.parametrize(
    "argument",
    [
        "--trace-config=level=OFF",
        "--trace-config=rate=10",
        "--trace-level=OFF",
        "--rate-limit=off",
        "--allow-sagemaker=false",
        "--metrics-config=counter_latencies=true",
    ],
)
def test_a_refused_flag_may_have_its_default_value(argument):
    parse(argument)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--metrics-interval-ms=500.5", "metrics are measured when they are asked for"),
        ("--http-thread-count=8", "one event loop serves all connections"),
        ("--pinned-memory-pool-byte-size=0", "the server uses no GPU itself"),
        ("--cache-directory=/c", "the response cache is part of naiad"),
        ("--host-policy=gpu_0,numa-node=0", "instances run where the system puts them"),
    ],
)
def test_a_flag_without_effect_is_accepted_with_one_sentence(argument, reason):
    (notice,) = parse(argument, argument).notices
    name = argument.partition("=")[0]
    assert notice.startswith(f"{name} has no effect here: {reason}")


@pytest.mark.parametrize("text", ["R", ":2", "R:1:2:3", "R:x", "R:1:x", "R:-1"])
def test_a_resource_that_cannot_be_read_is_refused(text):
    error = refusal(f"--rate-limit-resource={text}")

    assert isinstance(error, UsageError)
    assert "--rate-limit-resource" in error.message


def test_resources_are_limited_on_one_device_or_on_each():
    assert parse("--rate-limit-resource=R:2").rate_limit.resources is None
    options = parse("--rate-limit=execution_count", "--rate-limit-resource=R:2", "--rate-limit-resource=S:3:1")

    assert [(limit.name, limit.count, limit.device) for limit in options.rate_limit.resources] == [
        ("R", 2, None),
        ("S", 3, 1),
    ]


@pytest.mark.parametrize("name", ["http-restricted-api", "grpc-restricted-protocol"])
def test_the_form_of_a_restriction_in_the_usage_is_the_one_that_is_read(name):
    (flag,) = (each for each in SERVER_FLAGS if each.name == name)
    form = flag.kind.value.replace("<api>,<api>", "trace,logging").replace("<header>=<value>", "key=secret")

    parse(f"--{name}={form}")
