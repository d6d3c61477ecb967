// Works until the client goes away, 20 seconds at most.
#include "common.h"

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  bool cancelled = false;
  struct timespec pause = {0, 5000000};
  EXPECT(TRITONSERVER_LogMessage(LOG_WARN, __FILE__, __LINE__, "waits for the end of its client"));
  for (int round = 0; round < 4000 && !cancelled; ++round) {
    nanosleep(&pause, NULL);
    EXPECT(TRITONBACKEND_RequestIsCancelled(requests[0], &cancelled));
  }
  EXPECT(TRITONSERVER_LogMessage(LOG_WARN, __FILE__, __LINE__, cancelled ? "saw the end" : "saw no end"));
  TRITONSERVER_LogMessage(LOG_VERBOSE, __FILE__, __LINE__, "nobody wants to know this");
  echo(requests[0]);
  EXPECT(TRITONBACKEND_RequestRelease(requests[0], RELEASE_ALL));
  return NULL;
}
