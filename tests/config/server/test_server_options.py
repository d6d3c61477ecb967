"""The server's command line as a value, and everything that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.parsing import parse, refusal

from naiad.config.server.backend_settings import PythonSettings, shipped_backends
from naiad.config.server.env_build import EnvBuild
from naiad.config.server.flag import UsageError
from naiad.config.server.metrics_options import MetricsConfig
from naiad.config.server.options import LogFormat, ModelControlMode


def test_the_defaults_are_those_of_the_reference():
    options = parse()
    assert options.models.repositories == (Path("/models"),)
    assert (options.general.server_id, options.general.exit_timeout_secs, options.models.load_thread_count) == (
        "triton",
        30,
        4,
    )
    assert (options.http.port, options.grpc.port, options.metrics.port) == (8000, 8001, 8002)
    assert (options.http.address, options.grpc.address, options.metrics.address) == ("0.0.0.0",) * 3
    assert options.http.max_input_size == 67108864
    assert all(
        (options.http.is_enabled, options.grpc.is_enabled, options.metrics.is_enabled, options.general.exit_on_error)
    )
    assert all((options.models.auto_complete, options.general.strict_readiness, options.log.info))
    assert options.models.control_mode is ModelControlMode.NONE
    assert options.log.format is LogFormat.DEFAULT
    assert options.backends.python == PythonSettings()
    assert (options.notices, options.warnings) == ((), ())


def test_the_start_line_of_kserve_works():
    line = [
        "--model-store=/mnt/models",
        "--grpc-port=9000",
        "--http-port=8080",
        "--allow-grpc=true",
        "--allow-http=true",
    ]
    options = parse(*line, repository=None)
    assert (options.models.repositories, options.grpc.port, options.http.port) == ((Path("/mnt/models"),), 9000, 8080)


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("--model-store=/b", "--model-repository", "/models"), (Path("/b"),)),
        (
            ("--model-repository=s3://https://host:1/b", "--model-repository=file:///srv//x"),
            ("s3://https://host:1/b", Path("/srv/x")),
        ),
    ],
    ids=["in order and each once", "by URI elsewhere and by path here"],
)
def test_repositories_add_up(arguments, more):
    assert parse(*arguments).models.repositories == (Path("/models"), *more)


def test_of_several_values_of_a_single_flag_the_last_counts():
    assert parse("--http-port=1", "--http-port=2").http.port == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "True", "ON", "on", "1")),
        *((text, False) for text in ("false", "FALSE", "off", "0")),
    ],
)
def test_true_and_false_have_six_spellings_each_in_a_switch(text, value):
    assert parse(f"--reuse-http-port={text}").http.reuse_port is value
    assert parse(f"--allow-http={text}").http.is_enabled is value


@pytest.mark.parametrize(("text", "level"), [("0", 0), ("1", 1), ("3", 3), ("true", 1), ("off", 0)])
def test_verbosity_is_a_number_or_a_switch(text, level):
    assert parse(f"--log-verbose={text}").log.verbosity == level


def test_metrics_listen_where_http_does_unless_told():
    assert parse("--http-address=127.0.0.1").metrics.address == "127.0.0.1"
    assert parse("--http-address=127.0.0.1", "--metrics-address=::1").metrics.address == "::1"


DEPRECATED = "--strict-model-config is deprecated; use --disable-auto-complete-config instead"


@pytest.mark.parametrize(
    ("arguments", "complete", "warnings"),
    [
        ([], True, ()),
        (["--disable-auto-complete-config"], False, ()),
        (["--strict-model-config=true"], False, (DEPRECATED,)),
        (["--strict-model-config=false"], True, (DEPRECATED,)),
    ],
)
def test_completion_of_configurations_can_be_turned_off_by_two_names(arguments, complete, warnings):
    options = parse(*arguments)
    assert (options.models.auto_complete, options.warnings) == (complete, warnings)


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("allow-http", "maybe", "invalid value for bool option: maybe"),
        ("http-port", "abc", "Invalid option value. Got abc"),
        ("http-port", "99999999999", "Provided option value is out of bound. Got 99999999999"),
        ("http-port", "65536", "--http-port must be at most 65535. Got 65536"),
        ("http-max-input-size", "0", "--http-max-input-size must be at least 1. Got 0"),
        ("grpc-infer-thread-count", "1", "--grpc-infer-thread-count must be at least 2. Got 1"),
        (
            *("model-control-mode", "foo"),
            "invalid argument for --model-control-mode: unknown value 'foo'; give one of none, poll, explicit, demand",
        ),
        ("backend-config", "foo", "--backend-config option format is '<backend name>,<setting>=<value>'. Got foo"),
        ("model-config-name", "", "Error: empty argument for --model-config-name"),
        # Of the cache: what names none, and settings without a name or a value.
        *(
            (
                "cache-config",
                text,
                f"No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {text}",
            )
            for text in ("local", "local=1", "size=1048576", ",size=1", "")
        ),
        *(
            ("cache-config", text, f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
            for text in ("local,", "local,size", "local,size=", "local,=1")
        ),
        *(
            ("metrics-config", text, f"--metrics-config option format is <setting>=<value>. Got {text}")
            for text in ("foo", "=x", "a=", "")
        ),
    ],
)
def test_an_invalid_value_has_the_text_of_the_reference(flag, text, message):
    error = refusal(f"--{flag}={text}")
    assert isinstance(error, UsageError)
    assert error.message == f'Bad option: "--{flag}".\n{message}'


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("stray", "Unexpected argument: stray"),
        ("--load-model=m", "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
        (
            "--grpc-port=8000",
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8000",
        ),
        (
            "--metrics-port=8001",
            "The server cannot listen to GRPC requests and metrics requests at the same address and port 0.0.0.0:8001",
        ),
    ],
)
def test_flags_that_do_not_fit_together_have_the_text_of_the_reference(argument, message):
    error = refusal(argument)
    assert isinstance(error, UsageError)
    assert error.message == message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--grpc-port=8000", "--grpc-address=127.0.0.1"],
        ["--grpc-port=8000", "--allow-http=false"],
        ["--http-port=0", "--grpc-port=0", "--metrics-port=0"],
    ],
)
def test_services_that_do_not_listen_at_one_address_may_share_a_port_number(arguments):
    parse(*arguments)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("shm-default-byte-size=1048575", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("stub-timeout-seconds=0", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("thread-pool-size=0", "thread-pool-size can't be less than 1."),
        ("thread-pool-size=many", "stol: --backend-config=python,thread-pool-size=many is not a number"),
    ],
)
def test_settings_of_python_are_checked_before_anything_starts(setting, message):
    assert refusal(f"--backend-config=python,{setting}").message == f'Bad option: "--backend-config".\n{message}'
    assert refusal(f"--backend-config={setting}").message.startswith('Bad option: "--backend-config".')


def test_settings_of_backends_are_grouped_and_the_last_value_of_a_key_counts():
    options = parse(
        "--backend-config=python,thread-pool-size=4",
        "--backend-config=python,thread-pool-size=8abc",
        "--backend-config=stub-timeout-seconds=5",
        "--backend-config=x,a=b=c,d",
    )
    assert {name: dict(settings) for name, settings in options.backends.configs.items()} == {
        "python": {"thread-pool-size": "8abc"},
        "": {"stub-timeout-seconds": "5"},
        "x": {"a": "b=c,d"},
    }
    assert options.backends.python.stub_timeout_seconds == 5


def test_two_ways_to_name_a_cache_exclude_each_other():
    error = refusal("--response-cache-byte-size=0", "--cache-config=local,size=0")
    assert error.message == (
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or "
        "the other."
    )


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        (("--cache-config=local,size=1048576",), 1048576),
        (("--cache-config", "local,size=1048576"), 1048576),
        (("--cache-config=local,size=1", "--cache-config=local,size=200"), 200),
        (("--cache-config=local,other=1", "--cache-config=local,size=1"), 1),
        (("--response-cache-byte-size=1",), 1),
        (("--response-cache-byte-size", "200", "--cache-directory=/c"), 200),
        (("--cache-directory=/c",), 0),
    ],
)
def test_a_cache_has_the_size_given_last(arguments, size):
    assert parse(*arguments).cache.size == size


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("other=1", "Invalid argument - Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
        (
            "size=0",
            "Internal - Failed to initialize LocalCache: size 0 is too small: use 1 or more bytes, or no --cache-config for no cache",
        ),
        ("size=12x", "Internal - Failed to initialize LocalCache: size '12x' is not a number of bytes"),
        ("size=-5", "Internal - Failed to initialize LocalCache: size '-5' is not a number of bytes"),
        (
            "size=999999999999999999999",
            "Internal - Failed to initialize LocalCache: failed to allocate buffer: size 999999999999999999999 is more than the ",
        ),
    ],
)
def test_an_impossible_cache_prevents_the_start_of_the_server(setting, text):
    error = refusal(f"--cache-config=local,{setting}")
    assert not isinstance(error, UsageError)
    assert error.message.startswith(f"error: creating server: {text}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("--cache-config=local,size=2000", "--cache-config=redis,host=h"),
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (
            ("--cache-config=redis,host=h",),
            (
                "there is no cache 'redis': naiad keeps responses in its own memory and loads no "
                "libtritoncache_redis.so; use --cache-config=local,size=<bytes>"
            ),
        ),
    ],
)
def test_there_is_one_cache_and_it_is_local(arguments, text):
    error = refusal(*arguments)
    assert not isinstance(error, UsageError)
    assert error.message == f"error: creating server: Invalid argument - {text}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), MetricsConfig(quantiles=(0.5, 0.9, 0.95, 0.99, 0.999))),
        (("--metrics-config=counter_latencies=false",), MetricsConfig(counters=False)),
        (("--metrics-config", "summary_latencies=true"), MetricsConfig(summaries=True)),
        (("--metrics-config=histogram_latencies=true",), MetricsConfig(histograms=True)),
        (("--metrics-config=summary_latencies=true", "--metrics-config=summary_latencies=false"), MetricsConfig()),
        (("--metrics-config=summary_quantiles=0.5:0.05,1:0",), MetricsConfig(quantiles=(0.5, 1.0))),
    ],
)
def test_metrics_are_chosen_by_their_settings(arguments, expected):
    options = parse(*arguments)
    assert (options.metrics.config, options.warnings) == (expected, ())


@pytest.mark.parametrize(
    ("setting", "warning"),
    [
        (
            "foo=bar",
            (
                "--metrics-config=foo=bar has no effect: there are counter_latencies, summary_latencies, "
                "histogram_latencies, summary_quantiles"
            ),
        ),
        ("summary_latencies=yes", "--metrics-config=summary_latencies=yes has no effect: it is either true or false"),
        *(
            (f"summary_quantiles={text}", f"Invalid option: [{text}]. {why}")
            for text, why in (
                ("bad", "No ':' delimiter found. Expected format is <quantile>:<error>"),
                ("x:0", "Error: quantile and error must be numbers"),
                ("2:0", "Error: the quantile must be between 0 and 1"),
            )
        ),
    ],
)
def test_an_invalid_setting_of_metrics_is_named_and_the_default_is_kept(setting, warning):
    options = parse(f"--metrics-config={setting}")
    assert (options.metrics.config, options.warnings) == (MetricsConfig(), (warning,))


def test_a_server_without_a_repository_does_not_start():
    assert refusal(repository=None).message == (
        "error: creating server: Invalid argument - --model-repository must be specified"
    )


def test_repositories_may_be_polled_and_be_namespaces():
    options = parse("--model-control-mode=poll", "--repository-poll-secs=3", "--model-namespacing=true")
    assert (options.models.control_mode, options.models.poll_secs) == (ModelControlMode.POLL, 3)
    assert options.models.is_namespaced


def test_the_wildcard_must_be_the_only_model_to_load():
    explicit = "--model-control-mode=explicit"
    assert parse(explicit, "--load-model=*").models.startup_models == ("*",)
    assert parse(explicit, "--load-model=a", "--load-model=b", "--load-model=a").models.startup_models == ("a", "b")
    assert refusal(explicit, "--load-model=a", "--load-model=*").message.endswith(
        "Wildcard model name '*' must be the ONLY startup model if specified at all."
    )


def test_backends_that_ship_with_naiad_are_looked_for_last():
    options = parse("--backend-directory=/a", "--backend-directory=/b")
    assert options.backends.directories == (Path("/a"), Path("/b"), shipped_backends())
    assert (shipped_backends() / "vllm_like").is_dir()


def test_the_store_of_environments_is_named_by_flag_then_variable_then_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    variable = {"NAIAD_STORE": "/from/variable"}
    assert parse("--env-store=/from/flag", environ=variable).environments.store == Path("/from/flag")
    assert parse(environ=variable).environments.store == Path("/from/variable")
    assert parse().environments.store == tmp_path / "naiad" / "environments"


def test_flags_of_the_grpc_transport_are_fields_of_their_names():
    options = parse("--grpc-keepalive-time=5", "--grpc-max-connection-age=7", "--grpc-infer-resp=high")
    assert (options.grpc.keepalive_time, options.grpc.max_connection_age) == (5, 7)
    assert options.grpc.response_compression == "high"
    assert options.grpc.keepalive_permit_without_calls is False


def test_the_mode_of_vertex_ai_is_warned_of():
    (warning,) = parse(environ={"AIP_MODE": "PREDICTION"}).warnings
    assert warning.startswith("AIP_MODE=PREDICTION is set, but the API of Vertex AI is not implemented")


def test_options_of_environments_are_read():
    found = parse(
        "--env-store-max-bytes=1000",
        "--env-directory=/a",
        "--env-directory=b",
        "--env-trust=/keys.toml",
        "--env-require-digest=true",
        "--env-build=never",
        "--env-wheels=/w",
        "--offline",
    )
    assert (found.environments.build, found.environments.wheels) == (EnvBuild.NEVER, (Path("/w"),))
    assert (found.environments.is_offline, parse().environments.is_offline) == (True, False)
    assert parse().environments.build is None
    assert found.environments.store_max_bytes == 1000
    assert found.environments.directories == (Path("/a"), Path("b").absolute())
    assert (found.environments.trusted_keys, found.environments.require_digest) == (Path("/keys.toml"), True)
    assert (parse().environments.store_max_bytes, parse().environments.directories) == (0, ())
    assert (parse().environments.trusted_keys, parse().environments.require_digest) == (None, False)


@pytest.mark.parametrize(
    ("text", "number"),
    [("10", 10), ("10.0", 10), ("10s", 10), ("1e1", 1), (" 10", 10), ("+10", 10), ("1_000", 1), ("0x10", 0)],
)
def test_an_integer_is_read_as_the_reference_reads_it(text, number):
    """Its parser is std::stoi; launchers format seconds as floats."""
    assert parse(f"--repository-poll-secs={text}").models.poll_secs == number
    assert parse(f"--http-port={text}").http.port == number
    assert parse(f"--trace-config=count={text}").trace.config.count == number
    (limit,) = parse("--rate-limit=execution_count", f"--rate-limit-resource=R:{text}").rate_limit.resources
    assert limit.count == number


@pytest.mark.parametrize("text", ["", "x", "s10", "-", ".5"])
@pytest.mark.parametrize("flag", ["repository-poll-secs=", "rate-limit-resource=R:"])
def test_a_value_that_begins_with_no_integer_is_refused_in_the_references_words(flag, text):
    assert refusal(f"--{flag}{text}").message.strip().endswith(f"Invalid option value. Got {text}".strip())


def test_numbers_followed_by_other_text_are_warned_of():
    found = parse("--repository-poll-secs=1e1", "--http-port=+80", "--log-verbose=2x", "--rate-limit=off").warnings
    assert found == (
        "--repository-poll-secs=1e1 is read as 1: 'e1' has no effect; give the number alone",
        "--log-verbose=2x is read as 2: 'x' has no effect; give the number alone",
    )
    assert parse("--log-verbose=true").warnings == ()


def test_sizes_are_read_as_the_reference_reads_them():
    options = parse("--http-max-input-size=1048576.0", "--response-cache-byte-size=1048576.0")
    assert (options.http.max_input_size, options.cache.size) == (1048576, 1048576)


@pytest.mark.parametrize("flag", ["--stub-restart-limit=5x", "--http-keepalive-timeout=5x", "--max-connections=1_0"])
def test_numbers_of_our_own_flags_are_read_whole_or_not_at_all(flag):
    assert "Invalid option value. Got " in refusal(flag).message
