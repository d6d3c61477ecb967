"""Signatures of archives: creating, reading and verifying them against the operator's trusted keys.

The signed message is a fixed text with the SHA-256 of the archive. `<archive>.sig` is a JSON object with one signature
per key. The operator lists trusted public keys in a TOML file (`--env-trust`). Keys are Ed25519, or ECDSA on P-256,
which tools of the OpenSSF need. Artifacts in registries are signed with the same keys
(`naiad.models.artifacts.statements`).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.extras import install_command
from naiad.core.foreign_json import read_json
from naiad.core.toml import tomllib

SIGNATURE_SUFFIX = ".sig"  # suffix of the signature file, appended to the archive's name

_FORMAT = "naiad-signature-1"
# The prefix binds a signature to this purpose: it cannot be reused for another kind of document.
_STATEMENT = b"naiad execution environment\nsha256:%s\n"
_PUBLIC_BYTES = 32
_SIZE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Signatures:
    """The content of a `.sig` file."""

    digest: str
    by_key: Mapping[str, bytes]

    def as_bytes(self) -> bytes:
        signatures = {key: base64.b64encode(value).decode() for key, value in self.by_key.items()}
        return (
            json.dumps({"format": _FORMAT, "sha256": self.digest, "signatures": signatures}, indent=1) + "\n"
        ).encode()


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The public keys whose signatures are accepted."""

    path: Path
    keys: Mapping[str, bytes]
    names: Mapping[str, str]

    def verify(self, signatures: Signatures, digest: str, where: str) -> str:
        """The name of a trusted key with a valid signature for this digest."""
        if signatures.digest != digest:
            raise ExecutionEnvironmentError(
                f"{where} is refused: its SHA-256 is {digest}, but what was signed is {signatures.digest}; it was "
                "altered or replaced after it was signed: bring the signed one, or have this one signed"
            )
        known = [key for key in signatures.by_key if key in self.keys]
        if not known:
            raise ExecutionEnvironmentError(
                f"{where} is refused: it is signed by {_listed(signatures.by_key)}, and {self.path} trusts "
                f"{_listed(f'{key} ({self.names[key]})' for key in self.keys)}; have it signed by one of these, or add "
                "the signer's key"
            )
        for key in known:
            if self.is_valid(key, signatures.by_key[key], _statement(digest)):
                return self.names[key]
        raise ExecutionEnvironmentError(
            f"{where} is refused: its signature by {_listed(self.names[key] for key in known)} is invalid; the .sig "
            "file was altered: bring the one that `naiad env sign` wrote"
        )

    def is_valid(self, key: str, signature: bytes, message: bytes) -> bool:
        return key in self.keys and _is_valid(self.keys[key], signature, message)

    def verify_local_archive(self, archive: Path, digest: str) -> str:
        """The name of a trusted key that signed a local archive, from the `.sig` file beside it; see `verify`."""
        where = f"the execution environment {archive}"
        place = archive.with_name(archive.name + SIGNATURE_SUFFIX)
        try:
            data = place.read_bytes()
        except OSError:
            data = None
        return self.verify(read_signatures(data, where, str(place)), digest, where)


def read_trusted_keys(path: Path) -> TrustedKeys:
    """The trusted keys in a TOML file."""
    _library()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot read the trusted keys in {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ExecutionEnvironmentError(f"cannot read the trusted keys in {path}: {error}") from error
    found = [_key(entry, path) for entry in _entries(content, path)]
    return TrustedKeys(
        path, {_key_id(public): public for _, public in found}, {_key_id(public): name for name, public in found}
    )


def read_signatures(data: bytes | None, where: str, place: str) -> Signatures:
    """Parse the content of a `.sig` file, which is None if there is none; *where* and *place* are for errors."""
    if data is None:
        raise ExecutionEnvironmentError(
            f"{where} is refused: it is not signed (there is no {place}), and this server accepts signed "
            "environments only (--env-trust); sign it with `naiad env sign`"
        )
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        value = read_json(data[:_SIZE_LIMIT])
        if value["format"] == _FORMAT:
            by_key = {str(key): base64.b64decode(text, validate=True) for key, text in value["signatures"].items()}
            return Signatures(str(value["sha256"]), by_key)
    raise ExecutionEnvironmentError(f"{where} is refused: {place} is not a signature file; `naiad env sign` writes one")


def list_signers(archive: Path, digest: str) -> tuple[str, ...]:
    """Ids of the keys in an archive's `.sig` file, for display. The signatures are not verified."""
    place = archive.with_name(archive.name + SIGNATURE_SUFFIX)
    with contextlib.suppress(OSError, ExecutionEnvironmentError):
        found = read_signatures(place.read_bytes(), str(archive), str(place))
        return tuple(found.by_key) if found.digest == digest else ()
    return ()


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """A signature of a message, with the public key as PEM and its id as in a file of trusted keys."""

    key_id: str
    public_pem: bytes
    signature: bytes


def sign_message(message: bytes, private: Path) -> SignedMessage:
    """Sign any message with the private key in a file."""
    _, serialization = _library()
    key = _private(private)
    public = key.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return SignedMessage(_key_id(_public_bytes(public)), pem, _signature(key, message))


def create_key(private: Path, algorithm: str = "ed25519") -> str:
    """Create keys (`ed25519` or `p256`): the private one in a file for its owner alone; returns the public one."""
    ed25519, serialization = _library()
    ec = _elliptic_curves()
    key = ec.generate_private_key(ec.SECP256R1()) if algorithm == "p256" else ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ExecutionEnvironmentError(
            f"{private} exists already, and keys are never overwritten: existing signatures still need this key"
        ) from None
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot write {private}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return base64.b64encode(_public_bytes(key.public_key())).decode()


def sign(archive: Path, digest: str, private: Path) -> tuple[Path, str]:
    """Sign an archive, keeping existing signatures of the same content; the signature file, and the id of the key."""
    key = _private(private)
    target = archive.with_name(archive.name + SIGNATURE_SUFFIX)
    key_id = _key_id(_public_bytes(key.public_key()))
    by_key = {key_id: _signature(key, _statement(digest))}
    with contextlib.suppress(OSError, ExecutionEnvironmentError):
        others = read_signatures(target.read_bytes(), str(archive), str(target))
        # Signatures of an earlier content of the archive are dropped.
        by_key = {**others.by_key, **by_key} if others.digest == digest else by_key
    try:
        target.write_bytes(Signatures(digest, by_key).as_bytes())
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot write {target}: {error.strerror or error}") from error
    return target, key_id


def _private(path: Path) -> Any:
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ExecutionEnvironmentError(f"cannot read the key {path}: {error.strerror or error}") from error
    except (TypeError, ValueError) as error:
        raise ExecutionEnvironmentError(
            f"{path} is not a private key without a password: {error}; `naiad env keygen` makes one"
        ) from error
    ec = _elliptic_curves()
    is_p256 = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    if not is_p256 and not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ExecutionEnvironmentError(
            f"{path} is not an Ed25519 key, nor one of the curve P-256; `naiad env keygen` makes one"
        )
    return key


def _signature(private: Any, message: bytes) -> bytes:
    ed25519, _ = _library()
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return bytes(private.sign(message))
    return bytes(private.sign(message, _ecdsa()))


def _public_bytes(public: Any) -> bytes:
    """A public key as in a file of trusted keys: Ed25519's 32 bytes, or a SubjectPublicKeyInfo as DER (RFC 5280)."""
    ed25519, serialization = _library()
    if isinstance(public, ed25519.Ed25519PublicKey):
        return bytes(public.public_bytes_raw())
    return bytes(public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def _is_valid(public: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    ed25519, serialization = _library()
    try:
        if len(public) == _PUBLIC_BYTES:
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        else:
            serialization.load_der_public_key(public).verify(signature, message, _ecdsa())
    except InvalidSignature:
        return False
    return True


def _is_p256(public: bytes) -> bool:
    """Whether these are the bytes of a public key on P-256."""
    _, serialization = _library()
    ec = _elliptic_curves()
    try:
        key = serialization.load_der_public_key(public)
    except ValueError:
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def _ecdsa() -> Any:
    from cryptography.hazmat.primitives import hashes

    return _elliptic_curves().ECDSA(hashes.SHA256())


def _elliptic_curves() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec


def _statement(digest: str) -> bytes:
    return _STATEMENT % digest.encode("ascii")


def _key_id(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:16]


def _entries(content: Mapping[str, Any], path: Path) -> list[Any]:
    entries = content.get("keys")
    if set(content) != {"keys"} or not isinstance(entries, list) or not entries:
        raise ExecutionEnvironmentError(
            f"cannot use the trusted keys in {path}: it must hold tables [[keys]] with 'name' and 'public', and "
            "nothing else; `naiad env keygen` prints one"
        )
    return entries


def _key(entry: Any, path: Path) -> tuple[str, bytes]:
    try:
        name, public = str(entry["name"]), base64.b64decode(entry["public"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ExecutionEnvironmentError(
            f"cannot use the trusted keys in {path}: a key needs 'name' and 'public' in base64 ({error})"
        ) from error
    if len(public) != _PUBLIC_BYTES and not _is_p256(public):
        raise ExecutionEnvironmentError(
            f"cannot use the trusted keys in {path}: the public key '{name}' has {len(public)} bytes, Ed25519 has "
            f"{_PUBLIC_BYTES}, and it is not a key on P-256 either"
        )
    return name, public


def _listed(names: Mapping[str, Any] | Iterator[str]) -> str:
    return ", ".join(names) or "no key"


def _library() -> tuple[Any, Any]:
    """The modules of `cryptography`, which only the extra `sign` installs."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ExecutionEnvironmentError(
            "signatures of environments need a library that is not installed; install it with: "
            f"{install_command('sign')}"
        ) from error
    return ed25519, serialization
