// Counts the values it receives in metrics of its own, by model, and keeps the last one in a gauge.
#include "common.h"

static TRITONSERVER_MetricFamily *count_family, *last_family;
static TRITONSERVER_Metric *count_metric, *last_metric;

EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  RETURN_IF_ERROR(TRITONSERVER_MetricFamilyNew(&count_family, 0, "native_values_total", "Values received"));
  return TRITONSERVER_MetricFamilyNew(&last_family, 1, "native_last_value", "The last value received");
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  RETURN_IF_ERROR(TRITONSERVER_MetricFamilyDelete(count_family));
  return TRITONSERVER_MetricFamilyDelete(last_family);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  const char* name = NULL;
  RETURN_IF_ERROR(TRITONBACKEND_ModelName(model, &name));
  TRITONSERVER_Parameter* label = TRITONSERVER_ParameterNew("model", PARAMETER_STRING, name);
  const TRITONSERVER_Parameter* labels[] = {label};
  RETURN_IF_ERROR(TRITONSERVER_MetricNew(&count_metric, count_family, labels, 1));
  RETURN_IF_ERROR(TRITONSERVER_MetricNew(&last_metric, last_family, labels, 1));
  TRITONSERVER_ParameterDelete(label);
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Error* error = TRITONSERVER_MetricFamilyDelete(count_family);  // too early
  fprintf(stderr, "family with metrics: %s\n", error ? TRITONSERVER_ErrorMessage(error) : "deleted");
  if (error) TRITONSERVER_ErrorDelete(error);
  RETURN_IF_ERROR(TRITONSERVER_MetricDelete(count_metric));
  return TRITONSERVER_MetricDelete(last_metric);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Input* input = NULL;
    const void* buffer = NULL;
    uint64_t size = 0;
    int type = MEMORY_CPU;
    int64_t id = 0;
    EXPECT(TRITONBACKEND_RequestInputByIndex(requests[index], 0, &input));
    EXPECT(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &type, &id));
    EXPECT(TRITONSERVER_MetricIncrement(count_metric, (double)(size / sizeof(float))));
    EXPECT(TRITONSERVER_MetricSet(last_metric, ((const float*)buffer)[size / sizeof(float) - 1]));
    TRITONSERVER_Error* error = TRITONSERVER_MetricIncrement(count_metric, -1);
    TRITONBACKEND_Response* response = NULL;
    EXPECT(TRITONBACKEND_ResponseNew(&response, requests[index]));
    EXPECT(TRITONBACKEND_ResponseSetStringParameter(response, "error", TRITONSERVER_ErrorMessage(error)));
    double value = 0;
    EXPECT(TRITONSERVER_MetricValue(last_metric, &value));
    EXPECT(TRITONBACKEND_ResponseSetIntParameter(response, "last", (int64_t)value));
    TRITONSERVER_ErrorDelete(error);
    error = copy_input(requests[index], response);
    EXPECT(TRITONBACKEND_ResponseSend(response, FINAL, error));
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
