// A backend in C++ whose own code throws: inside, the exception is caught; on a negative value it leaves Execute.
#include <stdexcept>
#include <string>

#include "common.h"

static void check(float value) {
  if (value > 100) throw std::out_of_range("the value is " + std::to_string(static_cast<int>(value)));
  if (value < 0) throw std::runtime_error("nobody catches this");
}

extern "C" EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = nullptr;
    const void* buffer = nullptr;
    uint64_t size = 0;
    int type = MEMORY_CPU;
    int64_t id = 0;
    RETURN_IF_ERROR(TRITONBACKEND_RequestInputByIndex(requests[index], 0, &input));
    RETURN_IF_ERROR(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    try {
      check(*static_cast<const float*>(buffer));
    } catch (const std::out_of_range& error) {
      return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, error.what());
    }
    echo(requests[index]);
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return nullptr;
}
