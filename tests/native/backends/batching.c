// Answers with the input, and with the number of requests of its batch as the parameter "batch".
#include "common.h"

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  uint64_t start = now_ns();
  struct timespec pause = {0, 20000000};  // long enough for the next requests to queue
  nanosleep(&pause, NULL);
  uint64_t end = now_ns();
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
    EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "batch", count));
    TRITONSERVER_Error* error = copy_input(requests[index], response);
    EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, start, start, end, end));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  EXPECT(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, end, end));
  return NULL;
}
