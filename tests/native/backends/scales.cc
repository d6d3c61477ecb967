// Written as most backends are, in C++: objects for model and instance, found again by their states; the inputs of a batch
// are gathered into one buffer, computed on at once, and scattered over the responses. Values are multiplied by the
// model's parameter "factor". A request whose values are not finite fails alone.
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"

namespace {

struct Failure : std::runtime_error {
  explicit Failure(TRITONSERVER_Error* error) : runtime_error(TRITONSERVER_ErrorMessage(error)), error(error) {}
  TRITONSERVER_Error* error;
};

void check(TRITONSERVER_Error* error) {
  if (error) throw Failure(error);
}

class ModelState {
 public:
  explicit ModelState(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message = nullptr;
    const char *base = nullptr, *name = nullptr;
    size_t size = 0;
    uint64_t version = 0;
    check(TRITONBACKEND_ModelName(model, &name));
    check(TRITONBACKEND_ModelVersion(model, &version));
    check(TRITONBACKEND_ModelConfig(model, 1, &message));
    check(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
    std::string config(base, size);
    check(TRITONSERVER_MessageDelete(message));
    const auto key = config.find("\"factor\"");
    const auto value = config.find("string_value\":", key);
    if (key == std::string::npos || value == std::string::npos)
      throw Failure(TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, ("model '" + std::string(name) + "' has no parameter 'factor'").c_str()));
    factor = std::stof(config.substr(config.find('"', value + 14) + 1));
  }
  float factor = 0;
};

class InstanceState {
 public:
  explicit InstanceState(TRITONBACKEND_ModelInstance* instance) : instance_(instance) {
    TRITONBACKEND_Model* model = nullptr;
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model));
    check(TRITONBACKEND_ModelState(model, &state));
    model_ = static_cast<ModelState*>(state);
  }

  void execute(TRITONBACKEND_Request** requests, uint32_t count) {
    const uint64_t start = now_ns();
    std::vector<Slice> slices(count);
    gathered_.clear();
    for (uint32_t index = 0; index < count; ++index) {
      check(TRITONBACKEND_ResponseNew(&slices[index].response, requests[index]));
      slices[index].error = gather(requests[index], slices[index]);
    }
    const uint64_t compute_start = now_ns();
    for (float& value : gathered_) value *= model_->factor;
    const uint64_t compute_end = now_ns();
    uint64_t rows = 0;
    for (Slice& slice : slices) {
      if (!slice.error) slice.error = scatter(slice);
      rows += slice.error ? 0 : static_cast<uint64_t>(slice.shape[0]);
      EXPECT(TRITONBACKEND_ResponseSend(slice.response, FINAL, slice.error));
    }
    const uint64_t end = now_ns();
    for (uint32_t index = 0; index < count; ++index) {
      EXPECT(TRITONBACKEND_ModelInstanceReportStatistics(instance_, requests[index], !slices[index].error, start,
                                                         compute_start, compute_end, end));
      if (slices[index].error) TRITONSERVER_ErrorDelete(slices[index].error);
      EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
    }
    if (rows)
      EXPECT(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance_, rows, start, compute_start, compute_end, end));
  }

 private:
  struct Slice {
    TRITONBACKEND_Response* response = nullptr;
    TRITONSERVER_Error* error = nullptr;
    std::vector<int64_t> shape;
    size_t begin = 0, size = 0;
  };

  TRITONSERVER_Error* gather(TRITONBACKEND_Request* request, Slice& slice) {
    TRITONBACKEND_Input* input = nullptr;
    const char* name = nullptr;
    const int64_t* shape = nullptr;
    int datatype = 0;
    uint32_t dims = 0, buffers = 0;
    uint64_t bytes = 0;
    RETURN_IF_ERROR(TRITONBACKEND_RequestInputName(request, 0, &name));
    RETURN_IF_ERROR(TRITONBACKEND_RequestInput(request, name, &input));
    RETURN_IF_ERROR(TRITONBACKEND_InputPropertiesForHostPolicy(input, "cpu", &name, &datatype, &shape, &dims, &bytes, &buffers));
    slice.shape.assign(shape, shape + dims);
    slice.begin = gathered_.size();
    slice.size = bytes / sizeof(float);
    gathered_.resize(slice.begin + slice.size);
    char* to = reinterpret_cast<char*>(gathered_.data() + slice.begin);
    for (uint32_t index = 0; index < buffers; ++index) {
      const void* part = nullptr;
      uint64_t size = 0;
      int type = MEMORY_CPU;
      int64_t id = 0;
      RETURN_IF_ERROR(TRITONBACKEND_InputBufferForHostPolicy(input, "cpu", index, &part, &size, &type, &id));
      memcpy(to, part, size);
      to += size;
    }
    for (size_t index = 0; index < slice.size; ++index)
      if (!std::isfinite(gathered_[slice.begin + index]))
        return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, ("value " + std::to_string(index) + " is not finite").c_str());
    return nullptr;
  }

  TRITONSERVER_Error* scatter(const Slice& slice) {
    TRITONBACKEND_Output* output = nullptr;
    void* buffer = nullptr;
    int type = MEMORY_CPU;
    int64_t id = 0;
    RETURN_IF_ERROR(TRITONBACKEND_ResponseOutput(slice.response, &output, "OUT", TYPE_FP32, slice.shape.data(),
                                                 static_cast<uint32_t>(slice.shape.size())));
    RETURN_IF_ERROR(TRITONBACKEND_OutputBuffer(output, &buffer, slice.size * sizeof(float), &type, &id));
    memcpy(buffer, gathered_.data() + slice.begin, slice.size * sizeof(float));
    return nullptr;
  }

  TRITONBACKEND_ModelInstance* instance_;
  ModelState* model_ = nullptr;
  std::vector<float> gathered_;
};

// Exceptions end here: none may reach the server.
template <typename Work>
TRITONSERVER_Error* guarded(Work work) {
  try {
    work();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.error;
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(ERROR_INTERNAL, error.what());
  }
}

}  // namespace

extern "C" {

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([&] {
    auto state = std::make_unique<ModelState>(model);
    check(TRITONBACKEND_ModelSetState(model, state.release()));
  });
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelState(model, &state));
    delete static_cast<ModelState*>(state);
  });
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    auto state = std::make_unique<InstanceState>(instance);
    check(TRITONBACKEND_ModelInstanceSetState(instance, state.release()));
  });
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(instance, &state));
    delete static_cast<InstanceState*>(state);
  });
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(instance, &state));
    static_cast<InstanceState*>(state)->execute(requests, count);
  });
}

}  // extern "C"
