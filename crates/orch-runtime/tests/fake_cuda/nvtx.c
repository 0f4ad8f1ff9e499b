// NVTX without a profiler, for tests: what is pushed and popped goes to a log, and to standard error if the environment variable
// FAKE_NVTX is set.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char log_text[1 << 16];
static int depth;

static void note(const char *what, const char *name) {
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%*s%s%s\n", 2 * depth, "", what, name);
    if (getenv("FAKE_NVTX")) fputs(log_text + used, stderr);
}
int nvtxRangePushA(const char *name) { note("begin ", name); return depth++; }
int nvtxRangePop(void) { if (!depth) abort(); --depth; note("end", ""); return depth; }
const char *fake_log(void) { return log_text; }
void fake_clear_log(void) { log_text[0] = 0; }
