// One executable, eight threads, a hundred runs each, while contexts come and go.
//
//   threads MODEL.orc
#include "expect.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, RUNS = 100 };

static orc_executable *executable;
static orc_context *common;
static struct tensors expected[THREADS];
static atomic_int refused;

// Inputs that differ by thread.
static void set_up_for(struct tensors *tensors, size_t thread) {
    set_up(tensors);
    tensors->x[0] = (float)thread;
}

static void *work(void *argument) {
    size_t thread = (size_t)((struct tensors *)argument - expected);
    const struct tensors *right = &expected[thread];
    orc_context *context = NULL;
    for (int run = 0; run < RUNS; run++) {
        struct tensors t;
        set_up_for(&t, thread);
        if (run % 7 == 0) {
            orc_context_destroy(context);
            EXPECT_OK(orc_context_create(executable, &context));
        }
        orc_status status;
        switch (run % 3) {
        case 0:
            status = run_on(executable, &t);
            break;
        case 1:
            status = orc_context_run(context, t.inputs, 2, t.outputs, 2);
            break;
        default:
            // All threads want this one: it is refused or right.
            status = orc_context_run(common, t.inputs, 2, t.outputs, 2);
            if (status == ORC_USAGE) {
                EXPECT(strstr(orc_last_error(), "runs in another thread") != NULL);
                atomic_fetch_add(&refused, 1);
                continue;
            }
        }
        EXPECT(status == ORC_OK);
        EXPECT(memcmp(t.y, right->y, sizeof t.y) == 0 && memcmp(t.s, right->s, sizeof t.s) == 0);
    }
    orc_context_destroy(context);
    // The text of errors is a thread's own.
    EXPECT(orc_options_set(NULL, "a", "b") == ORC_USAGE && strstr(orc_last_error(), "`options`") != NULL);
    return NULL;
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    EXPECT_OK(orc_load_file(argv[1], NULL, &executable));
    EXPECT_OK(orc_context_create(executable, &common));
    pthread_t threads[THREADS];
    for (size_t thread = 0; thread < THREADS; thread++) {
        set_up_for(&expected[thread], thread);
        EXPECT_OK(run_on(executable, &expected[thread]));
    }
    for (size_t thread = 0; thread < THREADS; thread++) {
        EXPECT(pthread_create(&threads[thread], NULL, work, &expected[thread]) == 0);
    }
    for (size_t thread = 0; thread < THREADS; thread++) {
        EXPECT(pthread_join(threads[thread], NULL) == 0);
    }
    EXPECT(strcmp(orc_last_error(), "") == 0);
    printf("%d runs found the common context taken\n", refused);
    orc_executable_destroy(executable);
    orc_context_destroy(common);
    return 0;
}
