# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy", "tritonclient[grpc]"]
# ///
"""A backend whose models are models of other servers of the KServe v2 protocol, over HTTP or gRPC.

A model of this backend is a `config.pbtxt` with `parameters`, see `docs/reference/remote.md`.
"""

from naiad_remote.service import TritonPythonModel

__all__ = ["TritonPythonModel"]
