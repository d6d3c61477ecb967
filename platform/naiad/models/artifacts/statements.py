"""Signed statements about a repository, in the format of the OpenSSF's model signing (OMS 1.0).

A statement lists the SHA-256 of every file of the repository and, in a field of naiad's own, the descriptors of the
layers. It is an in-toto statement in a DSSE envelope in a Sigstore bundle. The files let any tool check a folder; the
layers let a server check a manifest before it downloads anything.

Formats: https://github.com/ossf/model-signing-spec, https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md,
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, https://docs.sigstore.dev/about/bundle/.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.core.errors import RegistryError
from naiad.core.foreign_json import read_json
from naiad.core.signatures import TrustedKeys, sign_message
from naiad.models.artifacts.manifest import SIGNATURES_FOLDER
from naiad.sources.registry.references import Reference

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """A statement and who signed it."""

    key_id: str
    signer: str  # name of the key if it is trusted and the signature is valid, else empty
    problem: str  # why the signature does not count; empty if it does
    files: Mapping[str, str]
    layers: Sequence[Mapping[str, Any]]
    # Name of the repository that it was pushed to, without the registry; empty in signatures of builds before 0.2.0.
    repository: str = ""
    tag: str = ""

    @property
    def name(self) -> str:
        return f"{self.repository}:{self.tag}" if self.repository else "a repository without a name"

    def is_of(self, reference: Reference) -> bool:
        """Whether the signature is of what a reference names.

        The registry does not count, because copies in other registries are the same. A digest names the content itself.
        """
        return bool(reference.digest) or (self.repository, self.tag) == (reference.name, reference.tag)


def make_statement(reference: Reference, files: Mapping[str, str], layers: Sequence[Mapping[str, Any]]) -> bytes:
    """The statement to sign: digests of files by path, and descriptors of layers, without those of signatures."""
    resources = [{"name": path, "algorithm": "sha256", "digest": files[path]} for path in sorted(files)]
    root = hashlib.sha256(b"".join(bytes.fromhex(files[path]) for path in sorted(files))).hexdigest()
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": reference.name.rpartition("/")[2], "digest": {"sha256": root}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURES_FOLDER],
            },
            "resources": resources,
            # Verifiers of OMS ignore fields that they do not know.
            "naiad": {"layers": list(layers), "repository": reference.name, "tag": reference.tag},
        },
    }
    return json.dumps(statement, separators=(",", ":"), sort_keys=True).encode()


def sign_statement(statement: bytes, private: Path) -> tuple[str, bytes]:
    """Sign a statement; returns the id of the key and the content of the signature's file."""
    signed = sign_message(_pre_authentication(statement), private)
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {
            # What OMS's own tool writes and compares: the digest of the public key's PEM.
            "publicKey": {"hint": hashlib.sha256(signed.public_pem).hexdigest()},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signed.signature).decode(), "keyid": signed.key_id}],
        },
    }
    return signed.key_id, (json.dumps(bundle, indent=1) + "\n").encode()


def read_statement(data: bytes, trust: TrustedKeys | None, where: str) -> SignedStatement:
    """The statement in a signature's file, with its signature verified against the trusted keys."""
    try:
        envelope = read_json(data)["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        signature = envelope["signatures"][0]
        key_id, signed = str(signature["keyid"]), base64.b64decode(signature["sig"], validate=True)
        statement = read_json(payload)
        predicate = statement["predicate"]
        if envelope["payloadType"] != _PAYLOAD_TYPE or statement["predicateType"] != _PREDICATE_TYPE:
            raise ValueError(f"its type is {statement['predicateType']}")
        files = {str(entry["name"]): str(entry["digest"]) for entry in predicate["resources"]}
        if any(not _is_below(path) for path in files):
            raise ValueError("it names files outside of the repository")
        own = predicate["naiad"]
        layers, repository, tag = list(own["layers"]), str(own.get("repository", "")), str(own.get("tag", ""))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RegistryError(
            f"cannot read the signature in {where}: it is malformed ({error!r}); push it again"
        ) from error
    signer, problem = "", ""
    if trust is None:
        problem = "not verified: name the trusted keys with --env-trust"
    elif key_id not in trust.keys:
        problem = f"the key is not in {trust.path}"
    elif not trust.is_valid(key_id, signed, _pre_authentication(payload)):
        problem = "the signature is invalid: the statement was altered after it was signed"
    else:
        signer = trust.names[key_id]
    return SignedStatement(
        key_id=key_id, signer=signer, problem=problem, files=files, layers=layers, repository=repository, tag=tag
    )


def _is_below(path: str) -> bool:
    return bool(path) and not {"", ".", ".."} & set(path.split("/"))


def _pre_authentication(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding of a payload, which is what is signed."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)
