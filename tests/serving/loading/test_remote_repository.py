"""A server on a repository in an object store."""

from __future__ import annotations

import pytest
from serving.ensembles.ensembles import ask, outputs, write_ensemble, write_function
from sources.storage.bucket import KEYS, Bucket
from support.server import TRITONSERVER, ServerProcess

pytest.importorskip("s3fs")


@pytest.fixture
def bucket():
    with Bucket() as running:
        yield running


@pytest.fixture
def models(tmp_path, bucket):
    """A folder whose models are in the bucket."""
    folder = tmp_path / "written"
    write_function(folder, "plus", "x + 1")
    write_function(folder, "twice", "x * 2")
    write_ensemble(folder, "chain", "plus IN=X > OUT=A", "twice IN=A > OUT=Y")
    (folder / "plus" / "1" / "weights.bin").write_bytes(bytes(100_000))
    bucket.put_folder(folder, "models")
    return folder


def start(tmp_path, bucket, *options, environ=KEYS, **more):
    # A URI is no path: it comes with the command.
    command = [TRITONSERVER, f"--model-repository={bucket.uri}/models"]
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    return ServerProcess(
        None,
        *options,
        work=tmp_path,
        command=command,
        environ={"AWS_PROFILE": None, "TMPDIR": str(temporary), **environ},
        timeout=60,
        **more,
    )


def states(server):
    return {entry["name"]: entry.get("state") for entry in server.post("/v2/repository/index").json()}


def test_models_of_a_bucket_are_served_and_their_copies_deleted(tmp_path, bucket, models):
    with start(tmp_path, bucket) as server:
        assert states(server) == dict.fromkeys(("chain", "plus", "twice"), "READY")
        assert outputs(ask(server, "chain", 1)) == {"Y": [4]}
        assert len(list((tmp_path / "tmp").glob("naiad-repository-*"))) == 1
        assert server.stop() == 0
    assert not list((tmp_path / "tmp").glob("naiad-repository-*"))


def test_a_load_request_copies_the_model_and_what_it_needs_alone(tmp_path, bucket, models):
    with start(tmp_path, bucket, "--model-control-mode=explicit") as server:
        assert states(server) == dict.fromkeys(("chain", "plus", "twice"))
        assert bucket.read == []
        assert server.post("/v2/repository/models/twice/load").status == 200
        assert sorted(bucket.read) == ["models/twice/1/model.py", "models/twice/config.pbtxt"]
        bucket.read.clear()
        assert server.post("/v2/repository/models/chain/load").status == 200
        assert sorted(bucket.read) == [
            "models/chain/config.pbtxt",
            "models/plus/1/model.py",
            "models/plus/1/weights.bin",
            "models/plus/config.pbtxt",
        ]
        assert outputs(ask(server, "chain", 1)) == {"Y": [4]}
        bucket.read.clear()
        key = "models/plus/1/model.py"
        bucket.objects[key] = bucket.objects[key].replace(b"+ 1", b"+ 2")
        assert server.post("/v2/repository/models/plus/load").status == 200
        assert bucket.read == [key]
        assert outputs(ask(server, "chain", 1)) == {"Y": [6]}


def test_a_bucket_is_polled(tmp_path, bucket, models):
    with start(tmp_path, bucket, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        bucket.read.clear()
        key = "models/plus/1/model.py"
        bucket.objects[key] = bucket.objects[key].replace(b"+ 1", b"+ 5")
        bucket.objects["models/twice/1/__pycache__/model.pyc"] = b"bytecode"
        server.wait_for(lambda: outputs(ask(server, "plus", 1, name="IN")) == {"OUT": [6]}, "the changed model")
        assert bucket.read == [key]
        bucket.delete("models/chain/")
        bucket.delete("models/twice/")
        server.wait_for(lambda: states(server) == {"plus": "READY"}, "the removed models to go")


def test_without_credentials_the_server_says_what_it_could_not_list(tmp_path, bucket, models):
    nobody = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "eu"}
    with start(tmp_path, bucket, environ=nobody, wait="") as server:
        assert server.wait_exit() == 1
        assert f"cannot list '{bucket.uri}/models': PermissionError: Access Denied" in server.log
