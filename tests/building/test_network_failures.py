"""Which failures of installers the network has caused."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad_building.network_failures import network_cause

FILE = Path("/models/timed out/1/dns error.py")


@pytest.mark.parametrize(
    "line",
    [
        "  Caused by: error sending request for url (https://index/simple/adder/)",
        "  Caused by: dns error: failed to lookup address information: Name or service not known",
        "  Caused by: operation timed out",
        "Failed to download distribution due to network timeout. Try increasing UV_HTTP_TIMEOUT (current value: 30s).",
        "  Caused by: HTTP status server error (503 Service Unavailable) for url (https://index/simple/adder/)",
        "HTTP error 503 while getting https://index/adder.whl",
        "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='index', port=443): Read timed out.",
        "after connection broken by 'NewConnectionError('<p>: [Errno 111] Connection refused')': /simple/adder/",
        "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
        "IncompleteRead(10 bytes read, 20 more expected)",
    ],
)
def test_a_failure_of_the_network_is_found_by_what_the_installer_says(line: str) -> None:
    assert network_cause(["Resolving", line], FILE) == line.strip()


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: No matching distribution found for adder>=3",
        "Because only adder<=2.0 is available and you require adder>=3, your requirements are unsatisfiable.",
        "Hash mismatch for `adder==1.0`",
        "HTTP status client error (404 Not Found)",
        "Because timeout was not found in the package registry and you require timeout, they are unsatisfiable.",
        "No matching distribution found for async-timeout==50.0",
        "error: Failed to parse: `/models/timed out/1/dns error.py`",
        f"ERROR: Could not open requirements file: {FILE}",
        "Failed to read `connection refused`",
        "  file:///wheels/operation-timed/Connection_reset",
    ],
)
def test_a_refusal_of_the_resolver_is_none_whatever_the_names_in_it(line: str) -> None:
    assert network_cause([line], FILE) == ""
