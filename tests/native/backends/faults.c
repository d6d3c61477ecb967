// What a backend may do wrong: the first value of the input says what. With 0 the request is answered with its input.
// Where a call of the API must fail, its error is the response.
#include "common.h"

enum { NONE, ERROR_RESPONSE, ERROR_EXECUTE, SEND_TWICE, RELEASE_TWICE, NO_RESPONSE, CRASH, OUT_OF_MEMORY, TWO_RESPONSES,
       FOREIGN_HANDLE, ABORT, UNSUPPORTED_FUNCTION, FREE_TWICE, NULL_REQUEST, UNKNOWN_INPUT, UNKNOWN_OUTPUT, LOG,
       GPU_MEMORY, PINNED_MEMORY, GPU_FREE_TWICE };

TRITONSERVER_Error* TRITONSERVER_ServerStop(TRITONSERVER_Server* server);

static void answer_with(TRITONBACKEND_Request* request, TRITONSERVER_Error* error) {
  TRITONBACKEND_Response* response = NULL;
  if (!error) error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the call succeeded");
  EXPECT(TRITONBACKEND_ResponseNew(&response, request));
  EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
  TRITONSERVER_ErrorDelete(error);
}

static TRITONSERVER_Error* behave(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, int fault) {
  TRITONBACKEND_Response* response = NULL;
  TRITONBACKEND_Output* output = NULL;
  TRITONBACKEND_Input* input = NULL;
  TRITONSERVER_Error* error = NULL;
  TRITONBACKEND_Model* model = NULL;
  TRITONBACKEND_Backend* backend = NULL;
  TRITONBACKEND_MemoryManager* manager = NULL;
  TRITONSERVER_Server* server = NULL;
  void* buffer = NULL;
  int type = MEMORY_CPU;
  int64_t id = 0;
  const int64_t shape[] = {1, 1};
  switch (fault) {
    case ERROR_RESPONSE:
      answer_with(request, TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the backend does not like this value"));
      break;
    case ERROR_EXECUTE:
      return TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, "the backend cannot execute this");
    case SEND_TWICE:
      EXPECT(TRITONBACKEND_ResponseNew(&response, request));
      EXPECT(TRITONBACKEND_ResponseSend(response, 0, NULL));
      error = TRITONBACKEND_ResponseSend(response, FINAL, NULL);
      fprintf(stderr, "second send: %s\n", error ? TRITONSERVER_ErrorMessage(error) : "no error");
      TRITONSERVER_ErrorDelete(error);
      break;
    case RELEASE_TWICE:
      echo(request);
      EXPECT(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
      error = TRITONBACKEND_RequestRelease(request, RELEASE_ALL);
      fprintf(stderr, "second release: %s\n", error ? TRITONSERVER_ErrorMessage(error) : "no error");
      TRITONSERVER_ErrorDelete(error);
      return NULL;
    case NO_RESPONSE:
      break;
    case CRASH:
      *(volatile int*)16 = 1;
      break;
    case ABORT:
      abort();
    case OUT_OF_MEMORY:
      EXPECT(TRITONBACKEND_ResponseNew(&response, request));
      EXPECT(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_FP32, shape, 2));
      error = TRITONBACKEND_OutputBuffer(output, &buffer, (uint64_t)1 << 50, &type, &id);
      EXPECT(TRITONBACKEND_ResponseDelete(response));
      answer_with(request, error);
      break;
    case TWO_RESPONSES:
      echo(request);
      EXPECT(TRITONBACKEND_ResponseNew(&response, request));
      error = TRITONBACKEND_ResponseSend(response, FINAL, NULL);
      fprintf(stderr, "second response: %s\n", error ? TRITONSERVER_ErrorMessage(error) : "no error");
      TRITONSERVER_ErrorDelete(error);
      break;
    case FOREIGN_HANDLE:
      answer_with(request, TRITONBACKEND_ResponseSend((TRITONBACKEND_Response*)request, FINAL, NULL));
      break;
    case NULL_REQUEST:
      answer_with(request, TRITONBACKEND_RequestInputByIndex(NULL, 0, &input));
      break;
    case UNKNOWN_INPUT:
      answer_with(request, TRITONBACKEND_RequestInput(request, "NONE", &input));
      break;
    case UNKNOWN_OUTPUT:
      EXPECT(TRITONBACKEND_ResponseNew(&response, request));
      error = TRITONBACKEND_ResponseOutput(response, &output, "NONE", TYPE_FP32, shape, 2);
      EXPECT(TRITONBACKEND_ResponseDelete(response));
      answer_with(request, error);
      break;
    case LOG:
      EXPECT(TRITONSERVER_LogMessage(LOG_VERBOSE, __FILE__, __LINE__, "all about it"));
      answer_with(request, TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, TRITONSERVER_LogIsEnabled(LOG_VERBOSE) ? "verbose" : "terse"));
      break;
    case UNSUPPORTED_FUNCTION:
      EXPECT(TRITONBACKEND_ModelInstanceModel(instance, &model));
      EXPECT(TRITONBACKEND_ModelServer(model, &server));
      answer_with(request, TRITONSERVER_ServerStop(server));
      break;
    case FREE_TWICE:
      EXPECT(TRITONBACKEND_ModelInstanceModel(instance, &model));
      EXPECT(TRITONBACKEND_ModelBackend(model, &backend));
      EXPECT(TRITONBACKEND_BackendMemoryManager(backend, &manager));
      EXPECT(TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, MEMORY_CPU, 0, 100));
      memset(buffer, 1, 100);
      EXPECT(TRITONBACKEND_MemoryManagerFree(manager, buffer, MEMORY_CPU, 0));
      answer_with(request, TRITONBACKEND_MemoryManagerFree(manager, buffer, MEMORY_CPU, 0));
      break;
    case GPU_MEMORY:
    case PINNED_MEMORY:
    case GPU_FREE_TWICE:
      type = fault == PINNED_MEMORY ? 1 : 2;
      EXPECT(TRITONBACKEND_ModelInstanceModel(instance, &model));
      EXPECT(TRITONBACKEND_ModelBackend(model, &backend));
      EXPECT(TRITONBACKEND_BackendMemoryManager(backend, &manager));
      error = TRITONBACKEND_MemoryManagerAllocate(manager, &buffer, type, 0, 100);
      if (error) {
        answer_with(request, error);
        break;
      }
      if (fault == PINNED_MEMORY) memset(buffer, 1, 100);
      error = TRITONBACKEND_MemoryManagerFree(manager, buffer, type, 0);
      if (!error && fault == GPU_FREE_TWICE) error = TRITONBACKEND_MemoryManagerFree(manager, buffer, type, 0);
      answer_with(request, error);
      break;
    default:
      echo(request);
  }
  EXPECT(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  TRITONBACKEND_Input* input = NULL;
  const void* buffer = NULL;
  uint64_t size = 0;
  int type = MEMORY_CPU;
  int64_t id = 0;
  EXPECT(TRITONBACKEND_RequestInputByIndex(requests[0], 0, &input));
  EXPECT(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
  return behave(instance, requests[0], (int)*(const float*)buffer);
}
