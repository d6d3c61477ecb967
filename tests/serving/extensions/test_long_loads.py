"""Load requests with long files, which are read in the offload process."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable

import tritonclient.grpc
import tritonclient.http
from serving.extensions.conftest import Both

from naiad.frontends.extensions import Extensions

CONTENT = os.urandom(300_000)


def test_long_files_of_a_load_request_reach_the_engine(
    serve: Callable[..., Both], connect: Callable[[Both], tritonclient.http.InferenceServerClient]
) -> None:
    extensions = Extensions()
    both = serve(extensions)
    connect(both).load_model("m", config="{}", files={"file:1/model.onnx": CONTENT})
    ((name, parameters),) = both.engine.loads
    assert name == "m"
    assert parameters["config"] == "{}"
    assert bytes(parameters["file:1/model.onnx"]) == CONTENT
    both.loop.run(extensions.background.close())


def test_error_of_a_long_load_request_is_that_of_a_short_one(serve: Callable[..., Both]) -> None:
    extensions = Extensions()
    both = serve(extensions)
    text = base64.b64encode(CONTENT).decode()
    status, reply = both.http("POST", "/v2/repository/models/m/load", {"parameters": {"file:1/x": text[:-1]}})
    assert status == 400
    assert reply["error"].startswith("cannot read load parameter 'file:1/x': it is not base64; ")
    status, reply = both.http("POST", "/v2/repository/models/m/load", {"parameters": {"fire": text}})
    assert (status, reply["error"]) == (500, "unexpected error on creating Triton parameter")
    both.loop.run(extensions.background.close())
