"""Models that name others which they call: those are loaded first, and with them."""

from __future__ import annotations

import re

from serving.ensembles.ensembles import ask, outputs, write_function
from support.server import ServerProcess


def after(*names):
    return f'parameters {{ key: "LOAD_AFTER" value {{ string_value: "{", ".join(names)}" }} }}\n'


def order(server):
    """The models in the order in which they were ready."""
    return re.findall(r"successfully loaded '(\w+)'", server.log)


def test_a_load_request_loads_called_models_and_an_unload_of_either_keeps_the_other(tmp_path):
    models = tmp_path / "models"
    write_function(models, "aaa", "x", after("bbb", "missing"))
    write_function(models, "bbb", "x", after("zzz"))
    write_function(models, "zzz", "x", after("aaa"))  # a ring: any order will do
    with ServerProcess(models, "--model-control-mode=explicit", work=tmp_path) as server:
        assert server.post("/v2/repository/models/aaa/load").status == 200
        assert sorted(order(server)) == ["aaa", "bbb", "zzz"]
        assert server.post("/v2/repository/models/zzz/unload").status == 200
        server.wait_log("successfully unloaded 'zzz'")
        assert outputs(ask(server, "aaa", 1, name="IN")) == {"OUT": [1]}
