// Decoupled: a thread answers each request with as many copies of its input as the first value says, then the final
// flag. The request is released before the first response is sent.
#include <pthread.h>

#include "common.h"

struct work {
  TRITONBACKEND_ResponseFactory* factory;
  int copies;
  float* values;
  int64_t shape[8];
  uint32_t dims;
  uint64_t size;
};

static void* run(void* argument) {
  struct work* work = argument;
  for (int copy = 0; copy < work->copies; ++copy) {
    TRITONBACKEND_Response* response = NULL;
    TRITONBACKEND_Output* output = NULL;
    void* buffer = NULL;
    int type = MEMORY_CPU;
    int64_t id = 0;
    EXPECT(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
    EXPECT(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TYPE_FP32, work->shape, work->dims));
    EXPECT(TRITONBACKEND_OutputBuffer(output, &buffer, work->size, &type, &id));
    work->values[0] = (float)copy;
    memcpy(buffer, work->values, work->size);
    EXPECT(TRITONBACKEND_ResponseSend(response, 0, NULL));
  }
  EXPECT(TRITONBACKEND_ResponseFactorySendFlags(work->factory, FINAL));
  EXPECT(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work->values);
  free(work);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = NULL;
    const int64_t* shape = NULL;
    const void* buffer = NULL;
    int type = MEMORY_CPU;
    int64_t id = 0;
    struct work* work = calloc(1, sizeof *work);
    EXPECT(TRITONBACKEND_ResponseFactoryNew(&work->factory, requests[index]));
    EXPECT(TRITONBACKEND_RequestInput(requests[index], "IN", &input));
    uint32_t buffers = 0;
    EXPECT(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &work->dims, &work->size, &buffers));
    memcpy(work->shape, shape, work->dims * sizeof *shape);
    work->values = malloc(work->size);
    uint64_t offset = 0;
    for (uint32_t part = 0; part < buffers; ++part) {
      uint64_t size = 0;
      EXPECT(TRITONBACKEND_InputBuffer(input, part, &buffer, &size, &type, &id));
      memcpy((char*)work->values + offset, buffer, size);
      offset += size;
    }
    work->copies = (int)work->values[0];
    uint64_t now = now_ns();
    EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, now, now, now, now));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    pthread_t thread;
    pthread_create(&thread, NULL, run, work);
    pthread_detach(thread);
  }
  return NULL;
}
