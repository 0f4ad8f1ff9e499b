// What the test programs share: checks that name their line, and the model that they run.
//
// The model has inputs x: f32[2, 3] and b: f32[4] and outputs y = x w + b: f32[2, 4] and s = softmax(y): f32[2, 4].
#ifndef EXPECT_H
#define EXPECT_H

#include <orchestrion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #condition, orc_last_error());          \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define EXPECT_OK(call) EXPECT((call) == ORC_OK)

// The call ends with a status, and a text with these words.
#define EXPECT_ERROR(call, status, words)                                                                              \
    do {                                                                                                               \
        EXPECT((call) == (status));                                                                                    \
        EXPECT(strstr(orc_last_error(), (words)) != NULL);                                                             \
    } while (0)

static const int64_t X_SHAPE[] = {2, 3};
static const int64_t B_SHAPE[] = {4};
static const int64_t Y_SHAPE[] = {2, 4};

// Tensors for one run.
struct tensors {
    float x[6], b[4], y[8], s[8];
    orc_tensor inputs[2], outputs[2];
};

static inline void set_up(struct tensors *tensors) {
    for (int i = 0; i < 6; i++) {
        tensors->x[i] = (float)i / 8;
    }
    for (int i = 0; i < 4; i++) {
        tensors->b[i] = (float)i;
    }
    memset(tensors->y, 0, sizeof tensors->y);
    memset(tensors->s, 0, sizeof tensors->s);
    tensors->inputs[0] = (orc_tensor){tensors->x, ORC_F32, 2, X_SHAPE, NULL};
    tensors->inputs[1] = (orc_tensor){tensors->b, ORC_F32, 1, B_SHAPE, NULL};
    tensors->outputs[0] = (orc_tensor){tensors->y, ORC_F32, 2, Y_SHAPE, NULL};
    tensors->outputs[1] = (orc_tensor){tensors->s, ORC_F32, 2, Y_SHAPE, NULL};
}

static inline orc_status run_on(const orc_executable *executable, const struct tensors *tensors) {
    return orc_run(executable, tensors->inputs, 2, tensors->outputs, 2);
}

#endif
