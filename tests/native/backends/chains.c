// Calls "echo" from the callback of a call to it, and waits there for the answer; so do the callbacks of that call, as deep
// as the input's first value says. Its second value says how many such chains run at the same time. Answers with the input.
#include <pthread.h>

#include "common.h"

struct link {
  int depth;  // calls still to be made below this one
  bool is_answered;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;

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
}

static void on_response(TRITONSERVER_InferenceResponse* response, uint32_t flags, void* userp);

static void call(struct link* link) {
  static const float values[2] = {1, 2};
  const int64_t shape[2] = {1, 2};
  TRITONSERVER_InferenceRequest* request = NULL;
  EXPECT(TRITONSERVER_InferenceRequestNew(&request, server, "echo", -1));
  EXPECT(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, NULL));
  EXPECT(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response, link));
  EXPECT(TRITONSERVER_InferenceRequestAddInput(request, "IN", TYPE_FP32, shape, 2));
  EXPECT(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", values, sizeof values, MEMORY_CPU, 0));
  EXPECT(TRITONSERVER_ServerInferAsync(server, request, NULL));
}

static bool wait(struct link* link) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 20;
  pthread_mutex_lock(&mutex);
  while (!link->is_answered && !pthread_cond_timedwait(&changed, &mutex, &limit)) {}
  bool is_answered = link->is_answered;
  pthread_mutex_unlock(&mutex);
  return is_answered;
}

static void on_response(TRITONSERVER_InferenceResponse* response, uint32_t flags, void* userp) {
  struct link* link = userp;
  if (response) EXPECT(TRITONSERVER_InferenceResponseDelete(response));
  if (!(flags & FINAL)) return;
  if (link->depth) {
    struct link inner = {link->depth - 1, false};
    call(&inner);
    if (!wait(&inner)) fprintf(stderr, "chains.c: the call %d below the first one was not answered\n", inner.depth);
  }
  pthread_mutex_lock(&mutex);
  link->is_answered = true;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static TRITONSERVER_Error* run(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
  TRITONBACKEND_Model* model = NULL;
  TRITONBACKEND_Input* input = NULL;
  const void* values = NULL;
  uint64_t size = 0;
  int type = MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(TRITONBACKEND_ModelServer(model, &server));
  if (!allocator) RETURN_IF_ERROR(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, 0, &values, &size, &type, &id));
  int depth = (int)((const float*)values)[0], count = (int)((const float*)values)[1];
  struct link* links = calloc((size_t)count, sizeof *links);
  for (int number = 0; number < count; ++number) {
    links[number].depth = depth;
    call(&links[number]);
  }
  int answered = 0;
  for (int number = 0; number < count; ++number) answered += wait(&links[number]);
  if (answered < count) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "a chain of calls was not answered");
  free(links);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
    TRITONSERVER_Error* error = run(instance, requests[index]);
    if (!error) error = copy_input(requests[index], response);
    EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    if (error) TRITONSERVER_ErrorDelete(error);
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
