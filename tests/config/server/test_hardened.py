"""`--hardened`: a preset of flags, over which given flags win, and warnings about what is still open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli.parsing import parse

from naiad.config.server.access import Api
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.hardened import ADMIN_HEADER, hardened_flags, hardening_of
from naiad.config.server.options import SERVER_FLAGS

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-it-safely.md"
ADMIN_APIS = {Api.MODEL_REPOSITORY, Api.MODEL_CONFIG, Api.SHARED_MEMORY, Api.STATISTICS, Api.TRACE, Api.LOGGING}
KEYS = {"NAIAD_OPENAI_API_KEYS": "sk-1", "NAIAD_ADMIN_KEY": "secret"}


def test_without_hardened_no_option_changes():
    options = parse()
    assert options.hardening is None
    assert not options.http.restrictions
    assert options.metrics.address == "0.0.0.0"
    assert options.guests.environ is None


def test_hardened_sets_the_options_that_were_not_given():
    options = parse("--hardened", environ=KEYS)
    for restrictions in (options.http.restrictions, options.grpc.restrictions):
        assert restrictions == dict.fromkeys(ADMIN_APIS, (ADMIN_HEADER, "secret"))
    assert options.metrics.address == "127.0.0.1"
    assert options.guests.environ == ()
    assert options.environments.require_digest
    assert options.connections.per_address == 1000


def test_a_given_flag_wins_and_the_log_says_so():
    options = parse("--hardened", "--metrics-address=10.0.0.1", "--guest-env=A", "--http-restricted-api=trace:k=v")
    assert options.metrics.address == "10.0.0.1"
    assert options.guests.environ == ("A",)
    assert options.http.restrictions == {Api.TRACE: ("k", "v")}
    assert set(options.grpc.restrictions) == ADMIN_APIS
    assert "--hardened: --metrics-address stays as it was given" in options.notices
    assert "--hardened: --http-restricted-api stays as it was given" in options.notices


def test_without_a_key_the_apis_are_closed_by_a_random_one_that_no_line_shows():
    first, second = (parse("--hardened").http.restrictions[Api.TRACE][1] for _ in range(2))
    assert first != second
    assert len(first) == 64
    options = parse("--hardened")
    key = options.http.restrictions[Api.TRACE][1]
    assert key not in " ".join((*options.notices, *options.warnings, *options.command_line))
    assert any("set NAIAD_ADMIN_KEY to open them" in notice for notice in options.notices)


def test_with_api_keys_hardened_restricts_inference_of_other_apis():
    options = parse("--hardened", "--openai-port=8000", environ=KEYS)
    assert set(options.hardening.http(options.http.restrictions)) == ADMIN_APIS | {Api.INFERENCE, Api.METADATA}
    assert Api.INFERENCE not in options.http.restrictions, "those of /v1"
    assert set(options.hardening.grpc(options.grpc.restrictions)) == ADMIN_APIS | {Api.INFERENCE, Api.METADATA}
    given = parse("--hardened", "--openai-port=8000", "--http-restricted-api=trace:k=v", environ=KEYS)
    assert set(given.hardening.http(given.http.restrictions)) == {Api.TRACE}
    without = parse("--hardened", "--openai-port=8000")
    assert set(without.hardening.http(without.http.restrictions)) == ADMIN_APIS


@pytest.mark.parametrize(
    ("arguments", "gap"),
    [
        ((), "requests and keys travel unencrypted: set --http-use-ssl and --grpc-use-ssl, or put a proxy in front"),
        (("--allow-grpc=false",), "requests and keys travel unencrypted: set --http-use-ssl, or put a proxy in front"),
        (
            ("--ui=true", "--ui-address=0.0.0.0"),
            "the page at /ui shows paths and processes to every client: set --ui-password, or leave --ui-address off",
        ),
        (("--openai-port=8000",), "/v1 is open to every client: set --openai-api-keys-file"),
    ],
)
def test_gaps_that_hardened_leaves_are_warned_of(arguments, gap):
    assert f"--hardened: {gap}" in parse("--hardened", *arguments).warnings
    assert not any("--hardened" in warning for warning in parse(*arguments).warnings)


@pytest.mark.parametrize(
    ("arguments", "ways"),
    [
        (("--openai-port=8000",), "/v2/models/NAME/generate and /infer and by gRPC"),
        (("--openai-port=9000", "--http-restricted-api=inference:k=v"), "gRPC"),
        (("--openai-port=9000", "--allow-grpc=false"), "/v2/models/NAME/generate and /infer"),
        (("--openai-port=9000", "--hardened", "--grpc-restricted-protocol=trace:k=v"), "gRPC"),
    ],
)
def test_access_to_models_without_the_api_key_is_warned_of(arguments, ways):
    warning = (
        f"the API keys guard /v1 only: every client can run the same models without a key by {ways}; set --hardened"
    )
    assert any(each.startswith(warning) for each in parse(*arguments, environ=KEYS).warnings)


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (("--openai-port=8000",), {}),
        ((), KEYS),
        (("--openai-port=8000", "--hardened"), KEYS),
        (("--openai-port=9000", "--http-restricted-api=inference:k=v", "--allow-grpc=false"), KEYS),
    ],
)
def test_models_that_are_open_on_purpose_or_guarded_are_not_warned_of(arguments, environ):
    assert not any("guard /v1 only" in each for each in parse(*arguments, environ=environ).warnings)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is warned")
def test_models_of_root_are_warned_of():
    warning = "--hardened: models run as root, as this server: set --guest-user"
    assert warning in parse("--hardened").warnings
    assert warning not in parse("--hardened", "--guest-user=65534").warnings


def test_the_page_lists_the_preset():
    named = {flag.name: flag for flag in SERVER_FLAGS}
    values = FlagValues([(named["hardened"], "")], SERVER_FLAGS, {"NAIAD_ADMIN_KEY": "$NAIAD_ADMIN_KEY"})
    flags, _ = hardened_flags(values, hardening_of(values))
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    for flag, text in flags:
        [row] = [row for row in rows if f"`--{flag}`" in row and (not text or f"`{text}`" in row)][:1]
        assert text or "| none |" in row
