// An NVRTC that compiles nothing, for tests: what it makes of a source is a module of the fake driver with the source's
// kernels, or PTX of the version FAKE_PTX (9.0). With the environment variable FAKE_NVRTC compiling fails with this status.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvrtcResult;
typedef struct { char names[1024], arch[32], code[2048]; } Program;

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
    // A kernel's name stands before the parenthesis of its parameters, after that of its launch bounds.
    for (const char *at = text; (at = strstr(at, "__launch_bounds__(")); ) {
        const char *start = at = strchr(at, ')') + 1;
        start += strspn(start, " \n");
        at = strchr(start, '(');
        size_t used = strlen(program->names);
        snprintf(program->names + used, sizeof program->names - used, "%.*s\n", (int)(at - start), start);
    }
    *made = program;
    return 0;
}
nvrtcResult nvrtcDestroyProgram(Program **program) { free(*program); *program = 0; return 0; }
nvrtcResult nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    for (int i = 0; i < count; ++i) sscanf(options[i], "--gpu-architecture=%31s", program->arch);
    return status();
}
nvrtcResult nvrtcGetProgramLogSize(Program *program, size_t *size) { (void)program; *size = strlen(said()) + 1; return 0; }
nvrtcResult nvrtcGetProgramLog(Program *program, char *log) { (void)program; strcpy(log, said()); return 0; }
// As the real one, it makes cubins of architectures and PTX of virtual ones.
static const char *cubin(Program *program) {
    if (strncmp(program->arch, "sm_", 3)) return "";
    snprintf(program->code, sizeof program->code, "fake %s\n%s", program->arch, program->names);
    return program->code;
}
static const char *ptx(Program *program) {
    int arch;
    const char *version = getenv("FAKE_PTX") ? getenv("FAKE_PTX") : "9.0";
    if (sscanf(program->arch, "compute_%d", &arch) != 1) return "";
    int used = snprintf(program->code, sizeof program->code, "//\n// Generated\n//\n.version %s\n.target sm_%d\n", version, arch);
    for (const char *name = program->names; *name; name += strcspn(name, "\n") + 1)
        used += snprintf(program->code + used, sizeof program->code - used, ".visible .entry %.*s(\n)\n", (int)strcspn(name, "\n"), name);
    return program->code;
}
nvrtcResult nvrtcGetCUBINSize(Program *program, size_t *size) { *size = strlen(cubin(program)); return 0; }
nvrtcResult nvrtcGetCUBIN(Program *program, char *code) { memcpy(code, cubin(program), strlen(cubin(program))); return 0; }
nvrtcResult nvrtcGetPTXSize(Program *program, size_t *size) { *size = strlen(ptx(program)) + 1; return 0; }
nvrtcResult nvrtcGetPTX(Program *program, char *code) { strcpy(code, ptx(program)); return 0; }
