// Runs on tensors of a GPU, by a driver whose memory is the host's: the model's output y is its input x.
//
//   device FOLDER    with model.onnx, libcuda.so and libnvrtc.so
#include "expect.h"

static char path[4096];

static const char *in(const char *folder, const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    orc_options *options;
    EXPECT_OK(orc_options_create(&options));
    EXPECT_OK(orc_options_set(options, "target", "cuda:0"));
    EXPECT_OK(orc_options_set(options, "calibrate", "off"));
    EXPECT_OK(orc_options_set(options, "cuda-driver", in(argv[1], "libcuda.so")));
    EXPECT_OK(orc_options_set(options, "nvrtc", in(argv[1], "libnvrtc.so")));
    EXPECT_OK(orc_options_set(options, "cache-dir", in(argv[1], "cache")));
    orc_executable *executable;
    EXPECT_OK(orc_compile_file(in(argv[1], "model.onnx"), options, &executable));
    orc_options_destroy(options);

    const int64_t shape[] = {3, 8}, columns[] = {1, 3}, other[] = {3, 7};
    _Alignas(256) static float x[24], y[24], z[24];
    orc_tensor input = {x, ORC_F32, 2, shape, NULL};
    orc_tensor outputs[] = {{y, ORC_F32, 2, shape, NULL}, {z, ORC_F32, 2, shape, NULL}};
    for (int run = 0; run < 3; run++) {
        for (int i = 0; i < 24; i++) {
            x[i] = (float)(run + i);
        }
        EXPECT_OK(orc_run_on_device(executable, NULL, &input, 1, outputs, 2, NULL));
        EXPECT(memcmp(x, y, sizeof x) == 0);
    }
    void *scratch = aligned_alloc(256, (orc_scratch_bytes(executable) + 511) / 256 * 256);
    EXPECT_OK(orc_run_on_device(executable, NULL, &input, 1, outputs, 2, scratch));
    free(scratch);

    input.strides = columns;
    EXPECT_ERROR(orc_run_on_device(executable, NULL, &input, 1, outputs, 2, NULL), ORC_INVALID, "row-major without gaps");
    input.strides = NULL;
    input.shape = other;
    EXPECT_ERROR(orc_run_on_device(executable, NULL, &input, 1, outputs, 2, NULL), ORC_INVALID, "input `x` is f32[3, 7]");
    input.shape = shape;
    EXPECT_ERROR(orc_run_on_device(executable, NULL, &input, 1, outputs, 1, NULL), ORC_INVALID, "1 outputs are given");
    EXPECT_ERROR(orc_run_on_device(NULL, NULL, &input, 1, outputs, 2, NULL), ORC_USAGE, "`executable` is NULL");
    orc_executable_destroy(executable);
    return 0;
}
