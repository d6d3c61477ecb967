# Types of what a `model.py` usually imports as `pb_utils`.

from typing import Any, Final, Literal

import numpy.typing as npt
from c_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU as TRITONSERVER_MEMORY_CPU,
)
from c_python_backend_utils import (
    TRITONSERVER_MEMORY_GPU as TRITONSERVER_MEMORY_GPU,
)
from c_python_backend_utils import (
    InferenceRequest as InferenceRequest,
)
from c_python_backend_utils import (
    InferenceResponse as InferenceResponse,
)
from c_python_backend_utils import (
    Logger as Logger,
)
from c_python_backend_utils import (
    MetricFamily as MetricFamily,
)
from c_python_backend_utils import (
    ModelLoadError as ModelLoadError,
)
from c_python_backend_utils import (
    PreferredMemory as PreferredMemory,
)
from c_python_backend_utils import (
    Tensor as Tensor,
)
from c_python_backend_utils import (
    TritonError as TritonError,
)
from c_python_backend_utils import (
    TritonInferenceException as TritonInferenceException,
)
from c_python_backend_utils import (
    TritonModelException as TritonModelException,
)
from c_python_backend_utils import (
    get_backend_config as get_backend_config,
)
from c_python_backend_utils import (
    get_model_dir as get_model_dir,
)
from c_python_backend_utils import (
    is_model_ready as is_model_ready,
)
from c_python_backend_utils import (
    load_model as load_model,
)
from c_python_backend_utils import (
    unload_model as unload_model,
)

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2

TRITON_STRING_TO_NUMPY: dict[str, Any]

def triton_string_to_numpy(triton_type_string: str) -> Any: ...
def triton_to_numpy_type(data_type: int) -> Any: ...
def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None: ...
def serialize_byte_tensor(input_tensor: npt.NDArray[Any]) -> bytes | tuple[()] | None: ...
def deserialize_bytes_tensor(encoded_tensor: bytes | bytearray | memoryview) -> npt.NDArray[Any]: ...
def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None: ...
def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None: ...
def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None: ...
def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None: ...
def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool: ...

class ModelConfig:
    def __init__(self, model_config: str) -> None: ...
    def as_dict(self) -> dict[str, Any]: ...
    def set_max_batch_size(self, max_batch_size: int) -> None: ...
    def set_dynamic_batching(self) -> None: ...
    def add_input(self, input: dict[str, Any]) -> None: ...  # noqa: A002
    def add_output(self, output: dict[str, Any]) -> None: ...
    def set_model_transaction_policy(self, transaction_policy_dict: dict[Literal["decoupled"], bool]) -> None: ...
