// Every way to call wrongly, and files there and back.
//
//   errors FOLDER          with model.onnx, symbolic.onnx, unsupported.onnx; the cache and results go there
#include "expect.h"

static char paths[16][512];

// The path of a file in the folder.
static const char *path(const char *folder, const char *name) {
    static int next;
    char *place = paths[next++ % 16];
    snprintf(place, sizeof paths[0], "%s/%s", folder, name);
    return place;
}

static void check_nulls(void) {
    orc_executable *executable = NULL;
    orc_context *context = NULL;
    orc_options *options = NULL;
    orc_port port;
    EXPECT_ERROR(orc_options_create(NULL), ORC_USAGE, "`out` is NULL");
    EXPECT_ERROR(orc_options_set(NULL, "tune", "on"), ORC_USAGE, "`options` is NULL");
    EXPECT_ERROR(orc_compile_file(NULL, NULL, &executable), ORC_USAGE, "`path` is NULL");
    EXPECT_ERROR(orc_compile_file("a", NULL, NULL), ORC_USAGE, "`out` is NULL");
    EXPECT_ERROR(orc_compile_bytes(NULL, 3, NULL, NULL, &executable), ORC_USAGE, "`bytes` is NULL");
    EXPECT_ERROR(orc_compile_to_file("a", NULL, NULL), ORC_USAGE, "`orc_path` is NULL");
    EXPECT_ERROR(orc_compile_to_file("a", NULL, "a"), ORC_USAGE, "would replace the model");
    EXPECT_ERROR(orc_load_file(NULL, NULL, &executable), ORC_USAGE, "`path` is NULL");
    EXPECT_ERROR(orc_load_bytes(NULL, 3, NULL, &executable), ORC_USAGE, "`bytes` is NULL");
    EXPECT_ERROR(orc_save(NULL, "a"), ORC_USAGE, "`executable` is NULL");
    EXPECT_ERROR(orc_input(NULL, 0, &port), ORC_USAGE, "`executable` is NULL");
    EXPECT_ERROR(orc_output(NULL, 0, &port), ORC_USAGE, "`executable` is NULL");
    EXPECT_ERROR(orc_run(NULL, NULL, 0, NULL, 0), ORC_USAGE, "`executable` is NULL");
    EXPECT_ERROR(orc_context_create(NULL, &context), ORC_USAGE, "`executable` is NULL");
    EXPECT_ERROR(orc_context_run(NULL, NULL, 0, NULL, 0), ORC_USAGE, "`context` is NULL");
    EXPECT(orc_input_count(NULL) == 0 && orc_output_count(NULL) == 0);
    EXPECT_OK(orc_options_create(&options));
    EXPECT_ERROR(orc_options_set(options, NULL, "on"), ORC_USAGE, "`name` is NULL");
    EXPECT_ERROR(orc_options_set(options, "tune", NULL), ORC_USAGE, "`value` is NULL");
    EXPECT_ERROR(orc_options_set(options, "tone", "on"), ORC_USAGE, "no option `tone`; there are budget, cache-dir,");
    EXPECT_ERROR(orc_options_set(options, "tune", "yes"), ORC_USAGE, "expected is `on` or `off`");
    EXPECT_ERROR(orc_options_set(options, "dim", "batch"), ORC_USAGE, "expected is NAME=N");
    orc_options_destroy(options);
    orc_options_destroy(NULL);
    orc_options_cancel(NULL);
    orc_executable_destroy(NULL);
    orc_context_destroy(NULL);
}

static orc_options *options_for(const char *folder) {
    orc_options *options;
    EXPECT_OK(orc_options_create(&options));
    EXPECT_OK(orc_options_set(options, "cache-dir", path(folder, "cache")));
    EXPECT_OK(orc_options_set(options, "calibrate", "off"));
    EXPECT_OK(orc_options_set(options, "threads", "1"));
    return options;
}

static void check_models(const char *folder, const orc_options *options) {
    orc_executable *executable = (orc_executable *)folder;
    EXPECT_ERROR(orc_compile_file(path(folder, "none.onnx"), options, &executable), ORC_INVALID, "none.onnx");
    EXPECT(executable == NULL);
    EXPECT_ERROR(orc_compile_bytes("text", 4, NULL, options, &executable), ORC_INVALID, "");
    EXPECT_ERROR(orc_compile_file(path(folder, "unsupported.onnx"), options, &executable), ORC_UNSUPPORTED, "Nothing");
    EXPECT_ERROR(orc_compile_file(path(folder, "symbolic.onnx"), options, &executable), ORC_INVALID, "batch");
    EXPECT_ERROR(orc_load_file(path(folder, "none.orc"), NULL, &executable), ORC_INVALID, "none.orc");
    EXPECT_ERROR(orc_load_file(path(folder, "model.onnx"), NULL, &executable), ORC_INVALID, "not a usable .orc file");
    EXPECT_ERROR(orc_load_bytes("text", 4, NULL, &executable), ORC_INVALID, "not a usable .orc file");
    EXPECT_ERROR(orc_load_bytes(NULL, 0, NULL, &executable), ORC_INVALID, "not a usable .orc file");

    orc_options *own = options_for(folder);
    EXPECT_OK(orc_options_set(own, "cc", path(folder, "no-compiler")));
    EXPECT_ERROR(orc_compile_file(path(folder, "model.onnx"), own, &executable), ORC_MACHINE, "no-compiler");
    orc_options_destroy(own);

    own = options_for(folder);
    EXPECT_OK(orc_options_set(own, "dim", "batch=5"));
    EXPECT_OK(orc_compile_file(path(folder, "symbolic.onnx"), own, &executable));
    orc_port port;
    EXPECT_OK(orc_input(executable, 0, &port));
    EXPECT(port.rank == 2 && port.shape[0] == 5 && port.size_bytes == 60);
    orc_executable_destroy(executable);
    orc_options_cancel(own);
    EXPECT_OK(orc_options_set(own, "dim", "batch=6"));
    EXPECT_ERROR(orc_compile_file(path(folder, "symbolic.onnx"), own, &executable), ORC_INTERRUPTED, "interrupted");
    orc_options_destroy(own);
}

static void check_ports(const orc_executable *executable) {
    orc_port port;
    EXPECT(orc_input_count(executable) == 2 && orc_output_count(executable) == 2);
    EXPECT_OK(orc_input(executable, 1, &port));
    EXPECT(strcmp(port.name, "b") == 0 && port.dtype == ORC_F32 && port.rank == 1 && port.shape[0] == 4);
    EXPECT_OK(orc_output(executable, 1, &port));
    EXPECT(strcmp(port.name, "s") == 0 && port.rank == 2 && port.shape[1] == 4 && port.size_bytes == 32);
    EXPECT_ERROR(orc_input(executable, 2, &port), ORC_USAGE, "number 2 is requested, but the model has 2 inputs");
    EXPECT_ERROR(orc_output(executable, SIZE_MAX, &port), ORC_USAGE, "2 outputs");
    EXPECT_ERROR(orc_output(executable, 0, NULL), ORC_USAGE, "`out` is NULL");
}

// Changes one thing of a right call, which must then be refused, in a context too.
#define EXPECT_REFUSED(change, status, words)                                                                          \
    do {                                                                                                               \
        set_up(&t);                                                                                                    \
        change;                                                                                                        \
        EXPECT_ERROR(run_on(executable, &t), status, words);                                                           \
        EXPECT_ERROR(orc_context_run(context, t.inputs, 2, t.outputs, 2), status, words);                              \
    } while (0)

static void check_tensors(const orc_executable *executable) {
    struct tensors t;
    orc_context *context;
    EXPECT_OK(orc_context_create(executable, &context));
    set_up(&t);
    EXPECT_ERROR(orc_run(executable, t.inputs, 1, t.outputs, 2), ORC_INVALID, "1 inputs are given, the model has 2: x, b");
    EXPECT_ERROR(orc_run(executable, t.inputs, 2, t.outputs, 3), ORC_INVALID, "3 outputs are given, the model has 2: y, s");
    EXPECT_ERROR(orc_run(executable, NULL, 2, t.outputs, 2), ORC_USAGE, "`inputs` is NULL");
    EXPECT_ERROR(orc_run(executable, t.inputs, 2, NULL, 2), ORC_USAGE, "`outputs` is NULL");

    static const int64_t other[] = {2, 5}, negative[] = {-2, 4}, huge[] = {INT64_MAX, INT64_MAX};
    EXPECT_REFUSED(t.inputs[0].dtype = ORC_I32, ORC_INVALID, "input `x` is i32[2, 3]; the model was compiled for f32[2, 3]");
    EXPECT_REFUSED(t.inputs[0].dtype = 99, ORC_INVALID, "type 99");
    EXPECT_REFUSED(t.inputs[0].dtype = 0, ORC_INVALID, "type 0");
    EXPECT_REFUSED(t.inputs[0].rank = 1, ORC_INVALID, "input `x` has 1 dimensions");
    EXPECT_REFUSED(t.inputs[0].rank = SIZE_MAX, ORC_INVALID, "dimensions");
    EXPECT_REFUSED(t.outputs[0].shape = other, ORC_INVALID, "output `y` is f32[2, 5]");
    EXPECT_REFUSED(t.outputs[0].shape = negative, ORC_INVALID, "output `y` is f32[-2, 4]");
    EXPECT_REFUSED(t.outputs[0].shape = huge, ORC_INVALID, "output `y` is f32[9223372036854775807");
    EXPECT_REFUSED(t.outputs[0].shape = NULL, ORC_USAGE, "`shape` of output `y` is NULL");
    EXPECT_REFUSED(t.inputs[1].data = NULL, ORC_USAGE, "`data` of input `b` is NULL");
    EXPECT_REFUSED(t.outputs[1].data = NULL, ORC_USAGE, "`data` of output `s` is NULL");

    static const int64_t far[] = {INT64_MAX, 1}, back[] = {INT64_MIN, 1}, shared[] = {1, 1}, zero[] = {0, 1};
    EXPECT_REFUSED(t.inputs[0].strides = far, ORC_INVALID, "input `x` reaches beyond all addresses");
    EXPECT_REFUSED(t.outputs[0].strides = back, ORC_INVALID, "output `y` reaches beyond all addresses");
    EXPECT_REFUSED(t.outputs[0].strides = shared, ORC_INVALID, "output `y`: elements of the output share memory");
    EXPECT_REFUSED(t.outputs[0].strides = zero, ORC_INVALID, "output `y`: elements of the output share memory");
    EXPECT_REFUSED(t.inputs[0].data = (void *)(UINTPTR_MAX - 3), ORC_INVALID, "beyond all addresses");

    EXPECT_REFUSED(t.outputs[0].data = t.x, ORC_USAGE, "output `y` overlaps input `x`");
    EXPECT_REFUSED(t.outputs[0].data = t.b + 3, ORC_USAGE, "output `y` overlaps input `b`");
    EXPECT_REFUSED(t.outputs[1].data = t.x, ORC_USAGE, "output `s` overlaps input `x`");
    EXPECT_REFUSED(t.outputs[1].data = t.y + 7, ORC_USAGE, "output `y` overlaps output `s`");
    static const int64_t reversed[] = {-4, -1};
    EXPECT_REFUSED((t.outputs[1].strides = reversed, t.outputs[1].data = t.y + 8), ORC_USAGE, "overlaps output `s`");

    set_up(&t);
    EXPECT_OK(run_on(executable, &t));
    orc_context_destroy(context);
}

static void *read_file(const char *name, size_t *size) {
    FILE *file = fopen(name, "rb");
    EXPECT(file && fseek(file, 0, SEEK_END) == 0);
    *size = (size_t)ftell(file);
    void *bytes = malloc(*size);
    rewind(file);
    EXPECT(bytes && fread(bytes, 1, *size, file) == *size && fclose(file) == 0);
    return bytes;
}

// Saves, loads and compiles in every way; all compute the same.
static void check_files(const char *folder, const orc_options *options, const orc_executable *executable) {
    struct tensors first;
    set_up(&first);
    EXPECT_OK(run_on(executable, &first));
    EXPECT(first.y[0] != 0 && first.s[7] != 0);

    const char *saved = path(folder, "saved.orc"), *compiled = path(folder, "compiled.orc");
    EXPECT_ERROR(orc_save(executable, path(folder, "no-folder/a.orc")), ORC_INVALID, "no-folder");
    EXPECT_OK(orc_save(executable, saved));
    EXPECT_OK(orc_compile_to_file(path(folder, "model.onnx"), options, compiled));
    size_t orc_size, onnx_size;
    char *orc = read_file(saved, &orc_size), *onnx = read_file(path(folder, "model.onnx"), &onnx_size);

    orc_executable *others[4];
    EXPECT_OK(orc_load_file(saved, NULL, &others[0]));
    EXPECT_OK(orc_load_file(compiled, options, &others[1]));
    EXPECT_OK(orc_load_bytes(orc, orc_size, options, &others[2]));
    EXPECT_OK(orc_compile_bytes(onnx, onnx_size, NULL, options, &others[3]));
    orc[orc_size / 2] ^= 1;
    orc_executable *damaged;
    EXPECT(orc_load_bytes(orc, orc_size - 64, NULL, &damaged) == ORC_INVALID && damaged == NULL);
    free(orc);
    free(onnx);
    EXPECT_OK(orc_save(others[2], saved));
    for (size_t i = 0; i < 4; i++) {
        struct tensors again;
        set_up(&again);
        EXPECT_OK(run_on(others[i], &again));
        EXPECT(memcmp(first.y, again.y, sizeof first.y) == 0 && memcmp(first.s, again.s, sizeof first.s) == 0);
        // A context outlives its executable.
        orc_context *context;
        EXPECT_OK(orc_context_create(others[i], &context));
        orc_executable_destroy(others[i]);
        set_up(&again);
        EXPECT_OK(orc_context_run(context, again.inputs, 2, again.outputs, 2));
        EXPECT(memcmp(first.s, again.s, sizeof first.s) == 0);
        orc_context_destroy(context);
    }
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    const char *folder = argv[1];
    EXPECT(orc_abi_version() == ORC_ABI_VERSION && strchr(orc_version(), '.') != NULL);
    EXPECT(strcmp(orc_last_error(), "") == 0);
    check_nulls();
    orc_options *options = options_for(folder);
    check_models(folder, options);
    orc_executable *executable;
    EXPECT_OK(orc_compile_file(path(folder, "model.onnx"), options, &executable));
    check_ports(executable);
    check_tensors(executable);
    check_files(folder, options, executable);
    orc_options_destroy(options);
    orc_executable_destroy(executable);
    return 0;
}
