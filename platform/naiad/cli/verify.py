"""`naiad verify`: shows who signed a model repository in a registry or a folder, and what differs from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.cli.command_line import CommandLine, run_command, server_flag, store_of
from naiad.cli.json_output import json_option, print_json
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import UsageError
from naiad.config.server.option_group import flags_of
from naiad.core.errors import RegistryError
from naiad.core.signatures import read_trusted_keys
from naiad.environments.progress import ProgressMeter, ProgressReporter, default_reporter
from naiad.environments.store.pulled import complete_reference
from naiad.models.artifacts.manifest import Artifact, LayerKind, changed_layers
from naiad.models.artifacts.policy import ArtifactPolicy
from naiad.models.artifacts.repository import artifact_statements
from naiad.models.artifacts.statements import SignedStatement
from naiad.models.artifacts.store import ArtifactStore
from naiad.models.artifacts.verification import changed_files, changed_name, folder_statements
from naiad.models.resolution.tables import text_table
from naiad.sources.registry.client import RegistryClient, open_registry
from naiad.sources.registry.references import is_reference, parse_reference

_PROGRAM = "naiad verify oci://REGISTRY/NAME:TAG|FOLDER"
_DIGEST_SHOWN = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The flags of `naiad verify`."""

    is_json: bool = json_option()


OWN_FLAGS = flags_of("Verify", VerifyOptions)


@dataclass(frozen=True, slots=True)
class _CheckedSignature:
    """A signature, and what differs from what was signed."""

    statement: SignedStatement
    differences: Sequence[str]

    @property
    def is_valid(self) -> bool:
        return bool(self.statement.signer) and not self.differences


def verify(arguments: Sequence[str]) -> int:
    """Check a repository; returns the exit code: 0 if a trusted key signed everything, else 1."""
    listed = ("env-trust", "env-store")
    return run_command(arguments, VerifyOptions, OWN_FLAGS, _PROGRAM, "verify", _verify, listed=listed)


def _verify(line: CommandLine, own: VerifyOptions) -> int:
    if len(line.positional) != 1:
        raise UsageError(f"cannot verify: give one reference or folder: {_PROGRAM}")
    place = complete_reference(store_of(line), line.positional[0])
    options = read_options([(server_flag("model-repository"), place), *line.server], environ=os.environ)
    trusted = options.environments.trusted_keys
    keys = None if trusted is None else read_trusted_keys(trusted)
    logging.getLogger("naiad").setLevel(logging.WARNING)
    if not is_reference(place):
        folder = Path(place)
        if not folder.is_dir():
            raise RegistryError(
                f"cannot verify {place}: it is neither a folder nor a reference oci://registry/name:tag"
            )
        statements = folder_statements(folder, keys)
        signatures = [_CheckedSignature(statement, changed_files(folder, statement)) for statement in statements]
        return _report(place, signatures, (), is_json=own.is_json)
    reporter = default_reporter()
    policy = ArtifactPolicy(store=options.environments.store.expanduser().absolute(), required_keys=keys)
    client, store = open_registry(parse_reference(place)), ArtifactStore(policy.store, reporter)
    artifact = store.artifact(client)
    statements = artifact_statements(client, store, artifact, policy)
    damaged = _check_blobs(client, artifact, reporter)
    signatures = []
    for statement in statements:
        moved = [*changed_name(statement, client.reference), *changed_layers(statement.layers, artifact.layers)]
        signatures.append(_CheckedSignature(statement, [*moved, *damaged.values()]))
    layers = [
        {
            "layer": str(layer),
            "digest": layer.digest,
            "is_intact": layer.digest not in damaged,
            # Names of trusted keys, and ids of other keys.
            "signed_by": [each.signer or each.key_id for each in statements if layer.descriptor in each.layers],
        }
        for layer in artifact.layers
        if layer.kind is not LayerKind.SIGNATURE
    ]
    return _report(str(artifact.reference), signatures, layers, is_json=own.is_json)


def _check_blobs(client: RegistryClient, artifact: Artifact, reporter: ProgressReporter) -> dict[str, str]:
    """Read all layers in the registry; returns what is wrong with them, by digest."""
    damaged: dict[str, str] = {}
    for layer in artifact.layers:
        named = Path(layer.name)
        with ProgressMeter(reporter, step="reading", label="", path=named, total=layer.size) as meter:
            try:
                client.check_blob(layer.digest, layer.size, str(layer), meter.advance)
            except RegistryError as error:
                damaged[layer.digest] = error.message
    return damaged


def _report(
    place: str, signatures: Sequence[_CheckedSignature], layers: Sequence[Mapping[str, Any]], *, is_json: bool
) -> int:
    is_valid = any(each.is_valid for each in signatures)
    if is_json:
        print_json(
            {
                "place": place,
                "is_valid": is_valid,
                "signatures": [
                    {
                        "key_id": each.statement.key_id,
                        "signer": each.statement.signer,
                        "repository": each.statement.repository,
                        "tag": each.statement.tag,
                        "problem": each.statement.problem,
                        "differences": each.differences,
                    }
                    for each in signatures
                ],
                "layers": layers,
            }
        )
    else:
        for signature in signatures:
            _print_signature(signature)
        if layers:
            rows = [
                (
                    each["layer"],
                    each["digest"][:_DIGEST_SHOWN],
                    "intact" if each["is_intact"] else "DAMAGED",
                    ", ".join(each["signed_by"]),
                )
                for each in layers
            ]
            print(text_table(("Layer", "Digest", "Content", "Signed by"), rows), end="")
        failed = "not as a trusted key signed it" if signatures else "not signed"
        print(f"{place}: {'unchanged since a trusted key signed it' if is_valid else failed}")
    return 0 if is_valid else 1


def _print_signature(signature: _CheckedSignature) -> None:
    statement = signature.statement
    signer = f"'{statement.signer}' (key {statement.key_id})" if statement.signer else f"key {statement.key_id}"
    name = f" as {statement.name}" if statement.repository else ""
    print(f"signed by {signer}{name}{f', {statement.problem}' if statement.problem else ''}")
    for difference in signature.differences:
        print(f"  {difference}")
