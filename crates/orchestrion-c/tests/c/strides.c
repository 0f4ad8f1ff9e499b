// Inputs and outputs that do not lie row-major, or at odd addresses.
//
//   strides MODEL.orc
#include "expect.h"

// The run gives what the first one gave.
static void check_same(const struct tensors *first, const float *y, int64_t row, int64_t column) {
    for (int64_t i = 0; i < 2; i++) {
        for (int64_t j = 0; j < 4; j++) {
            EXPECT(y[i * row + j * column] == first->y[i * 4 + j]);
        }
    }
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    orc_executable *executable;
    EXPECT_OK(orc_load_file(argv[1], NULL, &executable));
    struct tensors first, t;
    set_up(&first);
    EXPECT_OK(run_on(executable, &first));

    // Columns first, on both sides, with a gap after each column of the output.
    set_up(&t);
    float columns[6], gaps[12];
    for (int i = 0; i < 6; i++) {
        columns[i % 3 * 2 + i / 3] = t.x[i];
    }
    for (int i = 0; i < 12; i++) {
        gaps[i] = -1;
    }
    const int64_t transposed[] = {1, 2}, gapped[] = {1, 3};
    t.inputs[0].data = columns;
    t.inputs[0].strides = transposed;
    t.outputs[0].data = gaps;
    t.outputs[0].strides = gapped;
    EXPECT_OK(run_on(executable, &t));
    check_same(&first, gaps, 1, 3);
    EXPECT(gaps[2] == -1 && gaps[5] == -1 && gaps[8] == -1 && gaps[11] == -1);
    EXPECT(memcmp(t.s, first.s, sizeof t.s) == 0);

    // Backwards on both sides.
    set_up(&t);
    float backwards[6], reversed[8];
    for (int i = 0; i < 6; i++) {
        backwards[5 - i] = t.x[i];
    }
    const int64_t from_end[] = {-3, -1}, to_start[] = {-4, -1};
    t.inputs[0].data = backwards + 5;
    t.inputs[0].strides = from_end;
    t.outputs[0].data = reversed + 7;
    t.outputs[0].strides = to_start;
    EXPECT_OK(run_on(executable, &t));
    check_same(&first, reversed + 7, -4, -1);

    // One element for all of an input.
    set_up(&t);
    for (int i = 0; i < 4; i++) {
        t.b[i] = 2;
    }
    EXPECT_OK(run_on(executable, &t));
    struct tensors broadcast;
    set_up(&broadcast);
    const int64_t none[] = {0};
    broadcast.b[0] = 2;
    broadcast.inputs[1].strides = none;
    EXPECT_OK(run_on(executable, &broadcast));
    EXPECT(memcmp(t.y, broadcast.y, sizeof t.y) == 0);

    // Addresses that are no multiple of anything, and strides that say what NULL says.
    set_up(&t);
    char from[1 + sizeof t.x], to[1 + sizeof t.y];
    memcpy(from + 1, t.x, sizeof t.x);
    const int64_t row_major[] = {4, 1};
    t.inputs[0].data = from + 1;
    t.outputs[0].data = to + 1;
    t.outputs[1].strides = row_major;
    EXPECT_OK(run_on(executable, &t));
    EXPECT(memcmp(to + 1, first.y, sizeof first.y) == 0 && memcmp(t.s, first.s, sizeof t.s) == 0);

    // Outputs beside each other in one block.
    float block[16];
    set_up(&t);
    t.outputs[0].data = block;
    t.outputs[1].data = block + 8;
    EXPECT_OK(run_on(executable, &t));
    EXPECT(memcmp(block, first.y, sizeof first.y) == 0 && memcmp(block + 8, first.s, sizeof first.s) == 0);
    orc_executable_destroy(executable);
    return 0;
}
