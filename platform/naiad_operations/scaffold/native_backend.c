// A backend in C: it answers each request with its first input, as the output OUT. Compute there instead.
#include <stdlib.h>
#include <string.h>

#include "triton_api.h"

#define TRY(call) do { TRITONSERVER_Error* error_ = (call); if (error_) return error_; } while (0)

// What all instances of a model share, such as its weights.
struct model {
  uint64_t version;
};

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  struct model* own = calloc(1, sizeof *own);
  TRY(TRITONBACKEND_ModelVersion(model, &own->version));
  return TRITONBACKEND_ModelSetState(model, own);
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  struct model* own;
  TRY(TRITONBACKEND_ModelState(model, (void**)&own));
  free(own);
  return NULL;
}

static TRITONSERVER_Error* compute(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  TRITONBACKEND_Input* input;
  TRITONBACKEND_Output* output;
  int datatype, memory_type;
  int64_t memory_id;
  const int64_t* shape;
  uint32_t dims, parts;
  uint64_t size, part_size, written = 0;
  char* to;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &size, &parts));
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", datatype, shape, dims));
  TRY(TRITONBACKEND_OutputBuffer(output, (void**)&to, size, &memory_type, &memory_id));
  for (uint32_t part = 0; part < parts; ++part) {
    const void* from;
    TRY(TRITONBACKEND_InputBuffer(input, part, &from, &part_size, &memory_type, &memory_id));
    memcpy(to + written, from, part_size);
    written += part_size;
  }
  return NULL;
}

// Gets a batch of requests. An error that is returned fails all of them, so an error of one goes into its response.
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  (void)instance;
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
    TRITONSERVER_Error* error = compute(requests[index], response);
    TRY(TRITONBACKEND_ResponseSend(response, FINAL, error));
    if (error) TRITONSERVER_ErrorDelete(error);
    TRY(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
