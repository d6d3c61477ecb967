"""The tests' registry follows the distribution specification: its conformance cases for pull, push and tags.

Of content management, only the cancelling of uploads: our client deletes nothing else.
"""

from __future__ import annotations

import http.client
import json

import pytest
from support.registry import Registry, sha256

BLOB = b"some bytes of a layer"
CONFIG = b"{}"
TYPE = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def registry():
    with Registry() as running:
        yield running


def ask(registry, method, path, body=b"", **headers):
    connection = http.client.HTTPConnection(registry.host, timeout=20)
    try:
        connection.request(
            method, path, body=body, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def begin(registry):
    status, headers, _ = ask(registry, "POST", "/v2/shop/blobs/uploads/")
    assert status == 202
    return headers["Location"]


def put_blob(registry, data):
    location = begin(registry)
    assert ask(registry, "PUT", f"{location}&digest={sha256(data)}", data)[0] == 201


def manifest_of(*blobs):
    layers = [{"digest": sha256(blob), "size": len(blob), "mediaType": "x"} for blob in blobs]
    return json.dumps({"schemaVersion": 2, "mediaType": TYPE, "config": layers[0], "layers": layers[1:]}).encode()


def test_the_api_s_root_answers(registry):
    assert ask(registry, "GET", "/v2/")[0] == 200


def test_a_blob_is_pushed_by_post_then_put_and_pulled(registry):
    put_blob(registry, BLOB)

    status, headers, _ = ask(registry, "HEAD", f"/v2/shop/blobs/{sha256(BLOB)}")
    assert (status, headers["Content-Length"]) == (200, str(len(BLOB)))
    assert ask(registry, "GET", f"/v2/shop/blobs/{sha256(BLOB)}")[2] == BLOB


def test_a_blob_is_pushed_in_one_post(registry):
    status, headers, _ = ask(registry, "POST", f"/v2/shop/blobs/uploads/?digest={sha256(BLOB)}", BLOB)

    assert status == 201
    assert ask(registry, "GET", headers["Location"])[2] == BLOB


def test_chunks_come_in_order(registry):
    location = begin(registry)
    status, headers, _ = ask(registry, "PATCH", location, BLOB[:5], Content_Range="0-4")
    assert (status, headers["Range"]) == (202, "0-4")

    assert ask(registry, "PATCH", location, BLOB[8:], Content_Range=f"8-{len(BLOB) - 1}")[0] == 416
    status, headers, _ = ask(registry, "GET", location)
    assert (status, headers["Range"]) == (204, "0-4")
    assert ask(registry, "PATCH", location, BLOB[5:], Content_Range=f"5-{len(BLOB) - 1}")[0] == 202
    assert ask(registry, "PUT", f"{location}&digest={sha256(BLOB)}")[0] == 201
    assert ask(registry, "GET", f"/v2/shop/blobs/{sha256(BLOB)}")[2] == BLOB


def test_an_upload_is_cancelled(registry):
    location = begin(registry)

    assert ask(registry, "DELETE", location)[0] == 204
    assert ask(registry, "GET", location)[0] == 404


def test_a_blob_with_another_digest_is_rejected(registry):
    status, _, body = ask(registry, "PUT", f"{begin(registry)}&digest={sha256(b'other')}", BLOB)

    assert status == 400
    assert json.loads(body)["errors"][0]["code"] == "DIGEST_INVALID"


def test_a_blob_is_mounted_or_an_upload_begins(registry):
    put_blob(registry, BLOB)

    assert ask(registry, "POST", f"/v2/other/blobs/uploads/?mount={sha256(BLOB)}&from=shop")[0] == 201
    assert ask(registry, "GET", f"/v2/other/blobs/{sha256(BLOB)}")[2] == BLOB
    assert ask(registry, "POST", f"/v2/other/blobs/uploads/?mount={sha256(b'x')}&from=shop")[0] == 202


def test_part_of_a_blob_is_pulled(registry):
    put_blob(registry, BLOB)

    status, headers, body = ask(registry, "GET", f"/v2/shop/blobs/{sha256(BLOB)}", Range="bytes=5-")

    assert (status, body) == (206, BLOB[5:])
    assert headers["Content-Range"] == f"bytes 5-{len(BLOB) - 1}/{len(BLOB)}"


def test_a_manifest_needs_its_blobs(registry):
    put_blob(registry, CONFIG)
    data = manifest_of(CONFIG, BLOB)

    status, _, body = ask(registry, "PUT", "/v2/shop/manifests/1", data, Content_Type=TYPE)
    assert (status, json.loads(body)["errors"][0]["code"]) == (404, "MANIFEST_BLOB_UNKNOWN")
    put_blob(registry, BLOB)
    assert ask(registry, "PUT", "/v2/shop/manifests/1", data, Content_Type=TYPE)[0] == 201

    for target in ("1", sha256(data)):
        status, headers, body = ask(registry, "GET", f"/v2/shop/manifests/{target}")
        assert (status, body) == (200, data)
        assert (headers["Content-Type"], headers["Docker-Content-Digest"]) == (TYPE, sha256(data))
    assert json.loads(ask(registry, "GET", "/v2/shop/tags/list")[2]) == {"name": "shop", "tags": ["1"]}


def test_a_manifest_is_checked_without_its_content(registry):
    put_blob(registry, CONFIG)
    manifest = manifest_of(CONFIG)
    assert ask(registry, "PUT", "/v2/shop/manifests/1", manifest, Content_Type=TYPE)[0] == 201

    for target in ("1", sha256(manifest)):
        status, headers, body = ask(registry, "HEAD", f"/v2/shop/manifests/{target}")
        assert (status, headers["Content-Type"], body) == (200, TYPE, b"")
        assert headers["Content-Length"] == str(len(manifest))
        assert headers["Docker-Content-Digest"] == sha256(manifest)
    assert ask(registry, "HEAD", "/v2/shop/manifests/none")[0] == 404


def test_tags_are_listed_in_parts(registry):
    put_blob(registry, CONFIG)
    for tag in ("c", "a", "b"):
        assert ask(registry, "PUT", f"/v2/shop/manifests/{tag}", manifest_of(CONFIG), Content_Type=TYPE)[0] == 201

    status, headers, body = ask(registry, "GET", "/v2/shop/tags/list?n=2")
    assert (status, json.loads(body)["tags"]) == (200, ["a", "b"])
    assert headers["Link"] == '</v2/shop/tags/list?n=2&last=b>; rel="next"'

    _, headers, body = ask(registry, "GET", "/v2/shop/tags/list?n=2&last=b")
    assert json.loads(body)["tags"] == ["c"]
    assert headers["Link"] is None
    assert json.loads(ask(registry, "GET", "/v2/shop/tags/list?n=0")[2])["tags"] == []


@pytest.mark.parametrize("path", ["manifests/none", f"blobs/{sha256(b'none')}", "tags/list"])
def test_missing_blobs_and_manifests_are_not_found(registry, path):
    status, _, body = ask(registry, "GET", f"/v2/nothing/{path}")

    assert status == 404
    assert json.loads(body)["errors"]


def test_access_is_refused_with_a_challenge(registry):
    registry.login = ("ann", "secret")

    status, headers, _ = ask(registry, "GET", "/v2/shop/tags/list")
    assert status == 401
    assert 'scope="repository:shop:pull"' in headers["WWW-Authenticate"]
    assert (
        'scope="repository:shop:pull,push"' in ask(registry, "POST", "/v2/shop/blobs/uploads/")[1]["WWW-Authenticate"]
    )
    registry.scheme = "basic"
    assert ask(registry, "GET", "/v2/shop/tags/list")[1]["WWW-Authenticate"].startswith("Basic")
