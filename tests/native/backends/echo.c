// Answers each request with its first input. Reports statistics, as most backends do.
#include "common.h"

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  uint64_t start = now_ns();
  for (uint32_t index = 0; index < count; ++index) echo(requests[index]);
  uint64_t end = now_ns();
  for (uint32_t index = 0; index < count; ++index) {
    EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, start, start, end, end));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  EXPECT(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start, start, end, end));
  return NULL;
}
