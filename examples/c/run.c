// Runs a model in two threads at the same time, each with a context of its own, and prints the outputs of both.
//
//   cc run.c $(pkg-config --cflags --libs orchestrion) -pthread -o run
//   ./run MODEL [OPTION VALUE]...          MODEL: an .orc file, or an ONNX file, which is compiled
//
// The elements of an input are 0, 1/8, .. 7/8, 0, ..; integers 0, 1, 0, ..
#include <orchestrion.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 2 };

static void check(orc_status status) {
    if (status != ORC_OK) {
        fprintf(stderr, "error: %s\n", orc_last_error());
        exit(status);
    }
}

// Memory for a tensor of the model, zeroed.
static orc_tensor tensor_for(const orc_port *port) {
    void *data = calloc(port->size_bytes + 1, 1);
    if (!data) {
        exit(ORC_MACHINE);
    }
    return (orc_tensor){.data = data, .dtype = port->dtype, .rank = port->rank, .shape = port->shape};
}

static size_t elements(const orc_port *port) {
    size_t count = 1;
    for (size_t dim = 0; dim < port->rank; dim++) {
        count *= (size_t)port->shape[dim];
    }
    return count;
}

static void fill(const orc_port *port, void *data) {
    size_t count = elements(port);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = port->size_bytes / count;
        int64_t number = (int64_t)(i % 2);
        switch (port->dtype) {
        case ORC_F32:
            ((float *)data)[i] = (float)(i % 8) / 8;
            break;
        case ORC_F64:
            ((double *)data)[i] = (double)(i % 8) / 8;
            break;
        case ORC_F16:
        case ORC_BF16:
            break; // Zeros.
        default:   // The low bytes of an integer come first.
            memcpy((char *)data + i * bytes, &number, bytes);
        }
    }
}

static void print(const orc_port *port, const void *data) {
    printf("%s:", port->name);
    size_t count = elements(port);
    for (size_t i = 0; i < count; i++) {
        switch (port->dtype) {
        case ORC_F32:
            printf(" %.9g", (double)((const float *)data)[i]);
            break;
        case ORC_F64:
            printf(" %.17g", ((const double *)data)[i]);
            break;
        case ORC_I64:
            printf(" %lld", (long long)((const int64_t *)data)[i]);
            break;
        default:
            printf(" ?");
        }
    }
    printf("\n");
}

// What a thread works on.
struct job {
    orc_executable *executable;
    size_t inputs, outputs;
    orc_tensor *input, *output;
    orc_status status;
    char error[256];
};

static void *run(void *argument) {
    struct job *job = argument;
    orc_context *context = NULL;
    job->status = orc_context_create(job->executable, &context);
    if (job->status == ORC_OK) {
        job->status = orc_context_run(context, job->input, job->inputs, job->output, job->outputs);
    }
    if (job->status != ORC_OK) {
        // The text is this thread's.
        snprintf(job->error, sizeof job->error, "%s", orc_last_error());
    }
    orc_context_destroy(context);
    return NULL;
}

static orc_executable *open_model(const char *path, const orc_options *options) {
    orc_executable *executable;
    size_t length = strlen(path);
    bool is_compiled = length > 4 && strcmp(path + length - 4, ".orc") == 0;
    check(is_compiled ? orc_load_file(path, options, &executable) : orc_compile_file(path, options, &executable));
    return executable;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc % 2 != 0) {
        fprintf(stderr, "usage: %s MODEL [OPTION VALUE]...\n", argv[0]);
        return ORC_USAGE;
    }
    orc_options *options;
    check(orc_options_create(&options));
    for (int i = 2; i < argc; i += 2) {
        check(orc_options_set(options, argv[i], argv[i + 1]));
    }
    orc_executable *executable = open_model(argv[1], options);
    orc_options_destroy(options);

    struct job jobs[THREADS];
    pthread_t threads[THREADS];
    for (size_t thread = 0; thread < THREADS; thread++) {
        struct job *job = &jobs[thread];
        *job = (struct job){.executable = executable,
                            .inputs = orc_input_count(executable),
                            .outputs = orc_output_count(executable)};
        job->input = calloc(job->inputs + 1, sizeof *job->input);
        job->output = calloc(job->outputs + 1, sizeof *job->output);
        if (!job->input || !job->output) {
            return ORC_MACHINE;
        }
        orc_port port;
        for (size_t i = 0; i < job->inputs; i++) {
            check(orc_input(executable, i, &port));
            job->input[i] = tensor_for(&port);
            fill(&port, job->input[i].data);
        }
        for (size_t i = 0; i < job->outputs; i++) {
            check(orc_output(executable, i, &port));
            job->output[i] = tensor_for(&port);
        }
        if (pthread_create(&threads[thread], NULL, run, job) != 0) {
            return ORC_MACHINE;
        }
    }

    int status = ORC_OK;
    for (size_t thread = 0; thread < THREADS; thread++) {
        struct job *job = &jobs[thread];
        pthread_join(threads[thread], NULL);
        if (job->status != ORC_OK) {
            fprintf(stderr, "error: %s\n", job->error);
            status = job->status;
        }
        for (size_t i = 0; i < job->outputs; i++) {
            orc_port port;
            check(orc_output(executable, i, &port));
            if (job->status == ORC_OK) {
                print(&port, job->output[i].data);
            }
            free(job->output[i].data);
        }
        for (size_t i = 0; i < job->inputs; i++) {
            free(job->input[i].data);
        }
        free(job->input);
        free(job->output);
    }
    orc_executable_destroy(executable);
    return status;
}
