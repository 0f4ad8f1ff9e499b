// Which sentences say the same: MiniLM with its learnt weights, compiled before.
//
//   orchestrion compile minilm/model.onnx -o minilm.orc        # `scripts/zoo.sh minilm` makes the model
//   python3 -m zipfile -e cases/minilm.npz minilm              # input_ids.npy, attention_mask.npy, sentence.npy
//   cc sentences.c $(pkg-config --cflags --libs orchestrion) -o sentences && ./sentences minilm.orc minilm
#include <orchestrion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCES = 16, TOKENS = 128, WIDTH = 384 };

// The elements of a NumPy file: they follow a header whose length stands in bytes 8 and 9.
static void *read_npy(const char *folder, const char *name, size_t *size_bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    FILE *file = fopen(path, "rb");
    unsigned char start[10];
    if (!file || fread(start, 1, sizeof start, file) != sizeof start || memcmp(start, "\x93NUMPY\x01", 7) != 0) {
        fprintf(stderr, "error: %s is no NumPy file\n", path);
        exit(ORC_INVALID);
    }
    long header = 10 + start[8] + 256 * start[9];
    fseek(file, 0, SEEK_END);
    *size_bytes = (size_t)(ftell(file) - header);
    void *data = malloc(*size_bytes);
    fseek(file, header, SEEK_SET);
    if (!data || fread(data, 1, *size_bytes, file) != *size_bytes) {
        fprintf(stderr, "error: cannot read %s\n", path);
        exit(ORC_MACHINE);
    }
    fclose(file);
    return data;
}

static void check(orc_status status) {
    if (status != ORC_OK) {
        fprintf(stderr, "error: %s\n", orc_last_error());
        exit(status);
    }
}

static float dot(const float *a, const float *b) {
    float sum = 0;
    for (size_t i = 0; i < WIDTH; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

// A sentence is an array of UTF-32 code points that ends with zeros; these are ASCII.
static void print_sentence(const uint32_t *text, size_t length) {
    for (size_t i = 0; i < length && text[i] != 0; i++) {
        putchar((int)text[i]);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL FOLDER\n", argv[0]);
        return ORC_USAGE;
    }
    size_t ids_bytes, mask_bytes, text_bytes;
    int64_t *ids = read_npy(argv[2], "input_ids", &ids_bytes);
    int64_t *mask = read_npy(argv[2], "attention_mask", &mask_bytes);
    uint32_t *text = read_npy(argv[2], "sentence", &text_bytes);
    size_t text_length = text_bytes / SENTENCES / sizeof *text;
    if (ids_bytes != SENTENCES * TOKENS * sizeof *ids || mask_bytes != ids_bytes) {
        fprintf(stderr, "error: %d sentences of %d tokens are expected\n", SENTENCES, TOKENS);
        return ORC_INVALID;
    }

    orc_executable *model;
    check(orc_load_file(argv[1], NULL, &model));
    static float vectors[SENTENCES][WIDTH];
    const int64_t tokens_shape[] = {1, TOKENS}, vector_shape[] = {1, WIDTH};
    for (size_t i = 0; i < SENTENCES; i++) {
        orc_tensor inputs[] = {{ids + i * TOKENS, ORC_I64, 2, tokens_shape, NULL},
                               {mask + i * TOKENS, ORC_I64, 2, tokens_shape, NULL}};
        orc_tensor output = {vectors[i], ORC_F32, 2, vector_shape, NULL};
        check(orc_run(model, inputs, 2, &output, 1));
    }
    orc_executable_destroy(model);

    for (size_t i = 0; i < SENTENCES; i++) {
        size_t nearest = i == 0;
        for (size_t j = 0; j < SENTENCES; j++) {
            if (j != i && dot(vectors[i], vectors[j]) > dot(vectors[i], vectors[nearest])) {
                nearest = j;
            }
        }
        // The model's vectors are of length one.
        printf("%.2f  ", (double)dot(vectors[i], vectors[nearest]));
        print_sentence(text + i * text_length, text_length);
        printf("  ~  ");
        print_sentence(text + nearest * text_length, text_length);
        printf("\n");
    }
    free(ids);
    free(mask);
    free(text);
    return ORC_OK;
}
