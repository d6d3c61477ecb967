"""URIs become drivers, paths and credentials."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from naiad.core.errors import Code, StorageError
from naiad.core.extras import install_command
from naiad.sources.storage.credentials import driver_options
from naiad.sources.storage.locations import parse_location
from naiad.sources.storage.opening import open_storage, translate_storage_errors

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    ("uri", "protocol", "path", "options"),
    [
        ("s3://bucket/models/", "s3", "bucket/models", {}),
        ("S3://bucket", "s3", "bucket", {}),
        ("s3://localhost:9000/bucket/models", "s3", "bucket/models", {"endpoint_url": "http://localhost:9000"}),
        ("s3://https://host:443/bucket", "s3", "bucket", {"endpoint_url": "https://host:443"}),
        ("s3://https://host/bucket/m", "s3", "bucket/m", {"endpoint_url": "https://host"}),
        ("gs://bucket/models", "gcs", "bucket/models", {}),
        ("as://account/container/models", "abfs", "container/models", {"account_name": "account"}),
        ("as://account.blob.core.windows.net/c", "abfs", "c", {"account_name": "account"}),
        ("memory://models", "memory", "memory://models", {}),
        ("https://host/models", "https", "https://host/models", {}),
    ],
)
def test_a_uri_names_a_driver_and_a_path(uri: str, protocol: str, path: str, options: dict[str, str]) -> None:
    location = parse_location(uri)

    assert (location.protocol, location.path, location.options) == (protocol, path, options)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("/models", "'/models' is not a URI"),
        ("s3://", "'s3://' names no bucket: write s3://bucket/path"),
        ("s3://localhost:9000/", "names no bucket"),
        ("as://account", "'as://account' names no bucket: write as://account/container/path"),
    ],
)
def test_an_invalid_uri_or_one_without_a_bucket_is_refused(uri: str, said: str) -> None:
    with pytest.raises(StorageError, match=said):
        parse_location(uri)


@pytest.mark.parametrize(
    ("uri", "environ", "options"),
    [
        ("s3://b", {}, {}),
        ("s3://b", KEYS, {"key": "id", "secret": "secret"}),
        ("s3://b", KEYS | {"AWS_SESSION_TOKEN": "t"}, {"key": "id", "secret": "secret", "token": "t"}),
        ("s3://b", KEYS | {"AWS_PROFILE": "p"}, {"key": "id", "secret": "secret"}),
        (
            "s3://b",
            {"AWS_PROFILE": "p", "AWS_DEFAULT_REGION": "eu"},
            {"profile": "p", "client_kwargs": {"region_name": "eu"}},
        ),
        ("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}, {"token": "/key.json"}),
        ("as://a/c", {}, {"account_name": "a"}),
        (
            "as://a/c",
            {"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "k"},
            {"account_name": "other", "account_key": "k"},
        ),
        (
            "as://a/c",
            {"AZURE_STORAGE_KEY": "k", "AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "i"},
            {"account_name": "a", "anon": False, "managed_identity_client_id": "i"},
        ),
        ("memory://m", KEYS, {}),
    ],
)
def test_variables_become_options_of_the_driver(uri: str, environ: Mapping[str, str], options: dict[str, Any]) -> None:
    assert driver_options(parse_location(uri), environ) == options


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://any/path", {"key": "1", "secret": "s1"}),
        ("s3://special/path", {"profile": "p2"}),
        ("gs://any", {"token": "/g.json"}),
        ("as://any/c", {"account_name": "any"}),
    ],
)
def test_the_longest_matching_prefix_of_the_credentials_file_counts(
    tmp_path: Path, uri: str, options: dict[str, Any]
) -> None:
    file = tmp_path / "cloud.json"
    file.write_text(
        json.dumps(
            {
                "s3": {"": {"key_id": "1", "secret_key": "s1", "region": ""}, "s3://special": {"profile": "p2"}},
                "gs": {"": "/g.json"},
            }
        )
    )

    assert driver_options(parse_location(uri), {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)}) == options


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read .*cloud.json, which TRITON_CLOUD_CREDENTIAL_PATH names: No such file"),
        ("[", "cloud.json, which TRITON_CLOUD_CREDENTIAL_PATH names, is not a JSON object of objects"),
        ("[]", "is not a JSON object of objects"),
        ('{"s3": {"": "text"}}', "'s3' / '' must be an object of strings"),
        ('{"s3": {"": {"key_id": 1}}}', "'s3' / '' must be an object of strings"),
    ],
)
def test_a_broken_file_of_credentials_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "cloud.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(StorageError, match=said):
        driver_options(parse_location("s3://b"), {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})


@pytest.mark.parametrize(
    ("uri", "module", "extra"), [("s3://b/p", "s3fs", "s3"), ("gs://b", "gcsfs", "gcs"), ("as://a/c", "adlfs", "azure")]
)
def test_a_driver_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, uri: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    monkeypatch.setattr(importlib.import_module("fsspec.registry"), "_registry", {})

    with pytest.raises(StorageError) as caught:
        open_storage(uri, {})

    scheme = uri.partition(":")[0]
    assert caught.value.message == (
        f"cannot open '{uri}': the driver for {scheme}:// is not installed; install it with: {install_command(extra)}"
    )
    assert caught.value.code is Code.UNSUPPORTED


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(StorageError, match="cannot open 'nowhere://x': no driver of fsspec knows its scheme"):
        open_storage("nowhere://x")


def test_an_opened_place_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")

    storage = open_storage(tmp_path.as_uri() + "/")

    assert storage.path == str(tmp_path)
    with storage.filesystem.open(f"{storage.path}/a") as file:
        assert file.read() == b"content"


def test_errors_of_drivers_become_storage_errors() -> None:
    with pytest.raises(StorageError, match="cannot read x: KeyError: 'why'"), translate_storage_errors("cannot read x"):
        raise KeyError("why")
    with (
        pytest.raises(StorageError, match="cannot read x: not found") as caught,
        translate_storage_errors("cannot read x"),
    ):
        raise FileNotFoundError
    assert caught.value.code is Code.NOT_FOUND
