// Tells what it sees of a request, as parameters of the response.
#include "common.h"

TRITONSERVER_Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request* request, uint64_t* timeout);
TRITONSERVER_Error* TRITONBACKEND_RequestInputName(TRITONBACKEND_Request* request, uint32_t index, const char** name);
TRITONSERVER_Error* TRITONBACKEND_RequestOutputBufferProperties(
    TRITONBACKEND_Request* request, const char* name, size_t* size, int* type, int64_t* id);
TRITONSERVER_Error* TRITONBACKEND_ResponseSetDoubleParameter(
    TRITONBACKEND_Response* response, const char* name, double value);

static void tell_error(TRITONBACKEND_Response* response, const char* name, TRITONSERVER_Error* error) {
  EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, name, error ? TRITONSERVER_ErrorMessage(error) : ""));
  if (error) TRITONSERVER_ErrorDelete(error);
}

static void tell(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  const char *text = NULL, *key = NULL;
  uint64_t number = 0;
  uint32_t flags = 0, count = 0;
  int type = MEMORY_GPU;
  int64_t id = 7;
  TRITONBACKEND_Input* input = NULL;
  EXPECT(TRITONBACKEND_RequestId(request, &text));
  EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, "id", text));
  TRITONSERVER_Error* error = TRITONBACKEND_RequestCorrelationId(request, &number);
  if (error) {
    tell_error(response, "not a number", error);
    EXPECT(TRITONBACKEND_RequestCorrelationIdString(request, &text));
    EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, "correlation", text));
  } else {
    EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "correlation", (int64_t)number));
    tell_error(response, "not a text", TRITONBACKEND_RequestCorrelationIdString(request, &text));
  }
  EXPECT(TRITONBACKEND_RequestFlags(request, &flags));
  EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "flags", flags));
  EXPECT(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &number));
  EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "timeout", (int64_t)number));
  EXPECT(TRITONBACKEND_RequestInputCount(request, &count));
  EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "inputs", count));
  EXPECT(TRITONBACKEND_RequestInputName(request, 0, &text));
  EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, "input", text));
  EXPECT(TRITONBACKEND_RequestOutputCount(request, &count));
  EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "outputs", count));
  EXPECT(TRITONBACKEND_RequestOutputName(request, 0, &text));
  EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, "output", text));
  EXPECT(TRITONBACKEND_RequestOutputBufferProperties(request, "OUT", NULL, &type, &id));
  EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "memory", type * 10 + id));
  EXPECT(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const void* value = NULL;
    char name[100];
    EXPECT(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    snprintf(name, sizeof name, "parameter %s", key);
    if (type == PARAMETER_STRING) EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, name, value));
    if (type == PARAMETER_INT) EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, name, *(const int64_t*)value));
    if (type == PARAMETER_BOOL) EXPECT(TRITONBACKEND_ResponseSetBoolParameter(response, name, *(const bool*)value));
    if (type == PARAMETER_DOUBLE) EXPECT(TRITONBACKEND_ResponseSetDoubleParameter(response, name, *(const double*)value));
  }
  tell_error(response, "input 5", TRITONBACKEND_RequestInputByIndex(request, 5, &input));
  tell_error(response, "output 5", TRITONBACKEND_RequestOutputName(request, 5, &text));
  tell_error(response, "parameter 50", TRITONBACKEND_RequestParameter(request, 50, &key, &type, (const void**)&text));
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
    tell(requests[index], response);
    TRITONSERVER_Error* error = copy_input(requests[index], response);
    EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
