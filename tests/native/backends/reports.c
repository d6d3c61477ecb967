// Decoupled: answers each request once, and reports statistics of more responses of each kind, with times of its own; some
// of these are out of order. Reports the memory of its model and of its instance.
#include "common.h"

static TRITONSERVER_BufferAttributes* attributes(int type, size_t size) {
  TRITONSERVER_BufferAttributes* made = NULL;
  EXPECT(TRITONSERVER_BufferAttributesNew(&made));
  EXPECT(TRITONSERVER_BufferAttributesSetMemoryType(made, type));
  EXPECT(TRITONSERVER_BufferAttributesSetByteSize(made, size));
  return made;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  TRITONSERVER_BufferAttributes* usage[] = {attributes(MEMORY_CPU, 1000), attributes(MEMORY_CPU_PINNED, 50)};
  return TRITONBACKEND_ModelReportMemoryUsage(model, usage, 2);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONSERVER_BufferAttributes* usage[] = {attributes(MEMORY_CPU, 200), attributes(MEMORY_CPU, 30),
                                            attributes(MEMORY_GPU, 7)};
  EXPECT(TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, usage, 1));
  return TRITONBACKEND_ModelInstanceReportMemoryUsage(instance, usage, 3);
}

// Reports one response; *code* is that of its error, -1 for none. Prints the error of the report.
static void report(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_ResponseFactory* factory, uint64_t start,
                   uint64_t output_start, uint64_t end, int code) {
  TRITONBACKEND_ModelInstanceResponseStatistics* statistics = NULL;
  TRITONSERVER_Error* failure = code < 0 ? NULL : TRITONSERVER_ErrorNew(code, "the response failed");
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(statistics, instance));
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(statistics, factory));
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start));
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(statistics, output_start));
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, end));
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, failure));
  TRITONSERVER_Error* error = TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics);
  EXPECT(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics));
  if (error) {
    fprintf(stderr, "report: %s\n", TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }
  if (failure) TRITONSERVER_ErrorDelete(failure);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_ResponseFactory *factory = NULL, *other = NULL;
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseFactoryNew(&factory, requests[index]));
    EXPECT(TRITONBACKEND_ResponseFactoryNew(&other, requests[index]));
    EXPECT(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    EXPECT(TRITONBACKEND_ResponseSend(response, 0, copy_input(requests[index], response)));
    report(instance, factory, 100, 120, 150, -1);
    report(instance, other, 100, 0, 150, ERROR_INVALID_ARG);
    report(instance, factory, 100, 120, 150, ERROR_INVALID_ARG);
    report(instance, factory, 100, 0, 150, ERROR_CANCELLED);
    report(instance, factory, 100, 0, 150, -1);
    report(instance, factory, 100, 90, 150, -1);
    report(instance, factory, 100, 110, 50, -1);
    report(instance, factory, 100, 0, 50, -1);
    report(instance, factory, 100, 120, 150, ERROR_CANCELLED);
    EXPECT(TRITONBACKEND_ResponseFactorySendFlags(factory, FINAL));
    EXPECT(TRITONBACKEND_ResponseFactoryDelete(other));
    EXPECT(TRITONBACKEND_ResponseFactoryDelete(factory));
    uint64_t now = now_ns();
    EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], true, now, now, now, now));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
