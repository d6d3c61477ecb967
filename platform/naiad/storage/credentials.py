"""Who we are to a storage: the reference's variables and its credential file, as options of fsspec's drivers.

`TRITON_CLOUD_CREDENTIAL_PATH` names a JSON file with credentials by the beginnings of URIs, the longest wins; without
it the variables of each provider's own tools count (SRV docs/user_guide/model_repository.md). Whatever is not said
here is left to the driver, which looks where its provider's tools look: configuration files, the machine's identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.errors import StorageError
from naiad.storage.locations import Location

__all__ = ["driver_options"]

_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
_SECTIONS = {"s3": "s3", "gcs": "gs", "abfs": "as"}  # by driver

_AWS = {
    "key_id": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_DEFAULT_REGION",
    "profile": "AWS_PROFILE",
}
_AZURE = {
    "account_str": "AZURE_STORAGE_ACCOUNT",
    "account_key": "AZURE_STORAGE_KEY",
    "auth_type": "AZURE_STORAGE_AUTH_TYPE",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
}
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"


def driver_options(location: Location, environ: Mapping[str, str]) -> dict[str, Any]:
    """The options with which fsspec's driver opens *location*.

    Raises:
        StorageError: If the file of credentials cannot be used.
    """
    section = _SECTIONS.get(location.protocol)
    if section is None:
        return dict(location.options)
    found = _from_file(Path(environ[_FILE]), section, location.uri) if environ.get(_FILE) else None
    if section == "gs":
        token = environ.get(_GOOGLE, "") if found is None else found
        return {**location.options, **({"token": token} if token else {})}
    names = _AWS if section == "s3" else _AZURE
    credential = {key: environ.get(variable, "") for key, variable in names.items()} if found is None else found
    said = {key: value for key, value in credential.items() if value}
    return {**location.options, **(_aws(said) if section == "s3" else _azure(said))}


def _aws(said: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "key_id" in said and "secret_key" in said:  # before a profile, as for the reference
        options = {"key": said["key_id"], "secret": said["secret_key"]}
        if "session_token" in said:
            options["token"] = said["session_token"]
    elif "profile" in said:
        options["profile"] = said["profile"]
    if "region" in said:
        options["client_kwargs"] = {"region_name": said["region"]}
    return options


def _azure(said: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "account_str" in said:
        options["account_name"] = said["account_str"]
    if "auth_type" in said:
        options["anon"] = False  # look for an identity of this machine, or of whoever is logged in
        if "client_id" in said:
            options["managed_identity_client_id"] = said["client_id"]
    elif "account_key" in said:
        options["account_key"] = said["account_key"]
    return options


def _from_file(path: Path, section: str, uri: str) -> Any:
    """What the file says about *uri*; None if nothing."""
    try:
        content = json.loads(path.read_bytes())
        entries = content.get(section, {})
        names = [name for name in entries if uri.startswith(name)]
    except OSError as error:
        raise StorageError(f"cannot read {path}, which {_FILE} names: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise StorageError(f"{path}, which {_FILE} names, is not a JSON object of objects: {error}") from error
    if not names:
        return None
    name = max(names, key=len)
    return _checked(entries[name], section, f"{path}: '{section}' / '{name}'")


def _checked(entry: Any, section: str, where: str) -> Any:
    if section == "gs":
        if not isinstance(entry, str):
            raise StorageError(f"{where} must be the path of a file of credentials")
        return entry
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise StorageError(f"{where} must be an object of strings")
    return entry
