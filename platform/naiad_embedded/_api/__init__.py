"""The modules of `tritonserver._api`, which NVIDIA's OpenAI frontend and others use although they are private there.

Each has the public names of the package's module. What they are is in `naiad_embedded.inprocess`.
"""

from naiad_embedded._api import (
    _datautils,
    _dlpack,
    _logging,
    _memorybuffer,
    _model,
    _request,
    _response,
    _server,
    _tensor,
)

__all__ = [
    "_datautils",
    "_dlpack",
    "_logging",
    "_memorybuffer",
    "_model",
    "_request",
    "_response",
    "_server",
    "_tensor",
]
