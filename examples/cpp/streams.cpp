// Serves requests on a GPU from two streams, on tensors in the GPU's memory, and then from a CUDA graph of the caller.
//
//   c++ -std=c++17 streams.cpp $(pkg-config --cflags --libs orchestrion) -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -o streams
//   ./streams MODEL.orc          compiled by `orchestrion compile MODEL.onnx --target cuda`
//
// Elements of f32 inputs are 0, 1/8, .. 7/8, 0, ..; all others are 0. Every way of running must give the same bytes.
#include <cuda_runtime.h>
#include <orchestrion.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

void check(orc_status status) {
    if (status != ORC_OK) {
        std::fprintf(stderr, "error: %s\n", orc_last_error());
        std::exit(status);
    }
}

void check(cudaError_t error) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "error: CUDA: %s\n", cudaGetErrorString(error));
        std::exit(1);
    }
}

struct Free {
    void operator()(void *memory) const { cudaFree(memory); }
};

using DeviceMemory = std::unique_ptr<void, Free>;

DeviceMemory allocated(size_t bytes) {
    void *memory = nullptr;
    check(cudaMalloc(&memory, std::max<size_t>(bytes, 1)));
    return DeviceMemory(memory);
}

// Tensors of the GPU for all inputs, or all outputs, of a model.
struct Tensors {
    std::vector<DeviceMemory> memory;
    std::vector<orc_tensor> described;

    void add(const orc_port &port) {
        memory.push_back(allocated(port.size_bytes));
        described.push_back({memory.back().get(), port.dtype, port.rank, port.shape, nullptr});
    }
};

// What one request needs.
struct Request {
    cudaStream_t stream = nullptr;
    Tensors inputs, outputs;
    DeviceMemory scratch;

    explicit Request(const orc_executable *model) : scratch(allocated(orc_scratch_bytes(model))) {
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (size_t index = 0; index < orc_input_count(model); index++) {
            orc_port port;
            check(orc_input(model, index, &port));
            inputs.add(port);
            fill(port, inputs.memory.back().get());
        }
        for (size_t index = 0; index < orc_output_count(model); index++) {
            orc_port port;
            check(orc_output(model, index, &port));
            outputs.add(port);
        }
        check(cudaDeviceSynchronize());
    }

    Request(const Request &) = delete;

    // Streams must live as long as the executable: `stream` is not destroyed here.
    ~Request() = default;

    static void fill(const orc_port &port, void *memory) {
        check(cudaMemset(memory, 0, port.size_bytes));
        if (port.dtype == ORC_F32) {
            std::vector<float> values(port.size_bytes / sizeof(float));
            for (size_t index = 0; index < values.size(); index++) {
                values[index] = static_cast<float>(index % 8) / 8;
            }
            check(cudaMemcpy(memory, values.data(), port.size_bytes, cudaMemcpyHostToDevice));
        }
    }

    // Returns at once.
    void enqueue(const orc_executable *model) {
        check(orc_run_on_device(model, stream, inputs.described.data(), inputs.described.size(), outputs.described.data(),
                                outputs.described.size(), scratch.get()));
    }

    // Waits for the stream; the first output's bytes.
    std::string result(const orc_executable *model) {
        check(cudaStreamSynchronize(stream));
        orc_port port;
        check(orc_output(model, 0, &port));
        std::string bytes(port.size_bytes, '\0');
        check(cudaMemcpy(bytes.data(), outputs.memory[0].get(), bytes.size(), cudaMemcpyDeviceToHost));
        return bytes;
    }
};

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s MODEL.orc\n", argv[0]);
        return 2;
    }
    orc_executable *model = nullptr;
    check(orc_load_file(argv[1], nullptr, &model));
    {
        Request first(model), second(model);
        for (int round = 0; round < 100; round++) {
            first.enqueue(model);
            second.enqueue(model);
        }
        const std::string expected = first.result(model);
        bool same = second.result(model) == expected;

        // Part of a graph of the caller, with scratch of its own.
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t launched = nullptr;
        check(cudaStreamBeginCapture(first.stream, cudaStreamCaptureModeThreadLocal));
        first.enqueue(model);
        check(cudaStreamEndCapture(first.stream, &graph));
        check(cudaGraphInstantiate(&launched, graph, 0));
        check(cudaMemset(first.outputs.memory[0].get(), 0xff, expected.size()));
        check(cudaDeviceSynchronize());
        for (int round = 0; round < 100; round++) {
            check(cudaGraphLaunch(launched, first.stream));
            second.enqueue(model);
        }
        same = same && first.result(model) == expected && second.result(model) == expected;
        check(cudaGraphExecDestroy(launched));
        check(cudaGraphDestroy(graph));
        std::printf("400 runs in two streams and a graph: %s\n", same ? "equal results" : "RESULTS DIFFER");
        if (!same) {
            return 1;
        }
    }
    orc_executable_destroy(model);
    return 0;
}
