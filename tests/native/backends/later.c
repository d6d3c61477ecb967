// Not decoupled, but a thread answers after Execute has returned. Until then the request is the backend's.
#include <pthread.h>

#include "common.h"

static void* run(void* request) {
  struct timespec pause = {0, 5000000};
  nanosleep(&pause, NULL);
  echo(request);
  EXPECT(TRITONBACKEND_RequestRelease(request, RELEASE_ALL));
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    pthread_t thread;
    pthread_create(&thread, NULL, run, requests[index]);
    pthread_detach(thread);
  }
  return NULL;
}
