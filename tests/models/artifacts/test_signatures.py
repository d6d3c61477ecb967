"""Signed repositories: who signed what, what was changed since, and what a server accepts."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest
from environments import makers
from models.artifacts.repositories import CODE, layers_of, replace_layer

from naiad.cli.main import main
from naiad.models.artifacts.statements import sign_statement


def make_key(folder, name, trusted=None, algorithm="ed25519"):
    """A private key; its public key goes into the file *trusted*."""
    private = folder / f"{name}.pem"
    done = subprocess.run(
        [sys.executable, "-m", "naiad", "env", "keygen", str(private), "--name", name, "--algorithm", algorithm],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if trusted is not None:
        with trusted.open("a") as file:
            file.write(done.stdout)
    return private


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Private keys by name, and the file of those that are trusted: `build`, `audit` and `curve`."""
    folder = tmp_path_factory.mktemp("keys")
    trusted = folder / "keys.toml"
    found = {name: make_key(folder, name, trusted) for name in ("build", "audit")}
    found["curve"] = make_key(folder, "curve", trusted, "p256")
    found["stranger"] = make_key(folder, "stranger")
    return {**found, "trusted": trusted}


@pytest.fixture
def signed(registry, naiad, models, keys):
    """A repository that was pushed with the key `build`."""
    naiad.push(registry.uri("shop", "1"), models, f"--key={keys['build']}")
    return registry.uri("shop", "1")


def requiring(keys):
    return "--require-signature", f"--env-trust={keys['trusted']}"


@pytest.mark.parametrize("name", ["build", "curve"])
def test_a_signed_repository_is_pulled_where_signatures_are_required(registry, naiad, models, keys, name):
    naiad.push(registry.uri("shop", "1"), models, f"--key={keys[name]}")

    naiad.succeed("pull", registry.uri("shop", "1"), *requiring(keys))


def test_a_repository_without_a_signature_is_refused_where_one_is_required(registry, naiad, models, keys):
    naiad.push(registry.uri("shop", "1"), models)

    error = naiad.fail("pull", registry.uri("shop", "1"), *requiring(keys))

    assert "is refused: it is not signed, and --require-signature accepts signed repositories only" in error


def test_a_signature_by_an_unknown_key_does_not_count(registry, naiad, models, keys):
    naiad.push(registry.uri("shop", "1"), models, f"--key={keys['stranger']}")

    error = naiad.fail("pull", registry.uri("shop", "1"), *requiring(keys))

    assert "is refused: no signature is by a trusted key" in error
    assert "have it signed by one of build, audit, curve" in error


def test_a_changed_layer_is_refused_by_its_name(registry, naiad, signed, keys, tmp_path):
    before = layers_of(registry, "shop")["model/plain"]["digest"]
    files = [(makers.member("models/plain/1/model.py"), b"evil")]
    replace_layer(registry, "shop", "1", "model/plain", files, tmp_path)

    error = naiad.fail("pull", signed, *requiring(keys))

    now = layers_of(registry, "shop")["model/plain"]["digest"]
    assert f"is refused: model 'plain' was changed: signed as {before}, now {now} (signed by 'build')" in error
    assert not registry.requests("GET", f"blobs/{now}")


def test_an_added_a_removed_and_a_redescribed_layer_are_refused(registry, naiad, signed, keys):
    original = registry.manifest("shop", "1")
    by_kind = {entry["annotations"]["naiad.kind"]: entry for entry in original["layers"]}

    def pull(layers):
        registry.put("shop", "1", {**original, "layers": layers})
        return naiad.fail("pull", signed, *requiring(keys))

    added = json.loads(json.dumps(by_kind["model"]))
    added["annotations"]["naiad.name"] = "added"
    assert "model 'added' was added after the signature" in pull([*original["layers"], added])
    rest = [entry for entry in original["layers"] if entry["annotations"]["naiad.kind"] != "backend"]
    assert "backend 'loud' was removed" in pull(rest)
    changed = json.loads(json.dumps(original["layers"]))
    next(entry for entry in changed if "naiad.uses" in entry["annotations"])["annotations"]["naiad.uses"] = "[]"
    assert "the description of model 'packed' was changed" in pull(changed)


def test_an_altered_statement_is_refused(registry, naiad, signed, keys, tmp_path):
    name = next(part for part in layers_of(registry, "shop") if part.startswith("signature/"))
    naiad.succeed("pull", signed, f"--output={tmp_path / 'out'}")
    bundle = json.loads((tmp_path / "out" / ".naiad" / "signatures" / name.partition("/")[2]).read_bytes())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    statement["predicate"]["resources"].pop()
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    member = makers.member(f"models/.naiad/signatures/{name.partition('/')[2]}")
    replace_layer(registry, "shop", "1", name, [(member, json.dumps(bundle).encode())], tmp_path)

    assert "the signature is invalid: the statement was altered" in naiad.fail("pull", signed, *requiring(keys))


def republish(registry, name, tag):
    """Give the repository `shop:1` another name, with all its blobs."""
    registry.blobs[name] = dict(registry.blobs["shop"])
    registry.put(name, tag, registry.manifest("shop", "1"))
    return registry.uri(name, tag)


@pytest.mark.parametrize(("name", "tag"), [("prod", "1"), ("team/shop", "1"), ("shop", "prod")])
def test_a_signature_is_of_one_name_and_tag(registry, naiad, signed, keys, name, tag):
    place = republish(registry, name, tag)

    error = naiad.fail("pull", place, *requiring(keys))

    assert f"is refused: the signature is of shop:1, not of {name}:{tag} (signed by 'build')" in error
    code, out, _ = naiad.run("verify", place, f"--env-trust={keys['trusted']}")
    assert code == 1
    assert "signed by 'build' (key " in out
    assert ") as shop:1\n" in out
    assert f"the signature is of shop:1, not of {name}:{tag}\n" in out
    assert naiad.run("explain", "plain", f"--model-repository={place}", *requiring(keys))[0] == 1


def test_a_digest_names_signed_content_wherever_it_is(registry, naiad, signed, keys):
    place = republish(registry, "mirror/shop", "latest")
    digest = registry.tags["mirror/shop"]["latest"]

    naiad.succeed("pull", f"{place}@{digest}", *requiring(keys))
    assert "unchanged since" in naiad.succeed("verify", f"{place}@{digest}", f"--env-trust={keys['trusted']}")


def test_a_repository_that_is_pushed_under_a_second_tag_is_signed_for_it(registry, naiad, models, signed, keys):
    naiad.push(registry.uri("shop", "prod"), models, f"--key={keys['build']}")

    naiad.succeed("pull", registry.uri("shop", "prod"), *requiring(keys))
    naiad.succeed("pull", signed, *requiring(keys))


def test_a_signature_without_a_name_is_good_for_a_digest_only(registry, naiad, signed, keys, tmp_path):
    """As version 0.2 wrote them."""
    name = next(part for part in layers_of(registry, "shop") if part.startswith("signature/"))
    naiad.succeed("pull", signed, f"--output={tmp_path / 'out'}")
    bundle = json.loads((tmp_path / "out" / ".naiad" / "signatures" / name.partition("/")[2]).read_bytes())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    del statement["predicate"]["naiad"]["repository"], statement["predicate"]["naiad"]["tag"]
    _, data = sign_statement(json.dumps(statement).encode(), keys["build"])
    member = makers.member(f"models/.naiad/signatures/{name.partition('/')[2]}")
    digest = replace_layer(registry, "shop", "1", name, [(member, data)], tmp_path)

    error = naiad.fail("pull", signed, *requiring(keys))

    assert "the signature is of a repository without a name, not of shop:1" in error
    naiad.succeed("pull", f"{signed}@{digest}", *requiring(keys))


def test_verify_names_the_keys_that_signed(registry, naiad, models, keys):
    naiad.push(registry.uri("shop", "1"), models, f"--key={keys['build']}", f"--key={keys['audit']}")

    out = naiad.succeed("verify", registry.uri("shop", "1"), f"--env-trust={keys['trusted']}")

    assert "signed by 'build' (key " in out
    assert "signed by 'audit' (key " in out
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| ") and "Layer" not in line]
    assert len(rows) == 6
    assert {(row[2].strip(), row[3].strip()) for row in rows} <= {
        ("intact", "build, audit"),
        ("intact", "audit, build"),
    }
    assert out.splitlines()[-1].endswith("unchanged since a trusted key signed it")


def test_verify_without_keys_names_the_signer_without_trust(registry, naiad, signed):
    code, out, _ = naiad.run("verify", signed)

    assert code == 1
    assert "not verified: name the trusted keys with --env-trust" in out


def test_verify_finds_damage_in_the_registry(registry, naiad, signed, keys):
    digest = layers_of(registry, "shop")["model/plain"]["digest"]
    registry.blobs["shop"][digest] = b"x" * len(registry.blobs["shop"][digest])

    code, out, _ = naiad.run("verify", signed, f"--env-trust={keys['trusted']}")

    assert code == 1
    assert "model 'plain' of oci://" in out
    assert out.count("DAMAGED") == 1


def test_a_pulled_folder_is_verified_file_by_file(registry, naiad, signed, keys, tmp_path):
    folder = tmp_path / "out"
    naiad.succeed("pull", signed, f"--output={folder}")
    trust = f"--env-trust={keys['trusted']}"
    assert "unchanged since" in naiad.succeed("verify", folder, trust)

    (folder / "plain" / "1" / "model.py").write_text("evil")
    (folder / "plain" / "1" / "more.py").write_text("evil")
    (folder / "shared" / "1" / "settings.txt").unlink()
    code, out, _ = naiad.run("verify", folder, trust)

    assert code == 1
    assert "'plain/1/model.py' was changed: signed as sha256:" in out
    assert "'plain/1/more.py' was added after the signature" in out
    assert "'shared/1/settings.txt' was removed" in out


def test_a_mounted_repository_is_checked_before_a_model_is_read(registry, naiad, signed, keys, tmp_path):
    """As under KServe: the server gets a folder."""
    folder = tmp_path / "out"
    naiad.succeed("pull", signed, f"--output={folder}")

    def explain(model):
        return naiad.run("explain", model, f"--model-repository={folder}", *requiring(keys))

    assert explain("plain")[0] == 0
    (folder / "plain" / "1" / "model.py").write_text("evil")
    code, _, err = explain("plain")
    assert code == 1
    assert f"model 'plain' in {folder} is refused: 'plain/1/model.py' was changed: signed as sha256:" in err
    assert explain("shared")[0] == 0
    (folder / ".naiad" / "backends" / "loud" / "model.py").write_text("evil")
    assert "'.naiad/backends/loud/model.py' was changed" in explain("shared")[2]


def test_one_pulled_model_is_accepted_without_the_others(registry, naiad, signed, keys, tmp_path):
    naiad.succeed("pull", signed, "--model=shared", f"--output={tmp_path / 'out'}")

    code, out, err = naiad.run("explain", "shared", f"--model-repository={tmp_path / 'out'}", *requiring(keys))

    assert code == 0, out + err


def test_an_unsigned_folder_is_refused(naiad, models, keys):
    code, _, err = naiad.run("explain", "plain", f"--model-repository={models}", *requiring(keys))

    assert code == 1
    assert "it is not signed" in err


def test_signatures_are_required_with_the_keys_to_check_them(naiad, models, capsys):
    assert "no keys are trusted; name the file of their public keys with --env-trust" in naiad.fail(
        "explain", "plain", f"--model-repository={models}", "--require-signature"
    )


def test_a_signature_does_not_change_the_layers(registry, naiad, models, keys):
    naiad.push(registry.uri("shop", "1"), models)
    registry.asked.clear()

    naiad.push(registry.uri("shop", "2"), models, f"--key={keys['curve']}")

    unsigned, signed = layers_of(registry, "shop", "1"), layers_of(registry, "shop", "2")
    assert {part: signed[part] for part in unsigned} == unsigned
    assert len(signed) == len(unsigned) + 1


@pytest.mark.server
def test_the_openssf_s_own_tool_verifies_a_pulled_folder(registry, naiad, models, keys, tmp_path):
    from cryptography.hazmat.primitives import serialization

    naiad.push(registry.uri("shop", "1"), models, f"--key={keys['curve']}")
    folder = tmp_path / "out"
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={folder}")
    private = serialization.load_pem_private_key(keys["curve"].read_bytes(), password=None)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "public.pem").write_bytes(private.public_key().public_bytes(serialization.Encoding.PEM, form))
    (signature,) = (folder / ".naiad" / "signatures").iterdir()

    def verify():
        return subprocess.run(
            [sys.executable, "-m", "model_signing", "verify", "key", str(folder), "--signature", str(signature),
             "--public_key", str(tmp_path / "public.pem"), "--ignore-paths", str(signature.parent)],
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip

    done = verify()
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "plain" / "1" / "model.py").write_text(CODE % "evil")
    assert verify().returncode != 0


def test_keygen_prints_a_line_for_the_file_of_keys(tmp_path, capsys):
    assert main(["env", "keygen", str(tmp_path / "k.pem"), "--algorithm=p256"]) == 0

    assert len(base64.b64decode(capsys.readouterr().out.split('"')[3])) == 91
