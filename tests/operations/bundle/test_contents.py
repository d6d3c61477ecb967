"""What goes into a bundle: each environment once, and configurations that name it there."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from environments.wheels import offer_wheels, only_wheels
from support.native import add_model
from support.server import ServerProcess

from naiad.cli.commands import run as run_naiad
from naiad.config.server.command_line import read_options
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.core.errors import BundleError, NaiadError
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.progress import LogReporter
from naiad_operations.bundle.environments import BundledEnvironments
from naiad_operations.bundle.host import needed_packages, run_script
from naiad_operations.bundle.make import make_bundle, write_bundle
from naiad_operations.bundle.manifest import MANIFEST_NAME, BundleManifest, digests_of, find_damage, read_manifest
from naiad_operations.bundle.models import collect_models, rewrite_backend, rewrite_config

CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
IO = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }\n'


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def write_model(folder: Path, *parameters: str, backend: str = "python", versions=(1,)) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(f'# mine\nbackend: "{backend}"\n{IO}{"".join(parameters)}')
    for version in versions:
        (folder / str(version)).mkdir()
        if backend == "python":
            (folder / str(version) / "model.py").write_text(CODE)
        else:
            (folder / str(version) / "words.json").write_text("[]")
    return folder


def write_archive(path: Path, content: str, manifest: dict[str, object] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        members = {"bin/python": content.encode()}
        if manifest is not None:
            members = {"naiad-environment.json": json.dumps(manifest).encode(), **members}
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def manifest(platform: str, glibc: str = "") -> dict[str, object]:
    return {
        "format": 1, "name": "", "made_from": "conda", "platform": platform, "glibc": glibc, "python": "3.11.1",
        "abi": "", "packages": [], "files": 1, "size": 1, "recipe": {},
    }  # fmt: skip


def server_options(tmp_path: Path, *flags: str):
    found, _ = split_arguments([f"--env-store={tmp_path / 'store'}", *flags], SERVER_FLAGS, "test")
    return read_options(found, environ={}), found


def collect(tmp_path: Path, *flags: str, python=(3, 11, 7)):
    options, _ = server_options(tmp_path, *flags)
    manager = EnvironmentManager(options.environments.store, policy=store_policy(options))
    environments = BundledEnvironments(
        tmp_path / "scratch", LogReporter(), manager, signed=options.environments.trusted_keys is not None
    )
    return collect_models(options, environments, python), environments


def test_an_environment_travels_once_whatever_names_it(tmp_path):
    models, backends = tmp_path / "models", tmp_path / "backends"
    shared = write_archive(tmp_path / "envs" / "shared.tar.gz", "one")
    write_model(models / "absolute", parameter("EXECUTION_ENV_PATH", str(shared)))
    write_model(
        models / "relative", parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/../../envs/shared.tar.gz")
    )
    write_model(models / "named", parameter("EXECUTION_ENV_PATH", "env://shared"))
    own = write_model(models / "own", parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"))
    (own / "env.tar.gz").write_bytes(shared.read_bytes())
    write_model(models / "users", backend="words")
    (backends / "words").mkdir(parents=True)
    (backends / "words" / "model.py").write_text(CODE)
    (backends / "words" / "backend.toml").write_text('# ours\nenvironment = "../../envs/shared.tar.gz"\n')
    (backends / "unused").mkdir()

    contents, environments = collect(
        tmp_path,
        f"--model-repository={models}",
        f"--backend-directory={backends}",
        f"--env-directory={tmp_path / 'envs'}",
    )

    (path,) = {name for name in environments.members if name.endswith("-shared.tar.gz")}
    assert sorted(environments.members) == sorted({path, path.replace("shared", "env")})
    for name in ("absolute", "relative", "named"):
        text = contents.members[f"models/{name}/config.pbtxt"].read().decode()
        assert f'string_value: "$$TRITON_MODEL_DIRECTORY/../../{path}"' in text
    assert "models/own/env.tar.gz" not in contents.members
    assert contents.members["models/users/config.pbtxt"].read().startswith(b"# mine\n")
    toml = contents.members["backends/words/backend.toml"].read().decode()
    assert toml == f'# ours\nenvironment = "../../{path}"\n'
    assert not any(name.startswith("backends/unused") for name in contents.members)
    assert contents.on_host == []


def test_a_native_backend_outside_the_model_travels_and_is_served_from_the_bundle(tmp_path):
    model = add_model(tmp_path / "models", "user", "echo.c", backend="own")
    backend = tmp_path / "backends" / "own"
    backend.mkdir(parents=True)
    (model / "libtriton_own.so").rename(backend / "libtriton_own.so")
    (backend / "vocabulary.txt").write_text("one two")
    (tmp_path / "backends" / "unused").mkdir()
    (tmp_path / "backends" / "unused" / "libtriton_unused.so").write_bytes(b"")

    contents, environments = collect(
        tmp_path, f"--model-repository={tmp_path / 'models'}", f"--backend-directory={tmp_path / 'backends'}"
    )

    assert sorted(contents.members) == [
        "backends/own/libtriton_own.so",
        "backends/own/vocabulary.txt",
        "models/user/1/.keep",
        "models/user/config.pbtxt",
    ]
    assert environments.members == {}
    assert contents.on_host == ["user"]
    unpacked = tmp_path / "unpacked"
    for name, member in contents.members.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(member.read())
    (tmp_path / "backends").rename(tmp_path / "elsewhere")
    flags = (f"--backend-directory={unpacked / 'backends'}",)
    with ServerProcess(unpacked / "models", *flags, work=tmp_path) as server:
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        assert server.post("/v2/models/user/infer", body).json()["outputs"][0]["data"] == [1, 2]


def test_each_version_keeps_its_own_environment(tmp_path):
    model = write_model(
        tmp_path / "models" / "m",
        parameter("EXECUTION_ENV_PATH", "$$NAIAD_VERSION_DIRECTORY/env.tar.gz"),
        "version_policy: { all { } }\n",
        versions=(1, 3),
    )
    for version in (1, 3):
        write_archive(model / str(version) / "env.tar.gz", f"of {version}")

    contents, environments = collect(tmp_path, f"--model-repository={tmp_path / 'models'}")

    text = contents.members["models/m/config.pbtxt"].read().decode()
    assert 'key: "EXECUTION_ENV_PATH.1"' in text
    assert 'key: "EXECUTION_ENV_PATH.3"' in text
    assert 'key: "EXECUTION_ENV_PATH"' not in text
    assert len(environments.members) == 2
    assert contents.models == {"m": [1, 3]}


def test_several_repositories_keep_apart_and_empty_versions_and_links_travel(tmp_path):
    write_model(tmp_path / "a" / "first")
    second = write_model(tmp_path / "b" / "second")
    (tmp_path / "weights.bin").write_bytes(b"w")
    (second / "1" / "weights.bin").symlink_to(tmp_path / "weights.bin")
    (second / "1" / "__pycache__").mkdir()
    (second / "empty").mkdir()

    contents, _ = collect(tmp_path, f"--model-repository={tmp_path / 'a'}", f"--model-repository={tmp_path / 'b'}")

    assert contents.repositories == ["models", "models-2"]
    assert sorted(contents.members) == [
        "models-2/second/1/model.py", "models-2/second/1/weights.bin", "models-2/second/config.pbtxt",
        "models-2/second/empty/.keep", "models/first/1/model.py", "models/first/config.pbtxt",
    ]  # fmt: skip
    assert contents.members["models-2/second/1/weights.bin"].read() == b"w"
    assert contents.on_host == ["first", "second"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/nowhere/env.tar.gz", "'/nowhere/env.tar.gz' does not exist"),
        ("foreign.tar.gz", "it is for plan9-vax, and the server of this bundle is for"),
        ("good.tar.gz@sha256:" + "0" * 64, "the configuration requires 0000000"),
        ("empty", "no interpreter"),
    ],
)
def test_an_unusable_environment_is_refused_with_the_model_that_names_it(tmp_path, value, message):
    model = write_model(tmp_path / "models" / "m", parameter("EXECUTION_ENV_PATH", value))
    write_archive(model / "foreign.tar.gz", "x", manifest("plan9-vax"))
    write_archive(model / "good.tar.gz", "x")
    (model / "empty").mkdir()

    with pytest.raises(Exception, match=r".*") as refused:
        collect(tmp_path, f"--model-repository={tmp_path / 'models'}")

    assert message in refused.value.message
    assert "m" in refused.value.message


def test_a_model_that_asks_for_a_python_that_is_not_in_the_bundle_is_refused(tmp_path):
    write_model(tmp_path / "models" / "m", parameter("PYTHON_VERSION", "3.8"))

    with pytest.raises(BundleError) as refused:
        collect(tmp_path, f"--model-repository={tmp_path / 'models'}")

    assert "cannot bundle model 'm': it requires Python" in refused.value.message
    assert "the bundle's own Python is 3.11.7" in refused.value.message


def test_an_environment_that_is_named_by_its_interpreter_travels(tmp_path, whole):
    """By the model, or for all models: the folder of the interpreter is packed once, and the models name the archive."""
    python = whole / "bin" / "python"
    write_model(tmp_path / "models" / "own", parameter("PYTHON_VERSION", str(python)))
    write_model(tmp_path / "models" / "folder", parameter("PYTHON_VERSION", str(whole)))
    write_model(tmp_path / "models" / "default")
    setting = f"--backend-config=python,default-python={python}"
    flags = (f"--model-repository={tmp_path / 'models'}", setting)

    contents, environments = collect(tmp_path, *flags)

    (path,) = environments.members
    texts = {
        name: contents.members[f"models/{name}/config.pbtxt"].data.decode() for name in ("own", "folder", "default")
    }
    for name, key in (("own", "PYTHON_VERSION"), ("folder", "PYTHON_VERSION"), ("default", "EXECUTION_ENV_PATH.1")):
        assert f'key: "{key}"' in texts[name], texts[name]
        assert f"$$TRITON_MODEL_DIRECTORY/../../{path}" in texts[name]
    assert contents.on_host == []


def test_the_interpreter_of_the_system_is_not_bundled(tmp_path):
    system = Path("/usr/bin/python3")
    if not system.exists() or sys.prefix == "/usr":
        pytest.skip("this system has no other Python in /usr")
    write_model(tmp_path / "models" / "m", parameter("PYTHON_VERSION", str(system)))

    with pytest.raises(NaiadError) as refused:
        collect(tmp_path, f"--model-repository={tmp_path / 'models'}")

    assert (
        "cannot bundle the interpreter /usr/bin/python3: its packages are in /usr" in refused.value.message
        or "cannot import numpy" in refused.value.message
    )


def test_signed_environments_bring_their_signatures_and_others_are_refused(tmp_path):
    pytest.importorskip("cryptography")
    from naiad.core.signatures import create_key

    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "k"\npublic = "{create_key(tmp_path / "k.pem")}"\n')
    archive = write_archive(tmp_path / "env.tar.gz", "x")
    write_model(tmp_path / "models" / "m", parameter("EXECUTION_ENV_PATH", str(archive)))
    flags = (f"--model-repository={tmp_path / 'models'}", f"--env-trust={keys}")

    with pytest.raises(BundleError, match="--env-trust requires signatures"):
        collect(tmp_path, *flags)
    (tmp_path / "env.tar.gz.sig").write_text("s")
    _, environments = collect(tmp_path, *flags)

    assert sorted(name[-4:] for name in environments.members) == [".sig", "r.gz"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model-namespacing=true",), "cannot bundle with --model-namespacing=true"),
        ((), "cannot find models to bundle in "),
    ],
)
def test_an_impossible_bundle_is_refused_before_anything_is_copied(tmp_path, flags, message):
    (tmp_path / "models").mkdir()
    options, found = server_options(tmp_path, f"--model-repository={tmp_path / 'models'}", *flags)
    (tmp_path / "scratch").mkdir()

    with pytest.raises(BundleError) as refused:
        make_bundle("b", options, found, (), tmp_path / "scratch", LogReporter())

    assert message in refused.value.message


def test_the_closure_of_packages_has_installed_ones_and_names_missing_ones():
    names = needed_packages(["naiad"])

    assert {"naiad", "numpy", "fsspec", "hpack", "mdurl"} <= set(names)
    assert not {"pytest", "grpcio"} & set(names)
    with pytest.raises(BundleError, match="cannot copy package 'no-such-thing': it is not installed with this server"):
        needed_packages(["no-such-thing"])


def test_rewriting_changes_only_parameters_that_name_an_environment():
    text = '# a comment\nbackend: "python"\nparameters { key: "OTHER" value { string_value: "EXECUTION_ENV_PATH" } }\n'

    assert rewrite_config(text, "config.pbtxt", [1], lambda *_: pytest.fail("asked")) == text
    assert rewrite_backend("a = 1\n  environment='x' # y\n", "new") == 'a = 1\n  environment="new" # y\n'


def bundle_folder(tmp_path: Path, *, platform: str) -> Path:
    members = [
        OutputMember(name="run", data=run_script(platform), executable=True),
        OutputMember(name="link", link="run"),
    ]
    said = BundleManifest(
        name="b", naiad="1", python="3.11.7", platform=platform, glibc="", flags=("--log-file={bundle}/x",),
        models={}, environments={}, files=digests_of(members, {}),
    )  # fmt: skip
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / MANIFEST_NAME).write_bytes(said.as_bytes())
    (folder / "run").write_bytes(run_script(platform))
    (folder / "link").symlink_to("run")
    return folder


def test_a_manifest_is_read_as_it_was_written_and_names_changed_files(tmp_path):
    folder = bundle_folder(tmp_path, platform="linux-x86_64")
    said = read_manifest(folder)

    assert said.flags_in(folder) == [f"--log-file={folder}/x"]
    assert find_damage(folder, said) == []
    (folder / "link").unlink()
    (folder / "run").write_text("exit 0")
    assert find_damage(folder, said) == ["run: changed", "link: No such file or directory"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the bundle in"),
        ("{", "it is malformed"),
        ('{"format": 99}', "its format is not 1"),
        ('{"format": 1}', "it is malformed"),
        ("[]", "it is malformed"),
    ],
)
def test_an_invalid_manifest_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / MANIFEST_NAME).write_text(content)

    with pytest.raises(BundleError) as refused:
        read_manifest(tmp_path)

    assert message in refused.value.message


def test_an_archive_needs_a_name_that_says_its_format(tmp_path):
    with pytest.raises(BundleError, match=r"end it with \.tar\.zst or \.tar\.gz"):
        write_bundle(None, tmp_path / "bundle.zip", LogReporter())


@pytest.mark.builds
def test_an_environment_declared_in_a_models_file_travels_as_an_archive(tmp_path, monkeypatch):
    only_wheels(offer_wheels(tmp_path / "wheels"), monkeypatch)
    folder = write_model(tmp_path / "models" / "m")
    block = '# /// script\n# dependencies = ["adder", "numpy"]\n# ///\n'
    (folder / "1" / "model.py").write_text(block + CODE)
    assert run_naiad(["lock", str(folder)]) == 0

    collected, environments = collect(tmp_path, f"--model-repository={tmp_path / 'models'}")

    (archive,) = environments.members
    text = collected.members["models/m/config.pbtxt"].data.decode()
    assert f'key: "EXECUTION_ENV_PATH.1" value {{ string_value: "$$TRITON_MODEL_DIRECTORY/../../{archive}" }}' in text
    assert collected.members["models/m/1/model.py"].source == folder / "1" / "model.py"


@pytest.mark.builds
def test_an_environment_that_a_model_of_a_shared_backend_brings_travels_as_an_archive(tmp_path, monkeypatch):
    only_wheels(offer_wheels(tmp_path / "wheels"), monkeypatch)
    backend = tmp_path / "backends" / "own"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(CODE)
    (backend / "backend.toml").write_text('environment-files = ["python_env.yaml"]\n')
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "own"\n')
    file = version / "python_env.yaml"
    file.write_text("dependencies:\n- adder\n- numpy\n")
    assert run_naiad(["lock", str(file)]) == 0

    collected, environments = collect(
        tmp_path, f"--model-repository={tmp_path / 'models'}", f"--backend-directory={tmp_path / 'backends'}"
    )

    (archive,) = environments.members
    text = collected.members["models/m/config.pbtxt"].data.decode()
    assert f'key: "EXECUTION_ENV_PATH.1" value {{ string_value: "$$TRITON_MODEL_DIRECTORY/../../{archive}" }}' in text
    assert collected.members["models/m/1/python_env.yaml"].source == file


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "no output is named; add --output=FILE.tar.zst, --oci=FOLDER or both"),
        (("--output=there.tar.gz",), "there.tar.gz: it exists; choose another name, or add --force"),
        (("--output=x.tar.gz", "--with=no-such-package"), "cannot copy package 'no-such-package': it is not installed"),
        (("--oci=x", "--base=nowhere"), "cannot build on --base=nowhere: it is not a usable OCI image layout"),
    ],
)
def test_a_bundle_that_cannot_be_made_is_refused_and_leaves_nothing(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "plain" / "1").mkdir(parents=True)
    (tmp_path / "models" / "plain" / "1" / "model.py").write_text(CODE)
    (tmp_path / "there.tar.gz").touch()
    before = sorted(tmp_path.iterdir())

    code = run_naiad(["bundle", "--model-repository=models", f"--env-store={tmp_path.parent / 'store'}", *flags])

    assert code == (1 if flags else 2)  # without flags, the command line is wrong
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
