"""All functions of Triton's C API that a backend may link to, in one table: arguments, result, state.

The declarations are those of the public headers (triton-inference-server/core, tritonbackend.h and tritonserver.h), in
the version that API_VERSION names. Each line of the table is `name: arguments -> result | reason`. The result is left
out where it is TRITONSERVER_Error*. A reason says why the function is not implemented: then it returns an UNSUPPORTED
error with that reason. Arguments are kinds (`_KINDS`); `out KIND` is a pointer through which the function returns a
value, and words that begin with a capital letter are pointers to the object of that name.

The trampolines, the callbacks and the reference page are all made from this table.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any, Dict, List, NamedTuple, Tuple

API_VERSION = (1, 19)
"""The version of TRITONBACKEND that this server implements: that of Triton 2.51."""
SERVER_API_VERSION = (1, 34)
"""The version of TRITONSERVER."""

ENTRY_POINTS = (
    "TRITONBACKEND_Initialize",
    "TRITONBACKEND_Finalize",
    "TRITONBACKEND_GetBackendAttribute",
    "TRITONBACKEND_ModelInitialize",
    "TRITONBACKEND_ModelFinalize",
    "TRITONBACKEND_ModelInstanceInitialize",
    "TRITONBACKEND_ModelInstanceFinalize",
    "TRITONBACKEND_ModelInstanceReady",
    "TRITONBACKEND_ModelInstanceExecute",
    "TRITONBACKEND_ModelBatcherInitialize",
    "TRITONBACKEND_ModelBatcherFinalize",
    "TRITONBACKEND_ModelBatchIncludeRequest",
    "TRITONBACKEND_ModelBatchInitialize",
    "TRITONBACKEND_ModelBatchFinalize",
)
"""Functions that a backend may export. ModelInstanceExecute is required. The ModelBatch functions are not called."""
REQUIRED_ENTRY_POINT = "TRITONBACKEND_ModelInstanceExecute"

_KINDS: Dict[str, Any] = {
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "enum": ctypes.c_int32,
    "int": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "pointer": ctypes.c_size_t,
    "size": ctypes.c_size_t,
    "string": ctypes.c_char_p,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
}
_POINTER = ctypes.c_size_t
_RESULTS: Dict[str, Any] = {
    "Error": _POINTER,
    "Parameter": _POINTER,
    "string": _POINTER,  # an address: ctypes frees what a callback returns as c_char_p too early
    "enum": ctypes.c_int32,
    "bool": ctypes.c_bool,
    "uint32": ctypes.c_uint32,
    "void": None,
}

_REASONS = {
    "own": "a backend runs inside a server and does not create or configure one",
    "repository": "only the server's own interfaces change its repositories",
    "label": "classification labels are added by the server's front ends",
    "raw": "raw inputs have no name and datatype, which calls between models need",
    "metrics": "the server's metrics are read at its metrics endpoint",
}

_TABLE = """
TRITONBACKEND_ApiVersion: out uint32 major, out uint32 minor
TRITONBACKEND_BackendArtifacts: Backend backend, out enum artifact_type, out string location
TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup: BackendAttribute attributes, enum kind, uint64 count, pointer device_ids, uint64 id_count
TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading: BackendAttribute attributes, bool enabled
TRITONBACKEND_BackendConfig: Backend backend, out Message backend_config
TRITONBACKEND_BackendExecutionPolicy: Backend backend, out enum policy
TRITONBACKEND_BackendMemoryManager: Backend backend, out MemoryManager manager
TRITONBACKEND_BackendName: Backend backend, out string name
TRITONBACKEND_BackendSetExecutionPolicy: Backend backend, enum policy
TRITONBACKEND_BackendSetState: Backend backend, pointer state
TRITONBACKEND_BackendState: Backend backend, out pointer state
TRITONBACKEND_InferenceRequestTimeoutMicroseconds: Request request, out uint64 timeout
TRITONBACKEND_InferenceResponseOutput: Response response, uint32 index, out string name, out enum datatype, out pointer shape, out uint64 dim_count
TRITONBACKEND_InferenceResponseOutputByName: Response response, string name, out enum datatype, out pointer shape, out uint64 dim_count
TRITONBACKEND_InputBuffer: Input input, uint32 index, out pointer buffer, out uint64 byte_size, out enum memory_type, out int64 memory_type_id
TRITONBACKEND_InputBufferAttributes: Input input, uint32 index, out pointer buffer, out BufferAttributes attributes
TRITONBACKEND_InputBufferForHostPolicy: Input input, string host_policy, uint32 index, out pointer buffer, out uint64 byte_size, out enum memory_type, out int64 memory_type_id
TRITONBACKEND_InputProperties: Input input, out string name, out enum datatype, out pointer shape, out uint32 dims_count, out uint64 byte_size, out uint32 buffer_count
TRITONBACKEND_InputPropertiesForHostPolicy: Input input, string host_policy, out string name, out enum datatype, out pointer shape, out uint32 dims_count, out uint64 byte_size, out uint32 buffer_count
TRITONBACKEND_MemoryManagerAllocate: MemoryManager manager, out pointer buffer, enum memory_type, int64 memory_type_id, uint64 byte_size
TRITONBACKEND_MemoryManagerFree: MemoryManager manager, pointer buffer, enum memory_type, int64 memory_type_id
TRITONBACKEND_ModelAutoCompleteConfig: Model model, out bool auto_complete_config
TRITONBACKEND_ModelBackend: Model model, out Backend backend
TRITONBACKEND_ModelConfig: Model model, uint32 config_version, out Message model_config
TRITONBACKEND_ModelInstanceDeviceId: ModelInstance instance, out int device_id
TRITONBACKEND_ModelInstanceHostPolicy: ModelInstance instance, out Message host_policy
TRITONBACKEND_ModelInstanceIsPassive: ModelInstance instance, out bool is_passive
TRITONBACKEND_ModelInstanceKind: ModelInstance instance, out enum kind
TRITONBACKEND_ModelInstanceModel: ModelInstance instance, out Model model
TRITONBACKEND_ModelInstanceName: ModelInstance instance, out string name
TRITONBACKEND_ModelInstanceProfileCount: ModelInstance instance, out uint32 count
TRITONBACKEND_ModelInstanceProfileName: ModelInstance instance, uint32 index, out string profile_name
TRITONBACKEND_ModelInstanceReportBatchStatistics: ModelInstance instance, uint64 batch_size, uint64 exec_start, uint64 compute_start, uint64 compute_end, uint64 exec_end
TRITONBACKEND_ModelInstanceReportMemoryUsage: ModelInstance instance, pointer usage, uint32 usage_size
TRITONBACKEND_ModelInstanceReportResponseStatistics: ResponseStatistics statistics
TRITONBACKEND_ModelInstanceReportStatistics: ModelInstance instance, Request request, bool success, uint64 exec_start, uint64 compute_start, uint64 compute_end, uint64 exec_end
TRITONBACKEND_ModelInstanceResponseStatisticsDelete: ResponseStatistics statistics
TRITONBACKEND_ModelInstanceResponseStatisticsNew: out ResponseStatistics statistics
TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart: ResponseStatistics statistics, uint64 compute_output_start
TRITONBACKEND_ModelInstanceResponseStatisticsSetError: ResponseStatistics statistics, Error error
TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance: ResponseStatistics statistics, ModelInstance instance
TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd: ResponseStatistics statistics, uint64 response_end
TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory: ResponseStatistics statistics, ResponseFactory factory
TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart: ResponseStatistics statistics, uint64 response_start
TRITONBACKEND_ModelInstanceSecondaryDeviceCount: ModelInstance instance, out uint32 count
TRITONBACKEND_ModelInstanceSecondaryDeviceProperties: ModelInstance instance, uint32 index, out string kind, out int64 id
TRITONBACKEND_ModelInstanceSetState: ModelInstance instance, pointer state
TRITONBACKEND_ModelInstanceState: ModelInstance instance, out pointer state
TRITONBACKEND_ModelName: Model model, out string name
TRITONBACKEND_ModelReportMemoryUsage: Model model, pointer usage, uint32 usage_size
TRITONBACKEND_ModelRepository: Model model, out enum artifact_type, out string location
TRITONBACKEND_ModelServer: Model model, out Server server
TRITONBACKEND_ModelSetConfig: Model model, uint32 config_version, Message model_config
TRITONBACKEND_ModelSetState: Model model, pointer state
TRITONBACKEND_ModelState: Model model, out pointer state
TRITONBACKEND_ModelVersion: Model model, out uint64 version
TRITONBACKEND_OutputBuffer: Output output, out pointer buffer, uint64 byte_size, out enum memory_type, out int64 memory_type_id
TRITONBACKEND_OutputBufferAttributes: Output output, out BufferAttributes attributes
TRITONBACKEND_RequestCorrelationId: Request request, out uint64 id
TRITONBACKEND_RequestCorrelationIdString: Request request, out string id
TRITONBACKEND_RequestFlags: Request request, out uint32 flags
TRITONBACKEND_RequestId: Request request, out string id
TRITONBACKEND_RequestInput: Request request, string name, out Input input
TRITONBACKEND_RequestInputByIndex: Request request, uint32 index, out Input input
TRITONBACKEND_RequestInputCount: Request request, out uint32 count
TRITONBACKEND_RequestInputName: Request request, uint32 index, out string name
TRITONBACKEND_RequestIsCancelled: Request request, out bool is_cancelled
TRITONBACKEND_RequestOutputBufferProperties: Request request, string name, pointer byte_size, out enum memory_type, out int64 memory_type_id
TRITONBACKEND_RequestOutputCount: Request request, out uint32 count
TRITONBACKEND_RequestOutputName: Request request, uint32 index, out string name
TRITONBACKEND_RequestParameter: Request request, uint32 index, out string key, out enum type, out pointer value
TRITONBACKEND_RequestParameterCount: Request request, out uint32 count
TRITONBACKEND_RequestRelease: Request request, uint32 release_flags
TRITONBACKEND_RequestTrace: Request request, out InferenceTrace trace
TRITONBACKEND_ResponseDelete: Response response
TRITONBACKEND_ResponseFactoryDelete: ResponseFactory factory
TRITONBACKEND_ResponseFactoryIsCancelled: ResponseFactory factory, out bool is_cancelled
TRITONBACKEND_ResponseFactoryNew: out ResponseFactory factory, Request request
TRITONBACKEND_ResponseFactorySendFlags: ResponseFactory factory, uint32 send_flags
TRITONBACKEND_ResponseNew: out Response response, Request request
TRITONBACKEND_ResponseNewFromFactory: out Response response, ResponseFactory factory
TRITONBACKEND_ResponseOutput: Response response, out Output output, string name, enum datatype, pointer shape, uint32 dims_count
TRITONBACKEND_ResponseSend: Response response, uint32 send_flags, Error error
TRITONBACKEND_ResponseSetBoolParameter: Response response, string name, bool value
TRITONBACKEND_ResponseSetDoubleParameter: Response response, string name, double value
TRITONBACKEND_ResponseSetIntParameter: Response response, string name, int64 value
TRITONBACKEND_ResponseSetStringParameter: Response response, string name, string value
TRITONBACKEND_StateBuffer: State state, out pointer buffer, uint64 byte_size, out enum memory_type, out int64 memory_type_id
TRITONBACKEND_StateBufferAttributes: State state, out BufferAttributes attributes
TRITONBACKEND_StateNew: out State state, Request request, string name, enum datatype, pointer shape, uint32 dims_count
TRITONBACKEND_StateUpdate: State state
TRITONSERVER_ApiVersion: out uint32 major, out uint32 minor
TRITONSERVER_BufferAttributesByteSize: BufferAttributes attributes, out size byte_size
TRITONSERVER_BufferAttributesCudaIpcHandle: BufferAttributes attributes, out pointer cuda_ipc_handle
TRITONSERVER_BufferAttributesDelete: BufferAttributes attributes
TRITONSERVER_BufferAttributesMemoryType: BufferAttributes attributes, out enum memory_type
TRITONSERVER_BufferAttributesMemoryTypeId: BufferAttributes attributes, out int64 memory_type_id
TRITONSERVER_BufferAttributesNew: out BufferAttributes attributes
TRITONSERVER_BufferAttributesSetByteSize: BufferAttributes attributes, size byte_size
TRITONSERVER_BufferAttributesSetCudaIpcHandle: BufferAttributes attributes, pointer cuda_ipc_handle
TRITONSERVER_BufferAttributesSetMemoryType: BufferAttributes attributes, enum memory_type
TRITONSERVER_BufferAttributesSetMemoryTypeId: BufferAttributes attributes, int64 memory_type_id
TRITONSERVER_DataTypeByteSize: enum datatype -> uint32
TRITONSERVER_DataTypeString: enum datatype -> string
TRITONSERVER_ErrorCode: Error error -> enum
TRITONSERVER_ErrorCodeString: Error error -> string
TRITONSERVER_ErrorDelete: Error error -> void
TRITONSERVER_ErrorMessage: Error error -> string
TRITONSERVER_ErrorNew: enum code, string message -> Error
TRITONSERVER_GetMetricFamilyKind: MetricFamily family, out enum kind
TRITONSERVER_GetMetricKind: Metric metric, out enum kind
TRITONSERVER_InferenceRequestAddInput: InferenceRequest request, string name, enum datatype, pointer shape, uint64 dim_count
TRITONSERVER_InferenceRequestAddRawInput: InferenceRequest request, string name | raw
TRITONSERVER_InferenceRequestAddRequestedOutput: InferenceRequest request, string name
TRITONSERVER_InferenceRequestAppendInputData: InferenceRequest request, string name, pointer base, size byte_size, enum memory_type, int64 memory_type_id
TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes: InferenceRequest request, string name, pointer base, BufferAttributes attributes
TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy: InferenceRequest request, string name, pointer base, size byte_size, enum memory_type, int64 memory_type_id, string host_policy
TRITONSERVER_InferenceRequestCancel: InferenceRequest request
TRITONSERVER_InferenceRequestCorrelationId: InferenceRequest request, out uint64 correlation_id
TRITONSERVER_InferenceRequestCorrelationIdString: InferenceRequest request, out string correlation_id
TRITONSERVER_InferenceRequestDelete: InferenceRequest request
TRITONSERVER_InferenceRequestFlags: InferenceRequest request, out uint32 flags
TRITONSERVER_InferenceRequestId: InferenceRequest request, out string id
TRITONSERVER_InferenceRequestIsCancelled: InferenceRequest request, out bool is_cancelled
TRITONSERVER_InferenceRequestNew: out InferenceRequest request, Server server, string model_name, int64 model_version
TRITONSERVER_InferenceRequestPriority: InferenceRequest request, out uint32 priority
TRITONSERVER_InferenceRequestPriorityUInt64: InferenceRequest request, out uint64 priority
TRITONSERVER_InferenceRequestRemoveAllInputData: InferenceRequest request, string name
TRITONSERVER_InferenceRequestRemoveAllInputs: InferenceRequest request
TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs: InferenceRequest request
TRITONSERVER_InferenceRequestRemoveInput: InferenceRequest request, string name
TRITONSERVER_InferenceRequestRemoveRequestedOutput: InferenceRequest request, string name
TRITONSERVER_InferenceRequestSetBoolParameter: InferenceRequest request, string key, bool value
TRITONSERVER_InferenceRequestSetCorrelationId: InferenceRequest request, uint64 correlation_id
TRITONSERVER_InferenceRequestSetCorrelationIdString: InferenceRequest request, string correlation_id
TRITONSERVER_InferenceRequestSetDoubleParameter: InferenceRequest request, string key, double value
TRITONSERVER_InferenceRequestSetFlags: InferenceRequest request, uint32 flags
TRITONSERVER_InferenceRequestSetId: InferenceRequest request, string id
TRITONSERVER_InferenceRequestSetIntParameter: InferenceRequest request, string key, int64 value
TRITONSERVER_InferenceRequestSetPriority: InferenceRequest request, uint32 priority
TRITONSERVER_InferenceRequestSetPriorityUInt64: InferenceRequest request, uint64 priority
TRITONSERVER_InferenceRequestSetReleaseCallback: InferenceRequest request, pointer release_fn, pointer release_userp
TRITONSERVER_InferenceRequestSetResponseCallback: InferenceRequest request, ResponseAllocator allocator, pointer allocator_userp, pointer response_fn, pointer response_userp
TRITONSERVER_InferenceRequestSetStringParameter: InferenceRequest request, string key, string value
TRITONSERVER_InferenceRequestSetTimeoutMicroseconds: InferenceRequest request, uint64 timeout
TRITONSERVER_InferenceRequestTimeoutMicroseconds: InferenceRequest request, out uint64 timeout
TRITONSERVER_InferenceResponseDelete: InferenceResponse response
TRITONSERVER_InferenceResponseError: InferenceResponse response
TRITONSERVER_InferenceResponseId: InferenceResponse response, out string request_id
TRITONSERVER_InferenceResponseModel: InferenceResponse response, out string model_name, out int64 model_version
TRITONSERVER_InferenceResponseOutput: InferenceResponse response, uint32 index, out string name, out enum datatype, out pointer shape, out uint64 dim_count, out pointer base, out size byte_size, out enum memory_type, out int64 memory_type_id, out pointer userp
TRITONSERVER_InferenceResponseOutputClassificationLabel: InferenceResponse response, uint32 index, size class_index, out string label | label
TRITONSERVER_InferenceResponseOutputCount: InferenceResponse response, out uint32 count
TRITONSERVER_InferenceResponseParameter: InferenceResponse response, uint32 index, out string name, out enum type, out pointer value
TRITONSERVER_InferenceResponseParameterCount: InferenceResponse response, out uint32 count
TRITONSERVER_InferenceTraceActivityString: enum activity -> string
TRITONSERVER_InferenceTraceContext: InferenceTrace trace, out string context
TRITONSERVER_InferenceTraceDelete: InferenceTrace trace
TRITONSERVER_InferenceTraceId: InferenceTrace trace, out uint64 id
TRITONSERVER_InferenceTraceLevelString: enum level -> string
TRITONSERVER_InferenceTraceModelName: InferenceTrace trace, out string model_name
TRITONSERVER_InferenceTraceModelVersion: InferenceTrace trace, out int64 model_version
TRITONSERVER_InferenceTraceNew: out InferenceTrace trace, enum level, uint64 parent_id, pointer activity_fn, pointer release_fn, pointer trace_userp
TRITONSERVER_InferenceTraceParentId: InferenceTrace trace, out uint64 parent_id
TRITONSERVER_InferenceTraceReportActivity: InferenceTrace trace, uint64 timestamp, string activity_name
TRITONSERVER_InferenceTraceRequestId: InferenceTrace trace, out string request_id
TRITONSERVER_InferenceTraceSetContext: InferenceTrace trace, string context
TRITONSERVER_InferenceTraceSpawnChildTrace: InferenceTrace trace, out InferenceTrace child
TRITONSERVER_InferenceTraceTensorNew: out InferenceTrace trace, enum level, uint64 parent_id, pointer activity_fn, pointer tensor_activity_fn, pointer release_fn, pointer trace_userp
TRITONSERVER_InstanceGroupKindString: enum kind -> string
TRITONSERVER_LogIsEnabled: enum level -> bool
TRITONSERVER_LogMessage: enum level, string filename, int line, string message
TRITONSERVER_MemoryTypeString: enum memory_type -> string
TRITONSERVER_MessageDelete: Message message
TRITONSERVER_MessageNewFromSerializedJson: out Message message, pointer base, size byte_size
TRITONSERVER_MessageSerializeToJson: Message message, out pointer base, out size byte_size
TRITONSERVER_MetricArgsDelete: MetricArgs args
TRITONSERVER_MetricArgsNew: out MetricArgs args
TRITONSERVER_MetricArgsSetHistogram: MetricArgs args, pointer buckets, uint64 buckets_count
TRITONSERVER_MetricDelete: Metric metric
TRITONSERVER_MetricFamilyDelete: MetricFamily family
TRITONSERVER_MetricFamilyNew: out MetricFamily family, enum kind, string name, string description
TRITONSERVER_MetricIncrement: Metric metric, double value
TRITONSERVER_MetricNew: out Metric metric, MetricFamily family, pointer labels, uint64 label_count
TRITONSERVER_MetricNewWithArgs: out Metric metric, MetricFamily family, pointer labels, uint64 label_count, MetricArgs args
TRITONSERVER_MetricObserve: Metric metric, double value
TRITONSERVER_MetricSet: Metric metric, double value
TRITONSERVER_MetricValue: Metric metric, out double value
TRITONSERVER_MetricsDelete: Metrics metrics | metrics
TRITONSERVER_MetricsFormatted: Metrics metrics, enum format, out pointer base, out size byte_size | metrics
TRITONSERVER_ParameterBytesNew: string name, pointer bytes, uint64 size -> Parameter
TRITONSERVER_ParameterDelete: Parameter parameter -> void
TRITONSERVER_ParameterNew: string name, enum type, pointer value -> Parameter
TRITONSERVER_ParameterTypeString: enum type -> string
TRITONSERVER_ResponseAllocatorDelete: ResponseAllocator allocator
TRITONSERVER_ResponseAllocatorNew: out ResponseAllocator allocator, pointer alloc_fn, pointer release_fn, pointer start_fn
TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction: ResponseAllocator allocator, pointer buffer_attributes_fn
TRITONSERVER_ResponseAllocatorSetQueryFunction: ResponseAllocator allocator, pointer query_fn
TRITONSERVER_ServerDelete: Server server | own
TRITONSERVER_ServerInferAsync: Server server, InferenceRequest request, InferenceTrace trace
TRITONSERVER_ServerIsLive: Server server, out bool live
TRITONSERVER_ServerIsReady: Server server, out bool ready
TRITONSERVER_ServerLoadModel: Server server, string model_name
TRITONSERVER_ServerLoadModelWithParameters: Server server, string model_name, pointer parameters, uint64 parameter_count
TRITONSERVER_ServerMetadata: Server server, out Message metadata
TRITONSERVER_ServerMetrics: Server server, out Metrics metrics | metrics
TRITONSERVER_ServerModelBatchProperties: Server server, string model_name, int64 model_version, out uint32 flags, out pointer voidp
TRITONSERVER_ServerModelConfig: Server server, string model_name, int64 model_version, uint32 config_version, out Message model_config
TRITONSERVER_ServerModelIndex: Server server, uint32 flags, out Message model_index
TRITONSERVER_ServerModelIsReady: Server server, string model_name, int64 model_version, out bool ready
TRITONSERVER_ServerModelMetadata: Server server, string model_name, int64 model_version, out Message metadata
TRITONSERVER_ServerModelStatistics: Server server, string model_name, int64 model_version, out Message statistics
TRITONSERVER_ServerModelTransactionProperties: Server server, string model_name, int64 model_version, out uint32 flags, out pointer voidp
TRITONSERVER_ServerNew: out Server server, ServerOptions options | own
TRITONSERVER_ServerOptionsAddRateLimiterResource: ServerOptions options, string name, size count, int device | own
TRITONSERVER_ServerOptionsDelete: ServerOptions options | own
TRITONSERVER_ServerOptionsNew: out ServerOptions options | own
TRITONSERVER_ServerOptionsSetBackendConfig: ServerOptions options, string backend_name, string setting, string value | own
TRITONSERVER_ServerOptionsSetBackendDirectory: ServerOptions options, string directory | own
TRITONSERVER_ServerOptionsSetBufferManagerThreadCount: ServerOptions options, uint32 thread_count | own
TRITONSERVER_ServerOptionsSetCacheConfig: ServerOptions options, string cache_name, string config_json | own
TRITONSERVER_ServerOptionsSetCacheDirectory: ServerOptions options, string directory | own
TRITONSERVER_ServerOptionsSetCpuMetrics: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize: ServerOptions options, int gpu_device, uint64 size | own
TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize: ServerOptions options, int gpu_device, size size | own
TRITONSERVER_ServerOptionsSetEnablePeerAccess: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetExitOnError: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetExitTimeout: ServerOptions options, uint32 timeout | own
TRITONSERVER_ServerOptionsSetGpuMetrics: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetHostPolicy: ServerOptions options, string policy_name, string setting, string value | own
TRITONSERVER_ServerOptionsSetLogError: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetLogFile: ServerOptions options, string file | own
TRITONSERVER_ServerOptionsSetLogFormat: ServerOptions options, enum format | own
TRITONSERVER_ServerOptionsSetLogInfo: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetLogVerbose: ServerOptions options, int level | own
TRITONSERVER_ServerOptionsSetLogWarn: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetMetrics: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetMetricsConfig: ServerOptions options, string name, string setting, string value | own
TRITONSERVER_ServerOptionsSetMetricsInterval: ServerOptions options, uint64 interval_ms | own
TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability: ServerOptions options, double capability | own
TRITONSERVER_ServerOptionsSetModelConfigName: ServerOptions options, string name | own
TRITONSERVER_ServerOptionsSetModelControlMode: ServerOptions options, enum mode | own
TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit: ServerOptions options, enum kind, int device_id, double fraction | own
TRITONSERVER_ServerOptionsSetModelLoadRetryCount: ServerOptions options, uint32 retry_count | own
TRITONSERVER_ServerOptionsSetModelLoadThreadCount: ServerOptions options, uint32 thread_count | own
TRITONSERVER_ServerOptionsSetModelNamespacing: ServerOptions options, bool enabled | own
TRITONSERVER_ServerOptionsSetModelRepositoryPath: ServerOptions options, string path | own
TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize: ServerOptions options, uint64 size | own
TRITONSERVER_ServerOptionsSetRateLimiterMode: ServerOptions options, enum mode | own
TRITONSERVER_ServerOptionsSetRepoAgentDirectory: ServerOptions options, string directory | own
TRITONSERVER_ServerOptionsSetResponseCacheByteSize: ServerOptions options, uint64 size | own
TRITONSERVER_ServerOptionsSetServerId: ServerOptions options, string server_id | own
TRITONSERVER_ServerOptionsSetStartupModel: ServerOptions options, string model_name | own
TRITONSERVER_ServerOptionsSetStrictModelConfig: ServerOptions options, bool strict | own
TRITONSERVER_ServerOptionsSetStrictReadiness: ServerOptions options, bool strict | own
TRITONSERVER_ServerPollModelRepository: Server server | repository
TRITONSERVER_ServerRegisterModelRepository: Server server, string path, pointer name_mapping, uint32 mapping_count | repository
TRITONSERVER_ServerSetExitTimeout: Server server, uint32 timeout | own
TRITONSERVER_ServerStop: Server server | own
TRITONSERVER_ServerUnloadModel: Server server, string model_name
TRITONSERVER_ServerUnloadModelAndDependents: Server server, string model_name
TRITONSERVER_ServerUnregisterModelRepository: Server server, string path | repository
TRITONSERVER_StringToDataType: string dtype -> enum
"""  # noqa: E501 - one function a line is easier to read, and to compare with the headers


class Argument(NamedTuple):
    """One argument.

    Attributes:
        kind: Its kind or object, with `out` before it if it is a pointer for a result.
        name: Its name.
    """

    kind: str
    name: str

    def ctype(self) -> Any:
        """The type in which a callback receives it: outputs and objects as numbers, strings as bytes or None."""
        return _KINDS.get(self.kind, _POINTER)


class Function(NamedTuple):
    """One function of the API.

    Attributes:
        name: Its name.
        arguments: Its arguments in order.
        result: Kind of its result.
        unsupported: Why it is not implemented; empty if it is.
    """

    name: str
    arguments: Tuple[Argument, ...]
    result: str
    unsupported: str

    @property
    def method(self) -> str:
        """The name of the method that implements it: `backend_request_input_by_index`."""
        prefix, _, rest = self.name.partition("_")
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", rest)
        return f"{prefix[len('TRITON') :]}_{words}".lower()

    def prototype(self) -> Any:
        """The type of its callback."""
        return ctypes.CFUNCTYPE(_RESULTS[self.result], *(argument.ctype() for argument in self.arguments))


def _parse(line: str) -> Function:
    declaration, _, reason = line.partition(" | ")
    declaration, _, result = declaration.partition(" -> ")
    name, _, rest = declaration.partition(": ")
    arguments = []
    for part in rest.split(", "):
        kind, _, argument = part.rpartition(" ")
        arguments.append(Argument(kind, argument))
    return Function(name, tuple(arguments), result or "Error", _REASONS[reason] if reason else "")


def functions() -> List[Function]:
    """All functions, in the order of their numbers in the table of trampolines."""
    return [_parse(line) for line in _TABLE.strip().splitlines()]
