"""Whether a repository is what a trusted key signed: its manifest, or the files of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from naiad.core.errors import RegistryError
from naiad.core.signatures import TrustedKeys
from naiad.models.artifacts.folders import FolderListing, list_folder, quoted, read_file, sha256_of_file
from naiad.models.artifacts.manifest import SIGNATURES_FOLDER, Artifact, changed_layers
from naiad.models.artifacts.statements import SignedStatement, read_statement
from naiad.sources.registry.references import Reference

_SHOWN = 5
_SIGNATURE_BYTES = 64 << 20  # most bytes of a signature: one of a repository with 100,000 files has 15 MB


def require_signed_artifact(
    artifact: Artifact, asked: Reference, statements: Sequence[SignedStatement], keys: TrustedKeys
) -> str:
    """The name of the trusted key that signed a manifest's layers under the name that it was asked for by.

    Raises:
        RegistryError: If no trusted key did, or it was changed or renamed afterwards; the message says what.
    """
    where = f"the repository {artifact.reference}"
    signed = _trusted(statements, keys, where)
    differences: list[str] = []
    for statement in signed:
        differences = [*changed_name(statement, asked), *changed_layers(statement.layers, artifact.layers)]
        if not differences:
            return statement.signer
    raise refused(where, differences, signed[-1].signer)


def changed_name(statement: SignedStatement, asked: Reference) -> list[str]:
    """A sentence about a repository that was signed under another name than it was asked for by, or nothing."""
    if statement.is_of(asked):
        return []
    return [f"the signature is of {statement.name}, not of {asked.name}:{asked.tag}"]


def folder_statements(folder: Path, keys: TrustedKeys | None) -> list[SignedStatement]:
    """The statements in the signatures of a folder that was pulled, or that a container engine mounted."""
    files = sorted((folder / SIGNATURES_FOLDER).glob("*.json"))
    return [read_statement(read_file(file, _SIGNATURE_BYTES), keys, str(file)) for file in files]


def trusted_statements(folder: Path, keys: TrustedKeys, where: str) -> list[SignedStatement]:
    """The statements of a folder that trusted keys signed; RegistryError if there is none, or one is malformed."""
    return _trusted(folder_statements(folder, keys), keys, where)


def changed_files(folder: Path, statement: SignedStatement) -> list[str]:
    """What differs between a folder and a statement, one sentence each: files, folders, links, bytecode."""
    differences = changed_names(list_folder(folder, with_bytecode=True), statement.files)
    for path, digest in statement.files.items():
        # What is not a regular file has a sentence already.
        if not (folder / path).is_symlink() and (folder / path).is_file():
            differences += changed_content(path, digest, sha256_of_file(folder / path))
    return differences


def changed_names(found: FolderListing, signed: Mapping[str, str]) -> list[str]:
    """What differs between the names in a folder and those of signed files, one sentence each."""
    # The folder of signatures is not listed.
    with_files = _folders_of([*found.files, SIGNATURES_FOLDER])
    added = [path for path in found.files if path not in signed]
    # A folder without files may be a version of a model, or a package without code.
    added += [f"{path}/" for path in found.folders if path not in with_files]
    missing = sorted(signed.keys() - set(found.files))
    named = found.problems.keys()
    return [
        *(f"{quoted(path)} {problem}" for path, problem in found.problems.items()),
        *(f"{quoted(path)} was added after the signature" for path in added),
        *(f"{quoted(path)} was removed" for path in missing if not {path, *_folders_of([path])} & named),
    ]


def _folders_of(paths: Iterable[str]) -> set[str]:
    return {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}


def changed_content(path: str, signed: str, actual: str) -> list[str]:
    """A sentence about a file that was changed, or nothing."""
    if actual == signed:
        return []
    return [f"{quoted(path)} was changed: signed as sha256:{signed}, now sha256:{actual}"]


def refused(where: str, differences: Sequence[str], signer: str) -> RegistryError:
    """The error for something that differs from what *signer* signed."""
    more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return RegistryError(
        f"{where} is refused: {'; '.join(differences[:_SHOWN])}{more} (signed by '{signer}'); push it again with "
        "--key, or use the signed one by its digest"
    )


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
