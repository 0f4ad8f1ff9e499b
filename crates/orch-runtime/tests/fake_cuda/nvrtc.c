// An NVRTC that compiles nothing, for tests: what it makes of a source is a module of the fake driver with the source's
// kernels. With the environment variable FAKE_NVRTC compiling fails with this status.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvrtcResult;
typedef struct { char module[1024]; } Program;

static int status(void) { return getenv("FAKE_NVRTC") ? atoi(getenv("FAKE_NVRTC")) : 0; }
static const char *said(void) { return status() == 6 ? "kernel.cu(7): error: expected a `;`\n" : ""; }

nvrtcResult nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
const char *nvrtcGetErrorString(nvrtcResult code) {
    switch (code) {
        case 6: return "NVRTC_ERROR_COMPILATION";
        case 7: return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
        case 11: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
    return 0;
}
nvrtcResult nvrtcGetNumSupportedArchs(int *count) { *count = 2; return 0; }
nvrtcResult nvrtcGetSupportedArchs(int *archs) { archs[0] = 80; archs[1] = 90; return 0; }
nvrtcResult nvrtcCreateProgram(Program **made, const char *text, const char *name, int headers, const char *const *contents,
                               const char *const *names) {
    (void)name; (void)headers; (void)contents; (void)names;
    Program *program = calloc(1, sizeof *program);
    strcpy(program->module, "fake\n");
    // A kernel's name stands before the parenthesis of its parameters, after that of its launch bounds.
    for (const char *at = text; (at = strstr(at, "__launch_bounds__(")); ) {
        const char *start = at = strchr(at, ')') + 1;
        start += strspn(start, " \n");
        at = strchr(start, '(');
        size_t used = strlen(program->module);
        snprintf(program->module + used, sizeof program->module - used, "%.*s\n", (int)(at - start), start);
    }
    *made = program;
    return 0;
}
nvrtcResult nvrtcDestroyProgram(Program **program) { free(*program); *program = 0; return 0; }
nvrtcResult nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    (void)program; (void)count; (void)options;
    return status();
}
nvrtcResult nvrtcGetProgramLogSize(Program *program, size_t *size) { (void)program; *size = strlen(said()) + 1; return 0; }
nvrtcResult nvrtcGetProgramLog(Program *program, char *log) { (void)program; strcpy(log, said()); return 0; }
nvrtcResult nvrtcGetCUBINSize(Program *program, size_t *size) { *size = strlen(program->module); return 0; }
nvrtcResult nvrtcGetCUBIN(Program *program, char *cubin) { memcpy(cubin, program->module, strlen(program->module)); return 0; }
