// Calls another model with its input and answers with the result (BLS). The input's first value says how many calls are
// made, one after the other; the model's parameter "model" names the model called.
#include <pthread.h>

#include "common.h"

TRITONSERVER_Error* TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server* server, const char* model, int64_t version, uint32_t* flags, void** voidp);

struct reply {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  TRITONSERVER_InferenceResponse* responses[64];
  int count;
  bool is_final, is_released;
};

static TRITONSERVER_ResponseAllocator* allocator;

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* self, const char* name, size_t size, int type, int64_t id, void* userp,
    void** buffer, void** buffer_userp, int* actual_type, int64_t* actual_id) {
  *buffer = malloc(size ? size : 1);
  *buffer_userp = strdup(name);
  *actual_type = MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* self, void* buffer, void* buffer_userp, size_t size, int type, int64_t id) {
  free(buffer);
  free(buffer_userp);
  return NULL;
}

static void on_release(TRITONSERVER_InferenceRequest* request, uint32_t flags, void* userp) {
  struct reply* reply = userp;
  EXPECT(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&reply->mutex);
  reply->is_released = true;
  pthread_cond_signal(&reply->changed);
  pthread_mutex_unlock(&reply->mutex);
}

static void on_response(TRITONSERVER_InferenceResponse* response, uint32_t flags, void* userp) {
  struct reply* reply = userp;
  pthread_mutex_lock(&reply->mutex);
  if (response) reply->responses[reply->count++] = response;
  if (flags & FINAL) reply->is_final = true;
  pthread_cond_signal(&reply->changed);
  pthread_mutex_unlock(&reply->mutex);
}

static TRITONSERVER_Error* call(
    TRITONSERVER_Server* server, const char* model, const float* values, uint64_t size, const int64_t* shape,
    uint32_t dims, struct reply* reply) {
  TRITONSERVER_InferenceRequest* request = NULL;
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetId(request, "inner"));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, reply));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response, reply));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, dims));
  // In two pieces: an input may have several buffers.
  uint64_t half = size / 8 * 4;
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, half, MEMORY_CPU, 0));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAppendInputData(
      request, "IN", (const char*)values + half, size - half, MEMORY_CPU, 0));
  RETURN_IF_ERROR(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "OUT"));
  RETURN_IF_ERROR(TRITONSERVER_ServerInferAsync(server, request, NULL));
  pthread_mutex_lock(&reply->mutex);
  while (!(reply->is_final && reply->is_released)) pthread_cond_wait(&reply->changed, &reply->mutex);
  pthread_mutex_unlock(&reply->mutex);
  return NULL;
}

// Sends the results of a call as responses: the last one with the final flag.
static TRITONSERVER_Error* pass_on(TRITONBACKEND_Request* request, struct reply* reply, uint32_t policy, int* sent) {
  for (int index = 0; index < reply->count; ++index) {
    TRITONSERVER_InferenceResponse* inner = reply->responses[index];
    TRITONBACKEND_Response* response = NULL;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseNew(&response, request));
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(inner);
    if (!error) {
      const char* name = NULL;
      const int64_t* shape = NULL;
      const void* base = NULL;
      void *buffer = NULL, *userp = NULL;
      int datatype = 0, type = MEMORY_CPU;
      int64_t id = 0;
      uint64_t dims = 0;
      size_t size = 0;
      TRITONBACKEND_Output* output = NULL;
      RETURN_IF_ERROR(TRITONSERVER_InferenceResponseOutput(
          inner, 0, &name, &datatype, &shape, &dims, &base, &size, &type, &id, &userp));
      if (strcmp(name, "OUT") || strcmp(userp, "OUT")) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "wrong output");
      RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUT", datatype, shape, (uint32_t)dims));
      RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
      memcpy(buffer, base, size);
    }
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSetIntParameter(response, "policy", policy));
    RETURN_IF_ERROR(TRITONBACKEND_ResponseSend(response, index == reply->count - 1 ? FINAL : 0, error));
    ++*sent;
    EXPECT(TRITONSERVER_InferenceResponseDelete(inner));
  }
  return NULL;
}

static void model_called(TRITONBACKEND_Model* model, char* name, size_t room) {
  TRITONSERVER_Message* config = NULL;
  const char* base = NULL;
  size_t size = 0;
  EXPECT(TRITONBACKEND_ModelConfig(model, 1, &config));
  EXPECT(TRITONSERVER_MessageSerializeToJson(config, &base, &size));
  char* copy = calloc(1, size + 1);
  memcpy(copy, base, size);
  const char* found = strstr(copy, "call-");
  snprintf(name, room, "%.*s", found ? (int)strcspn(found + 5, "\"") : 0, found ? found + 5 : "");
  free(copy);
  EXPECT(TRITONSERVER_MessageDelete(config));
}

static TRITONSERVER_Error* answer(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, int* sent) {
  TRITONBACKEND_Model* model = NULL;
  TRITONSERVER_Server* server = NULL;
  TRITONBACKEND_Input* input = NULL;
  const int64_t* shape = NULL;
  const void* values = NULL;
  uint32_t dims = 0;
  uint64_t size = 0;
  int type = MEMORY_CPU;
  int64_t id = 0;
  bool ready = false;
  char name[100];
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(TRITONBACKEND_ModelServer(model, &server));
  model_called(model, name, sizeof name);
  if (!allocator) RETURN_IF_ERROR(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  RETURN_IF_ERROR(TRITONSERVER_ServerModelIsReady(server, name, -1, &ready));
  uint32_t policy = 0;
  if (ready) RETURN_IF_ERROR(TRITONSERVER_ServerModelTransactionProperties(server, name, -1, &policy, NULL));
  if (!ready) return TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, "the model called is not ready");
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, &size, NULL));
  RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, 0, &values, &size, &type, &id));
  int calls = (int)*(const float*)values;
  for (int number = 0; number < calls; ++number) {
    struct reply reply = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}, 0, false, false};
    RETURN_IF_ERROR(call(server, name, values, size, shape, dims, &reply));
    if (number == calls - 1) return pass_on(request, &reply, policy, sent);
    for (int index = 0; index < reply.count; ++index) EXPECT(TRITONSERVER_InferenceResponseDelete(reply.responses[index]));
  }
  return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "no call was asked for");
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    int sent = 0;
    TRITONSERVER_Error* error = answer(instance, requests[index], &sent);
    if (error && !sent) {
      TRITONBACKEND_Response* response = NULL;
      EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
      EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    }
    if (error) TRITONSERVER_ErrorDelete(error);
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
