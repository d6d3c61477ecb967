// Adds the values of a sequence: the sum so far is a state that the server keeps.
#include "common.h"

static TRITONSERVER_Error* values_of(TRITONBACKEND_Request* request, const char* name, float* value) {
  TRITONBACKEND_Input* input = NULL;
  const void* buffer = NULL;
  uint64_t size = 0;
  int type = MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
  memcpy(value, buffer, sizeof *value);
  return NULL;
}

static TRITONSERVER_Error* add(TRITONBACKEND_Request* request) {
  float value = 0, sum = 0;
  RETURN_IF_ERROR(values_of(request, "IN", &value));
  RETURN_IF_ERROR(values_of(request, "SUM_IN", &sum));
  sum += value;
  const int64_t shape[] = {1, 1};
  int type = MEMORY_CPU;
  int64_t id = 0;
  void* buffer = NULL;
  TRITONBACKEND_State* state = NULL;
  TRITONSERVER_Error* error = TRITONBACKEND_StateNew(&state, request, "NONE", TYPE_FP32, shape, 2);
  fprintf(stderr, "unknown state: %s\n", error ? TRITONSERVER_ErrorMessage(error) : "no error");
  if (error) TRITONSERVER_ErrorDelete(error);
  RETURN_IF_ERROR(TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TYPE_FP32, shape, 2));
  RETURN_IF_ERROR(TRITONBACKEND_StateBuffer(state, &buffer, sizeof sum, &type, &id));
  memcpy(buffer, &sum, sizeof sum);
  RETURN_IF_ERROR(TRITONBACKEND_StateUpdate(state));
  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_Output* output = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_FP32, shape, 2));
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, sizeof sum, &type, &id));
  memcpy(buffer, &sum, sizeof sum);
  return TRITONBACKEND_ResponseSend(response, FINAL, NULL);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONSERVER_Error* error = add(requests[index]);
    if (error) return error;
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
