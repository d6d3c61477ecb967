"""The table of options that the server logs at its start."""

from __future__ import annotations

from cli.parsing import parse

from naiad.config.server.option_rows import option_rows
from naiad.models.resolution.tables import option_table
from naiad.protocol.metadata import ServerMetadata

SERVER = ServerMetadata(name="triton", version="1.2.3", extensions=("classification", "sequence"))


def test_the_rows_are_those_of_the_reference_in_its_order():
    assert list(option_rows(parse(), SERVER)) == [
        ("server_id", "triton"),
        ("server_version", "1.2.3"),
        ("server_extensions", "classification sequence"),
        ("model_repository_path[0]", "/models"),
        ("model_control_mode", "MODE_NONE"),
        ("strict_model_config", "0"),
        ("model_config_name", ""),
        ("rate_limit", "OFF"),
        ("pinned_memory_pool_byte_size", "268435456"),
        ("min_supported_compute_capability", "6.0"),
        ("strict_readiness", "1"),
        ("exit_timeout", "30"),
        ("cache_enabled", "0"),
    ]


def test_the_rows_have_the_values_of_the_command_line():
    options = parse(
        "--model-repository=/more", "--model-control-mode=explicit", "--load-model=a", "--load-model=b",
        "--disable-auto-complete-config", "--model-config-name=small", "--rate-limit=execution_count",
        "--rate-limit-resource=R:3", "--rate-limit-resource=S:1:0", "--pinned-memory-pool-byte-size=7",
        "--strict-readiness=false", "--exit-timeout-secs=5", "--cache-config=local,size=1000",
    )  # fmt: skip
    rows = dict(option_rows(options, SERVER))

    assert [rows[f"model_repository_path[{index}]"] for index in (0, 1)] == ["/models", "/more"]
    assert (rows["model_control_mode"], rows["startup_models_0"], rows["startup_models_1"]) == (
        "MODE_EXPLICIT",
        "a",
        "b",
    )
    assert (rows["strict_model_config"], rows["model_config_name"]) == ("1", "small")
    assert (rows["rate_limit"], rows["rate_limit_resource[0]"], rows["rate_limit_resource[1]"]) == (
        "EXEC_COUNT",
        '{"name":"R", "count":3 "device":-1}',
        '{"name":"S", "count":1 "device":0}',
    )
    assert (rows["pinned_memory_pool_byte_size"], rows["exit_timeout"]) == ("7", "5")
    assert (rows["strict_readiness"], rows["cache_enabled"]) == ("0", "1")


def test_a_secret_in_a_uri_is_not_printed():
    options = parse("--model-repository=https://user:secret@host/models", repository=None)
    assert "secret" not in option_table(option_rows(options, SERVER))
