"""References to artifacts: what they name, and where the registry's API is."""

from __future__ import annotations

import pytest

from naiad.core.errors import RegistryError
from naiad.sources.registry.references import Reference, parse_reference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci://registry.example/shop:1", Reference(registry="registry.example", name="shop", tag="1")),
        (
            "oci://registry.example:5000/a/b_c:v1.0",
            Reference(registry="registry.example:5000", name="a/b_c", tag="v1.0"),
        ),
        ("oci://localhost/shop", Reference(registry="localhost", name="shop", tag="latest")),
        (f"oci://[::1]:5000/shop@{DIGEST}", Reference(registry="[::1]:5000", name="shop", digest=DIGEST)),
        (f"oci://r.example/shop:1@{DIGEST}", Reference(registry="r.example", name="shop", tag="1", digest=DIGEST)),
        ("oci://docker.io/shop:1", Reference(registry="docker.io", name="library/shop", tag="1")),
        ("OCI://r.example/shop:1", Reference(registry="r.example", name="shop", tag="1")),
    ],
)
def test_references_are_parsed(text, expected):
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("oci://shop:1", "it names no registry"),
        ("oci://shop/model:1", "it names no registry"),
        ("r.example/shop:1", "it names no registry"),
        ("oci://r.example/Shop:1", "'Shop' is not a name: use lower-case letters"),
        ("oci://r.example/a//b", "'a//b' is not a name"),
        ("oci://r.example/../b", "is not a name"),
        ("oci://r.example/shop:", "write oci://registry/name:tag"),
        ("oci://r.example/shop:-x", "'-x' is not a tag"),
        ("oci://r.example/shop@sha256:12", "'sha256:12' is not a digest"),
        ("oci://r.example/shop@", "'' is not a digest"),
        ("oci://user:secret@r.example/shop", "cannot use 'oci://r.example/shop' with a user or a password"),
    ],
)
def test_malformed_references_are_rejected_with_their_flaw(text, flaw):
    with pytest.raises(RegistryError) as raised:
        parse_reference(text)

    assert flaw in raised.value.message


@pytest.mark.parametrize(
    ("registry", "url"),
    [
        ("127.0.0.1:5000", "http://127.0.0.1:5000/v2/"),
        ("127.1.2.3", "http://127.1.2.3/v2/"),
        ("localhost:5000", "http://localhost:5000/v2/"),
        ("[::1]:5000", "http://[::1]:5000/v2/"),
        ("registry.example", "https://registry.example/v2/"),
        ("localhost.example:5000", "https://localhost.example:5000/v2/"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000/v2/"),
        ("docker.io", "https://registry-1.docker.io/v2/"),
    ],
)
def test_plain_http_is_for_loopback_addresses_only(registry, url):
    assert Reference(registry=registry, name="shop").base_url == url
