// What several of these backends do with requests and responses.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"

#define EXPORT __attribute__((visibility("default")))
#define RETURN_IF_ERROR(call)             \
  do {                                    \
    TRITONSERVER_Error* error_ = (call);  \
    if (error_) return error_;            \
  } while (0)

// Errors of calls that cannot fail in these backends are printed: the tests look for nothing on stderr.
#define EXPECT(call)                                                         \
  do {                                                                       \
    TRITONSERVER_Error* error_ = (call);                                     \
    if (error_) {                                                            \
      fprintf(stderr, "%s: %s\n", #call, TRITONSERVER_ErrorMessage(error_)); \
      TRITONSERVER_ErrorDelete(error_);                                      \
    }                                                                        \
  } while (0)

static inline uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// Copies the request's first input to the output "OUT" of a response.
static inline TRITONSERVER_Error* copy_input(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  TRITONBACKEND_Input* input = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  int datatype = 0;
  const int64_t* shape = NULL;
  uint32_t dims = 0, buffers = 0;
  uint64_t size = 0;
  RETURN_IF_ERROR(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &size, &buffers));
  TRITONBACKEND_Output* output = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(response, &output, "OUT", datatype, shape, dims));
  void* buffer = NULL;
  int type = MEMORY_CPU;
  int64_t id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, size, &type, &id));
  uint64_t offset = 0;
  for (uint32_t index = 0; index < buffers; ++index) {
    const void* part = NULL;
    uint64_t part_size = 0;
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, index, &part, &part_size, &type, &id));
    memcpy((char*)buffer + offset, part, part_size);
    offset += part_size;
  }
  return NULL;
}

// Answers a request with a copy of its input, or with the error of making it.
static inline void echo(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Response* response = NULL;
  EXPECT(TRITONBACKEND_ResponseNew(&response, request));
  TRITONSERVER_Error* error = copy_input(request, response);
  EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
  if (error) TRITONSERVER_ErrorDelete(error);
}
