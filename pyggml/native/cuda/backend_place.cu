// The one file that looks into ggml's CUDA module: a backend's card and stream, from its context.
// The context's own functions are not exported, so only its fields are read.

#include "place.h"

#include "common.cuh"
#include "ggml-backend-impl.h"

#include <cstring>
#include <string>

bool find_place(ggml_backend_t backend, place & found, const reason & why) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    if (!device || strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), GGML_CUDA_NAME) != 0) {
        return why.say("%s is no CUDA device", ggml_backend_name(backend));
    }
    const auto * context = static_cast<const ggml_backend_cuda_context *>(backend->context);
    if (context->name != GGML_CUDA_NAME + std::to_string(context->device)) {
        return why.say("libggml-cuda.so and libpyggml-cuda.so are of different builds");
    }
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    std::string bus_id = props.device_id;
    bus_id = bus_id.substr(0, bus_id.find("-v"));  // of an emulated device the number among those of its card follows
    if (!why.passed(cudaDeviceGetByPCIBusId(&found.card, bus_id.c_str()), "cudaDeviceGetByPCIBusId")) {
        return false;
    }
    const cudaStream_t & stream = context->streams[context->device][context->curr_stream_no];
    if (!stream) {
        ggml_backend_synchronize(backend);  // makes it; not elsewhere, since a stream that is captured takes no wait
    }
    found.stream = stream;
    return found.stream || why.say("%s has no stream", ggml_backend_name(backend));
}
