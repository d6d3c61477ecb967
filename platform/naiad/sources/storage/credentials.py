"""Credentials for remote storage: Triton's variables and credential file, as options of fsspec's drivers.

`TRITON_CLOUD_CREDENTIAL_PATH` names a JSON file that maps URI prefixes to credentials; the longest prefix wins. Without
it the variables of the providers' own tools are used (SRV docs/user_guide/model_repository.md). For missing values the
driver searches where its provider's tools do: in configuration files, and for the machine's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.core.errors import StorageError
from naiad.core.foreign_json import read_json
from naiad.sources.storage.locations import Location

_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
_SECTIONS = {"s3": "s3", "gcs": "gs", "abfs": "as"}  # section of the file by driver

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
    """The options for fsspec's driver to open *location*."""
    section = _SECTIONS.get(location.protocol)
    if section is None:
        return dict(location.options)
    found = _from_file(Path(environ[_FILE]), section, location.uri) if environ.get(_FILE) else None
    if section == "gs":
        token = environ.get(_GOOGLE, "") if found is None else found
        return {**location.options, **({"token": token} if token else {})}
    names = _AWS if section == "s3" else _AZURE
    credential = {key: environ.get(variable, "") for key, variable in names.items()} if found is None else found
    given = {key: value for key, value in credential.items() if value}
    return {**location.options, **(_aws(given) if section == "s3" else _azure(given))}


def _aws(given: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "key_id" in given and "secret_key" in given:  # takes precedence over a profile, as in Triton
        options = {"key": given["key_id"], "secret": given["secret_key"]}
        if "session_token" in given:
            options["token"] = given["session_token"]
    elif "profile" in given:
        options["profile"] = given["profile"]
    if "region" in given:
        options["client_kwargs"] = {"region_name": given["region"]}
    return options


def _azure(given: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "account_str" in given:
        options["account_name"] = given["account_str"]
    if "auth_type" in given:
        options["anon"] = False  # use the identity of this machine or of the logged-in user
        if "client_id" in given:
            options["managed_identity_client_id"] = given["client_id"]
    elif "account_key" in given:
        options["account_key"] = given["account_key"]
    return options


def _from_file(path: Path, section: str, uri: str) -> Any:
    """The credentials of the longest matching prefix of *uri* in the file; None if none matches."""
    try:
        content = read_json(path.read_bytes())
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
            raise StorageError(f"{where} must be the path of a credential file")
        return entry
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise StorageError(f"{where} must be an object of strings")
    return entry
