"""Only what a trusted key signed is used, and nothing else is unpacked."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from pathlib import Path

import pytest
from environments import makers
from environments.makers import member, write_tar
from environments.web import serving
from support.system_packages import needs

from naiad.config.model.environment_source import EnvironmentSource
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.signatures import TrustedKeys, create_key, read_trusted_keys, sign
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import StorePolicy
from naiad.environments.store.archive_digest import digest_of

pytest.importorskip("cryptography")


def trusting(folder: Path, *names: str) -> TrustedKeys:
    """The keys of that name in a folder, made now where there are none."""
    tables = []
    for name in names:
        private = folder / f"{name}.pem"
        public = create_key(private) if not private.exists() else (folder / f"{name}.pub").read_text()
        (folder / f"{name}.pub").write_text(public)
        tables.append(f'[[keys]]\nname = "{name}"\npublic = "{public}"\n')
    (folder / "keys.toml").write_text("\n".join(tables))
    return read_trusted_keys(folder / "keys.toml")


def signed(archive: Path, folder: Path, name: str, recorder) -> None:
    sign(archive, digest_of(archive, folder / "index", reporter=recorder), folder / f"{name}.pem")


@pytest.fixture
def small(tmp_path) -> Path:
    """An archive that is refused at the latest for having no interpreter: unpacking it shows in the message."""
    return write_tar(tmp_path / "small.tgz", [(member("README"), b"x")])


@pytest.fixture
def strict(tmp_path, recorder) -> EnvironmentManager:
    trust = trusting(tmp_path, "release", "backup")
    return EnvironmentManager(tmp_path / "store", reporter=recorder, policy=StorePolicy(trust=trust))


def refusal(manager: EnvironmentManager, source: Path | EnvironmentSource) -> str:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        manager.prepare(source)
    return caught.value.message


def nothing_was_unpacked(manager: EnvironmentManager, recorder) -> bool:
    staged = manager.store_root / "staging"
    return not any(event.step == "unpacking" for event in recorder.events) and not (
        staged.exists() and list(staged.iterdir())
    )


@pytest.mark.server
def test_a_signed_archive_is_used(strict, whole, tmp_path, recorder):
    archive = makers.pack_plainly(whole, tmp_path / "whole.tar")
    signed(archive, tmp_path, "release", recorder)

    assert strict.prepare(archive).digest


def test_an_unsigned_archive_is_refused_before_a_byte_is_unpacked(strict, small, recorder):
    assert refusal(strict, small) == (
        f"the execution environment {small} is refused: it is not signed (there is no {small}.sig), and this server accepts "
        "signed environments only (--env-trust); sign it with `naiad env sign`"
    )
    assert nothing_was_unpacked(strict, recorder)


def test_an_archive_that_was_altered_after_it_was_signed_is_refused_before_a_byte_is_unpacked(
    strict, small, tmp_path, recorder
):
    signed(small, tmp_path, "release", recorder)
    write_tar(small, [(member("README"), b"y")])

    assert re.search("its SHA-256 is [0-9a-f]{64}, but what was signed is [0-9a-f]{64}", refusal(strict, small))
    assert nothing_was_unpacked(strict, recorder)


def test_a_signature_of_a_key_that_is_not_trusted_is_refused_with_both_sides(strict, small, tmp_path, recorder):
    create_key(tmp_path / "stranger.pem")
    signed(small, tmp_path, "stranger", recorder)

    assert re.search(
        r"is refused: it is signed by [0-9a-f]{16}, and .*keys.toml trusts [0-9a-f]{16} \(release\), [0-9a-f]{16} \(backup\)",
        refusal(strict, small),
    )
    assert nothing_was_unpacked(strict, recorder)


def test_a_signature_that_was_altered_is_refused(strict, small, tmp_path, recorder):
    """With the digest changed along, so that only the signature itself can tell."""
    signed(small, tmp_path, "release", recorder)
    write_tar(small, [(member("README"), b"y")])
    said = json.loads(Path(f"{small}.sig").read_text())
    said["sha256"] = digest_of(small, tmp_path / "index", reporter=recorder)
    Path(f"{small}.sig").write_text(json.dumps(said))

    assert "its signature by release is invalid; the .sig file was altered" in refusal(strict, small)
    assert nothing_was_unpacked(strict, recorder)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"format": "x"}', b'{"format": "naiad-signature-1"}'])
def test_a_file_that_is_no_signature_is_reported_as_such(content, strict, small):
    Path(f"{small}.sig").write_bytes(content)
    assert f"{small}.sig is not a signature file; `naiad env sign` writes one" in refusal(strict, small)


def test_one_trusted_signature_of_several_is_enough(strict, small, tmp_path, recorder):
    create_key(tmp_path / "stranger.pem")
    signed(small, tmp_path, "stranger", recorder)
    signed(small, tmp_path, "backup", recorder)

    assert len(json.loads(Path(f"{small}.sig").read_text())["signatures"]) == 2
    assert "has no interpreter" in refusal(strict, small)


def test_signing_a_changed_archive_drops_its_old_signatures(small, tmp_path, recorder):
    trusting(tmp_path, "release", "backup")
    signed(small, tmp_path, "release", recorder)
    write_tar(small, [(member("README"), b"y")])
    signed(small, tmp_path, "backup", recorder)

    assert len(json.loads(Path(f"{small}.sig").read_text())["signatures"]) == 1


def test_a_directory_cannot_be_signed_and_is_refused(strict, whole):
    assert refusal(strict, whole).endswith(
        f"is refused: {whole} is a directory, and only archives have digests and signatures; pack it with `naiad env "
        "pack`, or remove --env-trust"
    )


def test_the_hosts_own_interpreter_needs_no_signature(strict):
    assert strict.prepare(None).is_host


def test_a_remote_archive_without_a_signature_is_not_downloaded(strict, small, tmp_path, recorder):
    with serving(tmp_path) as web:
        assert f"there is no {web.uri('small.tgz.sig')}" in refusal(strict, EnvironmentSource(uri=web.uri("small.tgz")))
        assert [name for name, _ in web.requests] == ["small.tgz.sig"]


def test_a_remote_archive_that_is_not_the_signed_one_is_refused(strict, small, tmp_path, recorder):
    signed(small, tmp_path, "release", recorder)
    write_tar(small, [(member("README"), b"y")])
    with serving(tmp_path) as web:
        message = refusal(strict, EnvironmentSource(uri=web.uri("small.tgz")))

    assert "its signatures are for " in message
    assert "accept-changed" not in message
    assert nothing_was_unpacked(strict, recorder)


@pytest.mark.server
def test_a_signed_remote_archive_needs_no_network_the_second_time(strict, whole, tmp_path, recorder):
    archive = makers.pack_plainly(whole, tmp_path / "whole.tar")
    signed(archive, tmp_path, "release", recorder)
    with serving(tmp_path) as web:
        source = EnvironmentSource(uri=web.uri("whole.tar"))
        first = strict.prepare(source)

    assert strict.prepare(source) == first


def test_a_private_key_is_for_its_owner_and_is_never_overwritten(tmp_path):
    create_key(tmp_path / "k.pem")

    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600
    with pytest.raises(ExecutionEnvironmentError, match="exists already, and keys are never overwritten"):
        create_key(tmp_path / "k.pem")


@needs("openssl")
def test_keys_and_signatures_are_those_of_other_tools(small, tmp_path, recorder):
    """A key of openssl signs, and openssl finds our signature good."""
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "o.pem"], check=True)
    subprocess.run(["openssl", "pkey", "-in", tmp_path / "o.pem", "-pubout", "-out", tmp_path / "o.pub"], check=True)
    signed(small, tmp_path, "o", recorder)
    said = json.loads(Path(f"{small}.sig").read_text())
    (tmp_path / "statement").write_text(f"naiad execution environment\nsha256:{said['sha256']}\n")
    (tmp_path / "signature.b64").write_text(next(iter(said["signatures"].values())) + "\n")
    decode = ["openssl", "base64", "-d", "-A", "-in", "signature.b64", "-out", "signature"]
    subprocess.run(decode, cwd=tmp_path, check=True)
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "o.pub", "-rawin", "-in", "statement"]
    subprocess.run([*verify, "-sigfile", "signature"], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"must hold tables \[\[keys\]\] with 'name' and 'public'"),
        ("keys = 3", r"must hold tables \[\[keys\]\]"),
        ("[[keys]]\nname = 'x'", "a key needs 'name' and 'public' in base64"),
        ("[[keys]]\nname = 'x'\npublic = '!'", "a key needs 'name' and 'public' in base64"),
        ("[[keys]]\nname = 'x'\npublic = 'eHg='", "the public key 'x' has 2 bytes, Ed25519 has 32"),
        ("[[", "cannot read the trusted keys in"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_named(content, said, tmp_path):
    (tmp_path / "keys.toml").write_text(content)
    with pytest.raises(ExecutionEnvironmentError, match=said):
        read_trusted_keys(tmp_path / "keys.toml")


def test_a_missing_file_of_keys_is_named(tmp_path):
    with pytest.raises(ExecutionEnvironmentError, match=r"cannot read the trusted keys in .*: No such file"):
        read_trusted_keys(tmp_path / "keys.toml")


@pytest.mark.parametrize(
    ("content", "said"), [(b"x", "is not a private key without a password"), (None, "cannot read the key")]
)
def test_an_invalid_key_signs_nothing(content, said, small, tmp_path):
    if content is not None:
        (tmp_path / "k.pem").write_bytes(content)
    with pytest.raises(ExecutionEnvironmentError, match=said):
        sign(small, "0" * 64, tmp_path / "k.pem")


def test_without_the_library_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ExecutionEnvironmentError, match=r"pip install 'cryptography>="):
        read_trusted_keys(tmp_path / "keys.toml")


def test_a_file_of_trusted_keys_may_begin_with_a_byte_order_mark(tmp_path):
    public = create_key(tmp_path / "key.pem")
    (tmp_path / "keys.toml").write_text(f'[[keys]]\nname = "a"\npublic = "{public}"\n', encoding="utf-8-sig")

    assert list(read_trusted_keys(tmp_path / "keys.toml").names.values()) == ["a"]
