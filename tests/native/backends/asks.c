// Asks the server about itself and its models, and calls some wrongly: the answers are parameters of the response, and
// an error is one with its code.
#include <pthread.h>
#include <stdarg.h>

#include "common.h"

TRITONSERVER_Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server* server, bool* ready);
TRITONSERVER_Error* TRITONSERVER_ServerMetadata(TRITONSERVER_Server* server, TRITONSERVER_Message** metadata);
TRITONSERVER_Error* TRITONSERVER_ServerModelBatchProperties(
    TRITONSERVER_Server* server, const char* model, int64_t version, uint32_t* flags, void** voidp);
TRITONSERVER_Error* TRITONSERVER_ServerModelConfig(
    TRITONSERVER_Server* server, const char* model, int64_t version, uint32_t config_version, TRITONSERVER_Message** config);
TRITONSERVER_Error* TRITONSERVER_ServerModelIndex(TRITONSERVER_Server* server, uint32_t flags, TRITONSERVER_Message** index);
TRITONSERVER_Error* TRITONSERVER_ServerModelMetadata(
    TRITONSERVER_Server* server, const char* model, int64_t version, TRITONSERVER_Message** metadata);
TRITONSERVER_Error* TRITONSERVER_ServerModelStatistics(
    TRITONSERVER_Server* server, const char* model, int64_t version, TRITONSERVER_Message** statistics);
TRITONSERVER_Error* TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse* response, const char** id);
TRITONSERVER_Error* TRITONSERVER_InferenceResponseModel(
    TRITONSERVER_InferenceResponse* response, const char** name, int64_t* version);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_released;
static TRITONSERVER_ResponseAllocator* allocator;

static void tell(TRITONBACKEND_Response* response, const char* name, TRITONSERVER_Error* error, const char* form, ...) {
  char text[8192];
  if (error) {
    snprintf(text, sizeof text, "%s: %s", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  } else {
    va_list rest;
    va_start(rest, form);
    vsnprintf(text, sizeof text, form, rest);
    va_end(rest);
  }
  EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, name, text));
}

static void tell_message(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_Error* error, TRITONSERVER_Message* message) {
  const char* base = NULL;
  size_t size = 0;
  if (!error) error = TRITONSERVER_MessageSerializeToJson(message, &base, &size);
  tell(response, name, error, "%.*s", (int)size, base);
  if (message) EXPECT(TRITONSERVER_MessageDelete(message));
}

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* self, const char* name, size_t size, int type, int64_t id, void* userp,
    void** buffer, void** buffer_userp, int* actual_type, int64_t* actual_id) {
  *buffer = malloc(size ? size : 1);
  *buffer_userp = NULL;
  *actual_type = MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t size, int type, int64_t id) {
  free(buffer);
  return NULL;
}

static void on_release(TRITONSERVER_InferenceRequest* request, uint32_t flags, void* userp) {
  EXPECT(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&mutex);
  is_released = true;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&mutex);
}

static void on_response(TRITONSERVER_InferenceResponse* inner, uint32_t flags, void* userp) {
  if (!inner) return;
  const char *name = "", *id = "";
  int64_t version = -99;
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseModel(inner, &name, &version);
  if (!error) error = TRITONSERVER_InferenceResponseId(inner, &id);
  tell(userp, "answered by", error, "%s %d %s", name, (int)version, id);
  // The response keeps its error.
  error = TRITONSERVER_InferenceResponseError(inner);
  EXPECT(TRITONBACKEND_ResponseSetStringParameter(userp, "answer", error ? TRITONSERVER_ErrorMessage(error) : "fine"));
  EXPECT(TRITONSERVER_InferenceResponseDelete(inner));
}

static void call(TRITONBACKEND_Response* response, TRITONSERVER_Server* server) {
  static const float value = 1;
  const int64_t shape[2] = {1, 1};
  TRITONSERVER_InferenceRequest* request = NULL;
  EXPECT(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -1));
  EXPECT(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, NULL));
  EXPECT(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response, response));
  EXPECT(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 2));
  tell(response, "added twice without an id", TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 2), "");
  EXPECT(TRITONSERVER_InferenceRequestSetId(request, "abc"));
  tell(response, "added twice", TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 2), "");
  EXPECT(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", &value, sizeof value, MEMORY_CPU, 0));
  is_released = false;
  EXPECT(TRITONSERVER_ServerInferAsync(server, request, NULL));
  pthread_mutex_lock(&mutex);
  while (!is_released) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

static TRITONSERVER_Error* ask(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Response* response) {
  TRITONBACKEND_Model* model = NULL;
  TRITONSERVER_Server* server = NULL;
  TRITONSERVER_Message* message = NULL;
  TRITONBACKEND_Output* output = NULL;
  const int64_t shape[2] = {1, 1};
  bool ready = false;
  uint32_t flags = 0;
  void *voidp = NULL, *buffer = NULL;
  int type = MEMORY_GPU;
  int64_t id = 7;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(TRITONBACKEND_ModelServer(model, &server));
  if (!allocator) RETURN_IF_ERROR(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  char levels[8] = "";
  for (int level = -1; level < 5; ++level) levels[level + 1] = TRITONSERVER_LogIsEnabled(level) ? '1' : '0';
  tell(response, "log levels -1 to 4", NULL, "%s", levels);
  tell(response, "log level 9", TRITONSERVER_LogMessage(9, __FILE__, __LINE__, "x"), "logged");
  TRITONSERVER_Error* error = TRITONSERVER_ServerIsReady(server, &ready);
  tell(response, "ready", error, "%d", ready);
  error = TRITONSERVER_ServerModelBatchProperties(server, "echo", -1, &flags, &voidp);
  tell(response, "batches", error, "%u", flags);
  tell(response, "batches of none", TRITONSERVER_ServerModelBatchProperties(server, "none", -1, &flags, &voidp), "");
  tell_message(response, "configuration 2", TRITONBACKEND_ModelConfig(model, 2, &message), NULL);
  tell_message(response, "configuration 2 of echo", TRITONSERVER_ServerModelConfig(server, "echo", -1, 2, &message), NULL);
  tell_message(response, "configuration of none", TRITONSERVER_ServerModelConfig(server, "none", -1, 1, &message), NULL);
  error = TRITONSERVER_ServerMetadata(server, &message);
  tell_message(response, "server", error, message);
  message = NULL;
  error = TRITONSERVER_ServerModelMetadata(server, "echo", -1, &message);
  tell_message(response, "echo", error, message);
  message = NULL;
  error = TRITONSERVER_ServerModelMetadata(server, "echo", 5, &message);
  tell_message(response, "echo 5", error, message);
  message = NULL;
  error = TRITONSERVER_ServerModelIndex(server, 0, &message);
  tell_message(response, "index", error, message);
  message = NULL;
  error = TRITONSERVER_ServerModelIndex(server, 1, &message);
  tell_message(response, "index of ready ones", error, message);
  message = NULL;
  error = TRITONSERVER_ServerModelStatistics(server, "echo", -1, &message);
  tell_message(response, "statistics", error, message);
  call(response, server);
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_FP32, shape, 2));
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, 4, &type, &id));
  memset(buffer, 0, 4);
  tell(response, "second buffer", TRITONBACKEND_OutputBuffer(output, &buffer, 4, &type, &id), "");
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
    TRITONSERVER_Error* error = ask(instance, response);
    EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    if (error) TRITONSERVER_ErrorDelete(error);
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
