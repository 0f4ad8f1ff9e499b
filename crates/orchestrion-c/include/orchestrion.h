// Orchestrion compiles ONNX models into executables for CPUs and NVIDIA GPUs. docs/c.md explains this interface.
//
// Rules of all functions:
// - A function that returns an `orc_status` has succeeded if that is ORC_OK. Otherwise `orc_last_error` says why, and what the
//   function would have written is NULL or undefined.
// - Texts are UTF-8 and end with a zero; paths are bytes of any kind that end with a zero.
// - A NULL where the description does not allow it gives ORC_USAGE. Other pointers must be what the description says.
// - What a function makes lives until the `_destroy` of its kind gets it, once. Each `_destroy` accepts NULL.
// - Functions may be called from any threads at the same time; where one needs an object to itself, its description says so.
//   A `_destroy` needs its object to itself.
// - No function calls back, and none ends the process, unless the system has no memory left.


#ifndef ORCHESTRION_H
#define ORCHESTRION_H

// Generated from the sources of orchestrion-c; a test of that crate compares it with them.

#include <stddef.h>
#include <stdint.h>

// The version of this interface that the header describes. It grows if a program has to be compiled again.
#define ORC_ABI_VERSION 1

// How a call ended. The numbers are exit codes of the `orchestrion` command.
typedef enum {
    // It succeeded.
    ORC_OK = 0,
    // Something given is wrong: a model, a file, or a tensor that is not as the model needs it.
    ORC_INVALID = 1,
    // The call is wrong: NULL, an unknown option, tensors that overlap.
    ORC_USAGE = 2,
    // The model needs what is not supported; the text names every such place.
    ORC_UNSUPPORTED = 3,
    // The machine lacks something: a compiler, a driver, a GPU, memory.
    ORC_MACHINE = 4,
    // A bug in Orchestrion.
    ORC_INTERNAL = 70,
    // `orc_options_cancel` stopped it.
    ORC_INTERRUPTED = 130,
} orc_status;

// Types of elements. 16 bits of ORC_F16 and ORC_BF16 are as the processor has them; an ORC_BOOL is one byte, 0 or 1.
typedef enum {
    ORC_BOOL = 1,
    ORC_I8 = 2,
    ORC_I16 = 3,
    ORC_I32 = 4,
    ORC_I64 = 5,
    ORC_U8 = 6,
    ORC_U16 = 7,
    ORC_U32 = 8,
    ORC_U64 = 9,
    ORC_F16 = 10,
    ORC_BF16 = 11,
    ORC_F32 = 12,
    ORC_F64 = 13,
} orc_dtype;

// Working memory for one run of an executable at a time; contexts of an executable share its code, weights and threads.
typedef struct orc_context orc_context;

// A compiled model with its weights, ready to run. Any number of threads may use it at the same time.
typedef struct orc_executable orc_executable;

// How to compile, load and run.
typedef struct orc_options orc_options;

// A tensor in the caller's memory, of the host. Element `[i, j, ..]` lies `i * strides[0] + j * strides[1] + ..` elements behind
// `data`. Any address will do; elements that do not lie row-major, or do not start at a multiple of 8 bytes, are copied by a run.
typedef struct {
    // The first element; NULL only if there is none. Of inputs it is only read.
    void *data;
    // The type of the elements, an `orc_dtype`.
    int32_t dtype;
    // The number of dimensions.
    size_t rank;
    // Elements along each dimension; NULL only if there is none.
    const int64_t *shape;
    // Elements from one index to the next along each dimension; NULL: row-major without gaps. Those of inputs may be 0 or negative,
    // those of outputs negative.
    const int64_t *strides;
} orc_tensor;

// An input or output of a model.
typedef struct {
    // Its name in the model.
    const char *name;
    // The type of its elements, an `orc_dtype`.
    int32_t dtype;
    // The number of its dimensions.
    size_t rank;
    // Elements along each dimension.
    const int64_t *shape;
    // Bytes of all elements without gaps.
    size_t size_bytes;
} orc_port;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, for example "0.1.0".
const char *orc_version(void);

// ORC_ABI_VERSION of the library that is loaded: a program whose header has another one must not use it.
uint32_t orc_abi_version(void);

// Bytes of working memory that a run on a GPU needs; 0 for an executable of a CPU.
size_t orc_scratch_bytes(const orc_executable *executable);

// Enqueues a run on tensors in the memory of the executable's GPU, row-major without gaps, in `stream` (a `cudaStream_t` or `CUstream`;
// NULL is the default stream), and returns without waiting, unless a step runs on the host. Until the run is done nobody may write
// the inputs or use the outputs; an output that overlaps another tensor is written last. Tensors that do not start at a multiple of 16
// bytes are copied. Faults of kernels may be reported by a later call. The stream must live as long as the executable. If the stream
// is being captured, the run becomes part of that graph, which must not be launched after the executable was destroyed.
// `scratch`: `orc_scratch_bytes` bytes of the GPU's memory, from a multiple of 256 on, that the run works in; without it (NULL) a
// graph that captured the run must not be launched at the same time as other runs.
orc_status orc_run_on_device(const orc_executable *executable,
                             void *stream,
                             const orc_tensor *inputs,
                             size_t input_count,
                             const orc_tensor *outputs,
                             size_t output_count,
                             void *scratch);

// Compiles an ONNX file and loads what that gives. Every symbolic dimension needs a "dim". `options` may be NULL.
orc_status orc_compile_file(const char *path,
                            const orc_options *options,
                            orc_executable **out);

// Compiles an ONNX model of `size` bytes, which are not needed afterwards. Its external data lies below `folder`; if that is NULL, it
// has none. `options` may be NULL.
orc_status orc_compile_bytes(const void *bytes,
                             size_t size,
                             const char *folder,
                             const orc_options *options,
                             orc_executable **out);

// Compiles the ONNX file `path` to the .orc file `orc_path` and loads nothing: the target may be another machine. A file of that
// name is replaced once the new one is complete. `options` may be NULL.
orc_status orc_compile_to_file(const char *path,
                               const orc_options *options,
                               const char *orc_path);

// Loads an .orc file. It holds native code, which runs with the rights of this process: load only what you would start as a program.
// Of the options, "threads" and those of CUDA's libraries matter; `options` may be NULL. The file is not needed afterwards.
orc_status orc_load_file(const char *path,
                         const orc_options *options,
                         orc_executable **out);

// Loads an .orc file from `size` bytes of memory, which are copied; the rest is as of `orc_load_file`.
orc_status orc_load_bytes(const void *bytes,
                          size_t size,
                          const orc_options *options,
                          orc_executable **out);

// Writes an executable to an .orc file. A file of that name is replaced once the new one is complete.
orc_status orc_save(const orc_executable *executable,
                    const char *path);

// The number of inputs; 0 of NULL.
size_t orc_input_count(const orc_executable *executable);

// The number of outputs; 0 of NULL.
size_t orc_output_count(const orc_executable *executable);

// Describes an input; the first is number 0. The name and the shape live as long as the executable.
orc_status orc_input(const orc_executable *executable, size_t number, orc_port *out);

// Describes an output, as `orc_input` does.
orc_status orc_output(const orc_executable *executable, size_t number, orc_port *out);

// Frees an executable. No call may use it; its contexts go on: what they share with it is freed with the last of them.
void orc_executable_destroy(orc_executable *executable);

// Makes options that are all as they are by default.
orc_status orc_options_create(orc_options **out);

// Sets an option, by the names in docs/c.md, for example "target" to "cuda", "dim" to "batch=8", "threads" to "4". No other call
// may use the options meanwhile. ORC_USAGE if there is no such option or it has no such value: the text says what there is.
orc_status orc_options_set(orc_options *options,
                           const char *name,
                           const char *value);

// Stops compilations with these options, now and later: they return ORC_INTERRUPTED within seconds. It may be called while others
// compile with them. NULL is ignored.
void orc_options_cancel(const orc_options *options);

// Frees options. What was compiled or loaded with them does not need them.
void orc_options_destroy(orc_options *options);

// Computes `outputs` from `inputs`, in the model's order, as many as it has. Nobody may write the inputs or use the outputs meanwhile,
// and outputs must not overlap inputs or each other, from their first to their last byte. After an error the contents of the outputs
// are undefined. A run takes working memory that no other run uses, which is made if there is none.
orc_status orc_run(const orc_executable *executable,
                   const orc_tensor *inputs,
                   size_t input_count,
                   const orc_tensor *outputs,
                   size_t output_count);

// Makes a context. It keeps what it needs of the executable, which may be destroyed before it.
orc_status orc_context_create(const orc_executable *executable, orc_context **out);

// Runs as `orc_run` does, in this context's memory. A context runs once at a time: ORC_USAGE if it runs in another thread.
orc_status orc_context_run(orc_context *context,
                           const orc_tensor *inputs,
                           size_t input_count,
                           const orc_tensor *outputs,
                           size_t output_count);

// Frees a context, from any thread.
void orc_context_destroy(orc_context *context);

// Why the last call on this thread that failed did so; "" if none has. It lives until the next call on this thread that fails, or
// the thread ends.
const char *orc_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ORCHESTRION_H */
