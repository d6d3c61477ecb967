"""`naiad bundle`: a bundle runs on another machine and uses nothing of the machine that made it."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
import zstandard
from environments import makers
from environments.served import copy_numpy, keep_imported_modules, with_numpy
from support.pages import follow, is_as_shown, steps
from support.server import ServerProcess

from naiad_operations.bundle.host import needed_packages

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(600)]

NAIAD = Path(sys.executable).with_name("naiad")
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
CODE = """
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        said = [sys.prefix, os.pathsep.join(sys.path), np.__file__]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WHERE", np.array(said, dtype=object))]) for _ in requests]
"""
CONFIG = """backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "WHERE" data_type: TYPE_STRING dims: [ 3 ] }
"""
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "bundle.md"
MAKING = [step for step in steps(PAGE.read_text(encoding="utf-8")) if "--model-repository" in step.commands]
"""The commands of the page that make an archive and an image; the fixture makes both at once."""
FLAGS = ("--http-port=8080", "--log-verbose=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundled repository: one model for the server's own interpreter, one with an environment. It is moved afterwards."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("plain", "packed"):
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "1" / "model.py").write_text(CODE)
        (folder / "models" / name / "config.pbtxt").write_text(CONFIG)
    prefix = with_numpy(folder / "environment", OWN, copy_numpy)
    archive = makers.conda_pack(prefix, folder / "models" / "numeric.tar.gz", "--compress-level=1")
    shutil.rmtree(prefix)
    with (folder / "models" / "packed" / "config.pbtxt").open("a") as config:
        text = f"$$TRITON_MODEL_DIRECTORY/../{archive.name}"
        config.write(f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{text}" }} }}\n')
    done = run(
        small_installation(folder / "installed"), "bundle", f"--model-repository={folder / 'models'}", *FLAGS,
        f"--output={folder / 'shop.tar.zst'}", f"--oci={folder / 'image'}", f"--env-store={folder / 'store'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "kept").mkdir()
    (folder / "models").rename(folder / "kept" / "models")
    yield folder, done.stdout
    shutil.rmtree(folder)


def small_installation(prefix: Path) -> Path:
    """The program `naiad` of a copy of this installation with fewer bytes: bundling them takes longest.

    It has the same packages, installed in the same way, but for symbols of debuggers and numpy's unused modules.
    """
    library = makers.make_environment(prefix, OWN, numpy=False, whole=True) / "lib" / f"python{OWN}"
    site = library / "site-packages"
    for name in needed_packages(("naiad",)):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(distribution.locate_file(file)), site / file)
    makers.strip_symbols(site.rglob("*.cpython-*.so"))
    keep_imported_modules(prefix / "bin" / "python", site, "numpy")
    program = prefix / "bin" / "naiad"
    program.write_text(f"#!{prefix}/bin/python\nimport sys\nfrom naiad.cli.main import main\n\nsys.exit(main())\n")
    program.chmod(0o755)
    return program


def run(program: Path, *arguments, **options):
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=400, check=False, **options
    )


def naiad(*arguments, **options):
    return run(NAIAD, *arguments, **options)


@contextmanager
def opened(archive):
    """A tar.zst, which `tarfile` reads from Python 3.14 on."""
    with (
        archive.open("rb") as raw,
        zstandard.ZstdDecompressor().stream_reader(raw) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        yield tar


def bare(**variables: str) -> dict[str, str | None]:
    """Changes that leave nothing of this process's variables but these."""
    cleared: dict[str, str | None] = dict.fromkeys(os.environ)
    return {**cleared, "XDG_CACHE_HOME": None, "PATH": "/usr/bin:/bin", **variables}


def where(server: ServerProcess, model: str) -> list[str]:
    with httpclient.InferenceServerClient(server.http_url) as client:
        given = httpclient.InferInput("X", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
        return [text.decode() for text in client.infer(model, [given]).as_numpy("WHERE")]


def test_the_command_prints_the_contents_of_the_bundle_and_how_to_start_it(made):
    _, said = made

    assert "2 models, 1 environment, Python " in said
    assert "note: plain: no environment is named, so the bundle's own Python" in said
    copy = f"next, to a registry:\n    skopeo copy oci:{made[0] / 'image'} docker://REGISTRY/shop:TAG\n"
    assert said.endswith(f"{copy}next, on the other machine:\n    tar -xf shop.tar.zst\n    shop/run\n")


def test_the_page_works_as_typed(made, tmp_path):
    folder, said = made
    archive, image = MAKING
    assert archive.commands == "naiad bundle --model-repository=models --http-port=8080 --output=shop.tar.zst\n"
    assert image.commands == "naiad bundle --model-repository=models --oci=image\n"
    assert is_as_shown(said.replace(f"{folder}/", ""), archive.printed)
    (tmp_path / "shop.tar.zst").symlink_to(folder / "shop.tar.zst")
    environ = {"PATH": f"{NAIAD.parent}{os.pathsep}{os.environ['PATH']}"}

    typed = [step.commands for step, _ in follow(PAGE, tmp_path, environ, done={step.commands for step in MAKING})]

    assert [commands.split()[0] for commands in typed] == ["naiad", "tar", "shop/run", "curl", "shop/run"]


def test_the_unpacked_bundle_serves_with_nothing_of_the_machine_it_was_made_on(made, tmp_path):
    folder, _ = made
    place = tmp_path / "a place with spaces"
    place.mkdir()
    with opened(folder / "shop.tar.zst") as tar:
        tar.extractall(place, filter="tar")
    assert [entry.name for entry in place.iterdir()] == ["shop"]
    (tmp_path / "link").symlink_to(place / "shop" / "run")
    environ = bare(HOME=str(tmp_path / "home"), NAIAD_STORE=str(tmp_path / "store"), PYTHONPATH="/nowhere")

    with ServerProcess(
        None, work=tmp_path / "work", command=[tmp_path / "link"], environ=environ, timeout=120
    ) as server:
        prefix, path, numpy = where(server, "plain")
        assert Path(prefix) == place / "shop" / "python"
        assert all(entry.startswith(str(tmp_path)) for entry in path.split(":") if entry)
        assert numpy.startswith(prefix)
        assert where(server, "packed")[0].startswith(str(tmp_path / "store"))

    assert not (tmp_path / "home").exists()
    checked = naiad("bundle", f"--verify={place / 'shop'}")
    assert (checked.returncode, checked.stdout) == (0, f"{place / 'shop'}: all files are unchanged\n")
    (place / "shop" / "models" / "plain" / "1" / "model.py").write_text("changed")
    checked = naiad("bundle", f"--verify={place / 'shop'}")
    assert checked.returncode == 1
    assert "models/plain/1/model.py: changed" in checked.stdout


def test_the_doctor_of_a_bundle_examines_the_machine_that_the_bundle_is_on(made, tmp_path):
    folder, _ = made
    with opened(folder / "shop.tar.zst") as tar:
        tar.extractall(tmp_path, filter="tar")
    environ = {"PATH": "/usr/bin:/bin", "NAIAD_STORE": str(tmp_path / "store"), "HOME": str(tmp_path)}

    examined = subprocess.run(
        [tmp_path / "shop" / "run", "doctor", "--leave-packed", "--http-port=0"],
        env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert "2 models examined: 0 errors" in examined.stdout, examined.stdout + examined.stderr


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def image_of(layout: Path):
    """The manifest and the configuration of a layout, with every digest and size on the way checked."""
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_text())
    assert (index["schemaVersion"], index["mediaType"]) == (2, "application/vnd.oci.image.index.v1+json")
    (pointer,) = index["manifests"]
    manifest = json.loads(checked(layout, pointer))
    config = json.loads(checked(layout, manifest["config"]))
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == pointer["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert config["rootfs"]["type"] == "layers"
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar+gzip"
        unpacked = gzip.decompress(checked(layout, layer))
        assert f"sha256:{hashlib.sha256(unpacked).hexdigest()}" == diff_id
    named = {manifest["config"]["digest"], pointer["digest"], *(layer["digest"] for layer in manifest["layers"])}
    assert {f"sha256:{path.name}" for path in (layout / "blobs" / "sha256").iterdir()} == named
    return manifest, config


def checked(layout: Path, descriptor) -> bytes:
    data = blob(layout, descriptor["digest"]).read_bytes()
    assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (descriptor["size"], descriptor["digest"])
    return data


def test_the_image_is_as_the_specification_has_it(made):
    manifest, config = image_of(made[0] / "image")

    assert (config["os"], config["architecture"]) == ("linux", {"x86_64": "amd64"}.get(os.uname().machine, "arm64"))
    assert config["config"]["User"] == "65532:0"
    assert config["config"]["Entrypoint"][0] == "/naiad/python/bin/python3"
    assert set(config["config"]["ExposedPorts"]) == {"8080/tcp", "8001/tcp", "8002/tcp"}
    assert config["config"]["StopSignal"] == "SIGTERM"
    for layer in manifest["layers"]:
        with tarfile.open(blob(made[0] / "image", layer["digest"])) as tar:
            members = tar.getmembers()
        seen = set()
        for member in members:
            assert (member.uid, member.gid, member.mtime) == (0, 0, 315_532_800)
            parents = [str(parent) for parent in Path(member.name).parents if str(parent) != "."]
            assert set(parents) <= seen, "a folder comes before what is in it"
            seen.add(member.name)


def can_mount() -> bool:
    """Whether a process may have mounts of its own, which only root may, and not in every container."""
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run(
            ["unshare", "--mount", "mount", "--bind", "/", "/"], capture_output=True, check=False
        ).returncode
    )


@pytest.fixture(scope="module")
def image_root(made):
    """The image's layers in one folder, and its configuration."""
    layout = made[0] / "image"
    manifest, config = image_of(layout)
    root = made[0] / "root"
    root.mkdir()
    for layer in manifest["layers"]:
        with tarfile.open(blob(layout, layer["digest"])) as tar:
            tar.extractall(root, filter="fully_trusted")
    for name in ("proc", "dev"):
        (root / name).mkdir()
    return root, config["config"]


# What a container runtime does, without one: a root folder that may only be read, but for some folders, and a user who
# has no name there.
_CONTAIN = """
root=$1 user=$2 writable=$3; shift 3
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root" || exit 9
for folder in $writable; do mount -t tmpfs -o mode=777 none "$root/$folder" || exit 9; done
mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" || exit 9
cd / && exec chroot --userspec="$user" "$root" "$@"
"""


def contained(root: Path, entry: list[str], *, user: str, writable: str) -> list[str]:
    """A command line that runs the image's entry point in the image."""
    return ["unshare", "--mount", "sh", "-c", _CONTAIN, "sh", str(root), user, writable, *entry]


needs_mounts = pytest.mark.skipif(not can_mount(), reason="only root may change its root folder")
PATH = "/usr/bin:/usr/sbin:/bin:/sbin"


@needs_mounts
@pytest.mark.parametrize(
    ("user", "variables"),
    [
        ("65532:0", {"NAIAD_STORE": "/var/lib/naiad"}),
        ("54321:54321", {"NAIAD_STORE": "/var/lib/naiad", "HOME": "/none"}),
    ],
    ids=["its own user", "any user"],
)
def test_the_image_runs_as_any_user_with_one_writable_folder(image_root, tmp_path, user, variables):
    root, config = image_root
    command = contained(root, config["Entrypoint"], user=user, writable="var/lib/naiad")

    with ServerProcess(
        None, work=tmp_path / "work", command=command, environ=bare(**variables, PATH=PATH), timeout=120
    ) as server:
        assert where(server, "plain")[0] == "/naiad/python"
        assert where(server, "packed")[0].startswith("/var/lib/naiad/")


@needs_mounts
@pytest.mark.parametrize("entry", ["program", "entry point"])
def test_the_image_has_tritonserver_where_tritons_images_have_it(image_root, tmp_path, entry):
    """Kubernetes files name its path as the command, or the program as the first argument of the entry point."""
    root, config = image_root
    named = {
        "program": ["/opt/tritonserver/bin/tritonserver"],
        "entry point": [*config["Entrypoint"], "tritonserver"],
    }[entry]
    command = contained(root, [*named, "--model-repository=/naiad/models"], user="65532:0", writable="var/lib/naiad")
    environ = bare(NAIAD_STORE="/var/lib/naiad", PATH=PATH)

    with ServerProcess(None, work=tmp_path / "work", command=command, environ=environ, timeout=120) as server:
        assert where(server, "plain")[0] == "/naiad/python"

    assert "/opt/tritonserver/bin" in next(each for each in config["Env"] if each.startswith("PATH=")).split(":")


@needs_mounts
@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        (
            {},
            2,
            "user 54321 has no home directory; name a directory that can be written with --env-store or NAIAD_STORE",
        ),
        ({"HOME": "/home"}, 1, "Read-only file system; name a directory that can be written with --env-store"),
        ({"NAIAD_STORE": "/store"}, 1, "Read-only file system; name a directory that can be written with --env-store"),
    ],
    ids=["no home", "a home to read", "a store to read"],
)
def test_without_a_writable_folder_the_image_names_the_missing_one_and_exits(
    image_root, tmp_path, variables, code, message
):
    root, config = image_root
    command = contained(root, config["Entrypoint"], user="54321:54321", writable="")
    server = ServerProcess(
        None, work=tmp_path / "work", command=command, environ=bare(**variables, PATH=PATH), timeout=120
    )

    server.start()

    assert server.wait_exit() == code
    assert message in server.log
    assert "Traceback" not in server.log


def test_the_same_input_gives_the_same_bytes_and_an_image_may_stand_on_another(made, tmp_path):
    """What was bundled first is bundled again, from another folder, on top of the image that it gave."""
    folder, _ = made
    below, _ = image_of(folder / "image")

    done = run(
        folder / "installed" / "bin" / "naiad", "bundle", f"--model-repository={folder / 'kept' / 'models'}", *FLAGS, "--name=shop", f"--base={folder / 'image'}",
        f"--oci={tmp_path / 'again'}", f"--env-store={folder / 'store'}",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    manifest, config = image_of(tmp_path / "again")
    system, *own = below["layers"]
    assert manifest["layers"] == [system, *own, *own]
    assert [entry["created_by"] for entry in config["history"]][: 1 + len(own)] == ["base image"] * (1 + len(own))
