"""Requests to the protocol's extensions: classification, settings and the status of regions."""

from __future__ import annotations

import json
from typing import Any

from conformance.cases import Case, infer
from conformance.http_cases import BOTH

_LOG, _TRACE, _MODEL_TRACE = "/v2/logging", "/v2/trace/setting", "/v2/models/add_sub/trace/setting"


def classes(name: str, **parameters: Any) -> Case:
    return infer(name, {"inputs": BOTH, "outputs": [{"name": "OUTPUT0", "parameters": parameters}]})


def posted(name: str, path: str, content: Any) -> Case:
    return Case(name=name, path=path, body=json.dumps(content).encode())


CASES = [
    classes("the two best classes", classification=2),
    classes("more classes than there are", classification=9),
    classes("no classes at all", classification=0),
    classes("classes as binary", classification=2, binary_data=True),
    classes("classes less than none", classification=-1),
    classes("classes that are no number", classification="two"),
    Case(name="log settings", method="GET", path=_LOG),
    posted("no change of the log", _LOG, {}),
    posted("an unknown log setting and one that is null", _LOG, {"what": 1, "log_info": None}),
    posted("a log file", _LOG, {"log_file": "/tmp/log"}),
    posted("a log format that is none", _LOG, {"log_format": "loud"}),
    posted("a log level that is no number", _LOG, {"log_verbose_level": "1"}),
    posted("a log switch that is no boolean", _LOG, {"log_info": 1}),
    Case(name="trace settings", method="GET", path=_TRACE),
    Case(name="trace settings of a model", method="GET", path=_MODEL_TRACE),
    Case(name="trace settings of no model", method="GET", path="/v2/models/nothing/trace/setting"),
    posted("no change of traces", _TRACE, {}),
    posted("a trace file", _TRACE, {"trace_file": "x"}),
    posted("trace levels with OFF among them", _TRACE, {"trace_level": ["OFF", "TIMESTAMPS"]}),
    posted("a trace level that is no list", _TRACE, {"trace_level": "OFF"}),
    posted("a trace rate that is a number", _TRACE, {"trace_rate": 5}),
    posted("a trace rate that is none", _TRACE, {"trace_rate": "x"}),
    posted("a level without a file", _TRACE, {"trace_level": ["TIMESTAMPS"]}),
    Case(name="unregistering all regions", path="/v2/systemsharedmemory/unregister"),
    Case(name="unregistering all CUDA regions", path="/v2/cudasharedmemory/unregister"),
    Case(name="regions", method="GET", path="/v2/systemsharedmemory/status"),
    Case(name="an unknown region", method="GET", path="/v2/systemsharedmemory/region/r/status"),
    Case(name="an unknown CUDA region", method="GET", path="/v2/cudasharedmemory/region/r/status"),
]
