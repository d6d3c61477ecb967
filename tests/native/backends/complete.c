// Completes its model's configuration, and writes its lifecycle to the log. The model's parameter "fail" names the entry
// point that reports an error, or how initializing the model ends otherwise. With a parameter "unasked" it also completes the configuration where it is not asked to.
#include <signal.h>
#include <unistd.h>

#include "common.h"

static const char kCompleted[] =
    "{\"max_batch_size\": 4,"
    " \"input\": [{\"name\": \"IN\", \"data_type\": \"TYPE_FP32\", \"dims\": [-1]}],"
    " \"output\": [{\"name\": \"OUT\", \"data_type\": \"TYPE_FP32\", \"dims\": [-1]}]}";

static TRITONSERVER_Error* note(const char* what) { return TRITONSERVER_LogMessage(LOG_INFO, __FILE__, __LINE__, what); }

static bool has(TRITONBACKEND_Model* model, const char* word) {
  TRITONSERVER_Message* config = NULL;
  const char* base = NULL;
  size_t size = 0;
  EXPECT(TRITONBACKEND_ModelConfig(model, 1, &config));
  EXPECT(TRITONSERVER_MessageSerializeToJson(config, &base, &size));
  char* copy = calloc(1, size + 1);
  memcpy(copy, base, size);
  bool found = strstr(copy, word) != NULL;
  free(copy);
  EXPECT(TRITONSERVER_MessageDelete(config));
  return found;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  uint32_t major = 0, minor = 0;
  const char *name = NULL, *location = NULL, *base = NULL;
  int type = -1;
  size_t size = 0;
  TRITONSERVER_Message* config = NULL;
  char line[4096];
  RETURN_IF_ERROR(TRITONBACKEND_ApiVersion(&major, &minor));
  RETURN_IF_ERROR(TRITONBACKEND_BackendName(backend, &name));
  RETURN_IF_ERROR(TRITONBACKEND_BackendArtifacts(backend, &type, &location));
  RETURN_IF_ERROR(TRITONBACKEND_BackendConfig(backend, &config));
  RETURN_IF_ERROR(TRITONSERVER_MessageSerializeToJson(config, &base, &size));
  snprintf(line, sizeof line, "Initialize %s, API %u.%u, artifacts %d in %s, config %.*s", name, major, minor, type,
           location, (int)size, base);
  return note(line);
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) { return note("Finalize"); }

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  bool completes = false;
  const char *name = NULL, *location = NULL;
  int type = -1;
  uint64_t version = 0;
  char line[4096];
  RETURN_IF_ERROR(TRITONBACKEND_ModelName(model, &name));
  RETURN_IF_ERROR(TRITONBACKEND_ModelVersion(model, &version));
  RETURN_IF_ERROR(TRITONBACKEND_ModelRepository(model, &type, &location));
  RETURN_IF_ERROR(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  snprintf(line, sizeof line, "ModelInitialize %s %llu in %s, auto-complete %d", name, (unsigned long long)version,
           location, completes);
  RETURN_IF_ERROR(note(line));
  if (has(model, "model-crash")) raise(SIGSEGV);
  while (has(model, "model-hang")) pause();
  if (has(model, "model-initialize")) return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "the model is not to my liking");
  if (completes || has(model, "unasked")) {
    TRITONSERVER_Message* config = NULL;
    RETURN_IF_ERROR(TRITONSERVER_MessageNewFromSerializedJson(&config, kCompleted, sizeof kCompleted - 1));
    RETURN_IF_ERROR(TRITONBACKEND_ModelSetConfig(model, 1, config));
    RETURN_IF_ERROR(TRITONSERVER_MessageDelete(config));
  }
  if (!has(model, "allow_ragged_batch")) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the configuration is not complete");
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) { return note("ModelFinalize"); }

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  TRITONBACKEND_Model* model = NULL;
  const char* name = NULL;
  char line[200];
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceModel(instance, &model));
  RETURN_IF_ERROR(TRITONBACKEND_ModelInstanceName(instance, &name));
  snprintf(line, sizeof line, "ModelInstanceInitialize %s", name);
  RETURN_IF_ERROR(note(line));
  if (has(model, "instance-initialize")) return TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, "no room for an instance");
  return NULL;
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return note("ModelInstanceFinalize");
}

EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    echo(requests[index]);
    EXPECT(TRITONBACKEND_RequestRelease(requests[index], RELEASE_ALL));
  }
  return NULL;
}
