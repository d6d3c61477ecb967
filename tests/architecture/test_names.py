"""A class name means one thing in the host, and one thing in host and guest together unless there is a reason."""

from __future__ import annotations

from architecture import rules
from architecture.sources import GUEST, HOST, python_files

_TRITONSERVER = "a name of the `tritonserver` package's API"

WITHIN_THE_HOST = {
    "LogFormat": _TRITONSERVER,
    "MetricKind": _TRITONSERVER,
    "ModelControlMode": _TRITONSERVER,
    "Options": "a name of the `tritonserver` package's API, and of each service of the `tritonfrontend` package's",
}
"""Class names that several modules of the host may define, with the reason."""

_BOTH_APIS = "a name of both the `tritonserver` package's API and `triton_python_backend_utils`"
_BOTH_ENDS = "each side has its end of the same exchange"

WITH_THE_GUEST = {
    **WITHIN_THE_HOST,
    "Channel": _BOTH_ENDS,
    "ErrorCode": "HTTP/2's error codes in the host, Triton's in the guest's API",
    "InferenceRequest": _BOTH_APIS,
    "InferenceResponse": _BOTH_APIS,
    "Kind": "kinds of flags in the host, kinds of messages in the guest",
    "Log": "the log's settings in the host, the LOG message in the guest",
    "MemoryType": _BOTH_APIS,
    "Metric": _BOTH_APIS,
    "MetricFamily": _BOTH_APIS,
    "ModelCalls": _BOTH_ENDS,
    "ModelConfig": "a value in the host; in the guest a name of `triton_python_backend_utils`",
    "ModelControl": _BOTH_ENDS,
    "ResponseIterator": _BOTH_APIS,
    "Tensor": f"{_BOTH_APIS}; the latter in two dialects",
    "TritonError": _BOTH_APIS,
}
"""Class names that host and guest may both define, with the reason."""


def test_no_two_modules_of_the_host_define_a_class_of_the_same_name() -> None:
    assert rules.repeated_class_names(python_files(HOST), WITHIN_THE_HOST) == []
    assert rules.unneeded_permissions(python_files(HOST), WITHIN_THE_HOST) == []


def test_host_and_guest_define_no_class_of_the_same_name() -> None:
    assert rules.repeated_class_names(python_files(HOST, GUEST), WITH_THE_GUEST) == []
