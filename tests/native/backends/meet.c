// Two instances in one process: an Execute returns once another one runs at the same time. The response's parameters say
// how often ModelInitialize and ModelInstanceInitialize ran in this process.
#include <pthread.h>

#include "common.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside, met, models, instances;

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  ++models;
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  ++instances;
  return TRITONBACKEND_ModelInstanceSetState(instance, (void*)(intptr_t)instances);
}

static bool meet(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  pthread_mutex_lock(&mutex);
  if (++inside == 2) {
    met += 2;
    pthread_cond_broadcast(&changed);
  }
  int result = 0;
  while (!met && !result) result = pthread_cond_timedwait(&changed, &mutex, &until);
  bool both = met > 0;
  if (both) --met;
  --inside;
  pthread_mutex_unlock(&mutex);
  return both;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  uint64_t start = now_ns();
  if (!meet()) return TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, "no other instance executes");
  void* state = NULL;
  EXPECT(TRITONBACKEND_ModelInstanceState(instance, &state));
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
    EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "models", models));
    EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "instances", instances));
    EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "instance", (intptr_t)state));
    TRITONSERVER_Error* error = copy_input(requests[index], response);
    EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    uint64_t end = now_ns();
    EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, start, start, end, end));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
