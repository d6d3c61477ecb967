"""Whether a repository is what a trusted key signed: its manifest, or the files of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from naiad.artifacts.manifest import HIDDEN_FOLDER, SIGNATURES_FOLDER, Artifact, changed_layers
from naiad.artifacts.statements import SignedStatement, read_statement
from naiad.environments.archives.signatures import TrustedKeys
from naiad.errors import RegistryError

__all__ = ["changed_files", "folder_statements", "require_signed_artifact", "require_signed_model"]

_CHUNK = 1 << 20
_SHOWN = 5
_IGNORED_FOLDERS = frozenset({"__pycache__"})


def require_signed_artifact(artifact: Artifact, statements: Sequence[SignedStatement], keys: TrustedKeys) -> str:
    """The name of the trusted key that signed a manifest's layers.

    Raises:
        RegistryError: If no trusted key did, or a layer was changed afterwards; the message names the layer.
    """
    where = f"the repository {artifact.reference}"
    signed = _trusted(statements, keys, where)
    differences: list[str] = []
    for statement in signed:
        differences = changed_layers(statement.layers, artifact.layers)
        if not differences:
            return statement.signer
    raise _refused(where, differences, signed[-1].signer)


def folder_statements(folder: Path, keys: TrustedKeys | None) -> list[SignedStatement]:
    """The statements in the signatures of a folder that was pulled, or that a container engine mounted.

    Raises:
        RegistryError: If a signature is malformed.
    """
    files = sorted((folder / SIGNATURES_FOLDER).glob("*.json"))
    return [read_statement(file.read_bytes(), keys, str(file)) for file in files]


def require_signed_model(folder: Path, model: str, keys: TrustedKeys) -> str:
    """The name of the trusted key that signed the files of a model, and everything in the repository's hidden folder.

    Args:
        folder: The repository.
        model: Name of the model's folder.
        keys: The trusted keys.

    Raises:
        RegistryError: If no trusted key did, or a file was changed afterwards; the message names the file.
    """
    where = f"model '{model}' in {folder}"
    signed = _trusted(folder_statements(folder, keys), keys, where)
    differences: list[str] = []
    for statement in signed:
        differences = changed_files(folder, statement, (model,))
        # What other models need may not be there: `naiad pull --model` leaves it out.
        present = {path: digest for path, digest in statement.files.items() if (folder / path).exists()}
        differences += changed_files(folder, replace(statement, files=present), (HIDDEN_FOLDER,))
        if not differences:
            return statement.signer
    raise _refused(where, differences, signed[-1].signer)


def changed_files(folder: Path, statement: SignedStatement, tops: Sequence[str] | None = None) -> list[str]:
    """What differs between a folder's files and a statement, one sentence each.

    Args:
        folder: The repository.
        statement: What was signed.
        tops: The folders of the repository to compare; all by default.
    """
    signed = {path: digest for path, digest in statement.files.items() if tops is None or path.split("/")[0] in tops}
    found = dict.fromkeys(_files_below(folder, tops))
    differences = [f"'{path}' was added after the signature" for path in found if path not in signed]
    for path, digest in signed.items():
        if path not in found:
            differences.append(f"'{path}' was removed")
        elif (actual := _digest(folder / path)) != digest:
            differences.append(f"'{path}' was changed: signed as sha256:{digest}, now sha256:{actual}")
    return differences


def _trusted(statements: Sequence[SignedStatement], keys: TrustedKeys, where: str) -> list[SignedStatement]:
    if not statements:
        raise RegistryError(
            f"{where} is refused: it is not signed, and --require-signature accepts signed repositories only; push it "
            "with --key"
        )
    signed = [statement for statement in statements if statement.signer]
    if not signed:
        reasons = "; ".join(f"key {statement.key_id}: {statement.problem}" for statement in statements)
        raise RegistryError(
            f"{where} is refused: no signature is by a trusted key ({reasons}); have it signed by one of "
            f"{', '.join(keys.names.values())}, or add the signer's key"
        )
    return signed


def _refused(where: str, differences: Sequence[str], signer: str) -> RegistryError:
    more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return RegistryError(
        f"{where} is refused: {'; '.join(differences[:_SHOWN])}{more} (signed by '{signer}'); push it again with "
        "--key, or use the signed one by its digest"
    )


def _files_below(folder: Path, tops: Sequence[str] | None) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        here = Path(parent).relative_to(folder).as_posix()
        is_top = here == "."
        folders[:] = sorted(
            name for name in folders if name not in _IGNORED_FOLDERS and (not is_top or tops is None or name in tops)
        )
        if here == SIGNATURES_FOLDER or (is_top and tops is not None):
            continue
        for name in sorted(names):
            yield name if is_top else f"{here}/{name}"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
