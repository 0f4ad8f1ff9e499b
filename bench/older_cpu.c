/* Answers CPUID as a processor with AVX2 and FMA and nothing beyond would: loaded with LD_PRELOAD into programs in which `older_cpu.py` put an
 * invalid instruction (UD2, 0F 0B) in the place of each CPUID (0F A2). */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

#define BIT(n) (1u << (n))

static void answer(int signal_number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *instruction = (const uint8_t *)registers[REG_RIP];
    (void)signal_number, (void)info;
    if (instruction[0] != 0x0f || instruction[1] != 0x0b) {
        signal(SIGILL, SIG_DFL);
        return;
    }
    uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX], a, b, c, d;
    __cpuid_count(leaf, part, a, b, c, d);
    if (leaf == 7 && part == 0) {
        /* AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL */
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
        /* AVX-512 VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
        /* AVX-512 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8 */
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
    } else if (leaf == 7 && part == 1) {
        /* AVX-VNNI, AVX-512 BF16, AMX-FP16, AVX-IFMA */
        a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));
        /* AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX, AVX-VNNI-INT16, AVX10 */
        d &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19));
    } else if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) {
        /* AMX tiles, AVX10 */
        a = b = c = d = 0;
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

__attribute__((constructor(101))) static void answer_from_now_on(void) {
    struct sigaction action = {0};
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGILL, &action, 0);
}
