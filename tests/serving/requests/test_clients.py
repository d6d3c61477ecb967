"""Two shared backends with two models each, asked by all four flavours of the real tritonclient."""

import asyncio
import venv
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from support.client_inputs import input_of
from support.model_files import python_model, write_files
from support.server import ServerProcess

BACKEND = """
@staticmethod
def auto_complete_config(config):
    config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
    config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
    config.add_output({"name": "WHO", "data_type": "TYPE_STRING", "dims": [1]})
    config.set_max_batch_size(0)
    return config

def initialize(self, args):
    self.factor = float(open(os.path.join(pb_utils.get_model_dir(), "factor.txt")).read())
    self.who = "BACKEND " + args["model_name"] + " " + os.environ.get("VIRTUAL_ENV", "host")

def respond(self, request):
    value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    who = pb_utils.Tensor("WHO", np.array([self.who], dtype=object))
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value * np.float32(self.factor)), who])
"""
MODELS = {"double": ("plain", 2), "triple": ("plain", 3), "half": ("own", 0.5), "tenth": ("own", 0.1)}


@pytest.fixture(scope="module")
def server(work):
    for backend in ("plain", "own"):
        (work / "backends" / backend).mkdir(parents=True)
        (work / "backends" / backend / "model.py").write_text(python_model(BACKEND.replace("BACKEND ", f"{backend} ")))
    venv.create(work / "env", symlinks=True, with_pip=False)
    [packages] = (work / "env").glob("lib/python*/site-packages")
    (packages / "numpy.pth").write_text(str(Path(np.__file__).parents[1]))
    (work / "backends" / "own" / "backend.toml").write_text('environment = "../../env"\n')
    for name, (backend, factor) in MODELS.items():
        version = write_files(work / "models", name, f'backend: "{backend}"\n')
        (version / "factor.txt").write_text(str(factor))
    with ServerProcess(work / "models", f"--backend-directory={work / 'backends'}", work=work) as process:
        yield process


def inputs(api):
    return [input_of(api, "IN", np.array([1, 2, 4], np.float32))]


def check(name, result):
    backend, factor = MODELS[name]
    np.testing.assert_allclose(result.as_numpy("OUT"), np.array([1, 2, 4], np.float32) * np.float32(factor))
    who = result.as_numpy("WHO")[0].decode().split(" ")
    assert who[:2] == [backend, name]
    assert who[2].endswith("/env") is (backend == "own")


@pytest.mark.parametrize("api", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_answers_with_its_own_data_and_its_backends_code(server, api, name):
    with api.InferenceServerClient(server.http_url if api is tritonclient.http else server.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(name)
        check(name, client.infer(name, inputs(api), request_id="one"))


@pytest.mark.parametrize("api", [tritonclient.http.aio, tritonclient.grpc.aio], ids=["http.aio", "grpc.aio"])
def test_asynchronous_clients_ask_all_models_at_once(server, api):
    async def ask():
        url = server.http_url if api is tritonclient.http.aio else server.grpc_url
        async with api.InferenceServerClient(url) as client:
            assert await client.is_model_ready("double")
            return await asyncio.gather(*(client.infer(name, inputs(api)) for name in MODELS))

    for name, result in zip(MODELS, asyncio.run(ask()), strict=True):
        check(name, result)


def test_backend_table_has_a_row_for_python_and_one_for_each_shared_backend(server):
    rows = [line.split("|")[1].strip() for line in server.log.splitlines() if line.startswith("| ")]

    assert rows.count("plain") == 1
    assert rows.count("own") == 1
    assert rows.count("python") == 1
