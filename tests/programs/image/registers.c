// SPDX-License-Identifier: Apache-2.0
// Registers that hold their values over a long loop: general ones, the x87 stack and its control word, MXCSR, AVX and,
// where there is any, AVX-512.
#include "image.h"

static void x87(void)
{
    unsigned short word = 0x0e7f, is; // round to zero, double extended
    long double result;
    __asm__ volatile("fldcw %0" : : "m"(word));
    __asm__ volatile("fldpi\n fld1\n fldl2e\n fldz\n"
                     "mov $3000000, %%rcx\n 1: dec %%rcx\n jnz 1b\n"
                     "faddp\n faddp\n faddp\n fstpt %0\n fnstcw %1\n"
                     : "=m"(result), "=m"(is) : : "rcx", "cc");
    CHECK(is == word, "the x87 control word is %x", is);
    CHECK(result > 5.5842L && result < 5.5843L, "the x87 stack: %.12Lf", result);
    __asm__ volatile("fninit");
}

static void mxcsr(void)
{
    unsigned word = 0x7f80, is, normal = 0x1f80; // round to zero, all masked
    __asm__ volatile("ldmxcsr %1\n mov $3000000, %%rcx\n 1: dec %%rcx\n jnz 1b\n stmxcsr %0\n ldmxcsr %2\n"
                     : "=m"(is) : "m"(word), "m"(normal) : "rcx", "cc");
    CHECK(is == word, "MXCSR is %x", is);
}

__attribute__((target("avx2"))) static void avx(void)
{
    uint64_t in[4] = {1, 2, 3, 0xfedcba9876543210}, out[8];
    __asm__ volatile("vmovdqu (%0), %%ymm0\n vmovdqu (%0), %%ymm15\n"
                     "mov $3000000, %%rcx\n 1: dec %%rcx\n jnz 1b\n"
                     "vmovdqu %%ymm0, (%1)\n vmovdqu %%ymm15, 32(%1)\n vzeroupper\n"
                     : : "r"(in), "r"(out) : "rcx", "cc", "memory", "xmm0", "xmm15");
    CHECK(memcmp(in, out, 32) == 0 && memcmp(in, out + 4, 32) == 0, "AVX registers");
}

__attribute__((target("avx512f"))) static void avx512(void)
{
    uint64_t in[8], out[9];
    for (int i = 0; i < 8; i++)
        in[i] = mixed(8, (uint64_t)i);
    __asm__ volatile("vmovdqu64 (%0), %%zmm31\n mov $0xa5a5, %%eax\n kmovw %%eax, %%k5\n"
                     "mov $3000000, %%rcx\n 1: dec %%rcx\n jnz 1b\n"
                     "vmovdqu64 %%zmm31, (%1)\n kmovw %%k5, %%eax\n mov %%rax, 64(%1)\n"
                     : : "r"(in), "r"(out) : "rax", "rcx", "cc", "memory");
    CHECK(memcmp(in, out, 64) == 0 && (out[8] & 0xffff) == 0xa5a5, "AVX-512 registers");
}

static void general(void)
{
    uint64_t sum;
    __asm__ volatile("mov $1, %%rbx\n mov $2, %%rdx\n mov $3, %%rsi\n mov $4, %%rdi\n mov $5, %%r8\n mov $6, %%r9\n"
                     "mov $7, %%r10\n mov $8, %%r11\n mov $9, %%r12\n mov $10, %%r13\n mov $11, %%r14\n mov $12, %%r15\n"
                     "mov $3000000, %%rcx\n 1: dec %%rcx\n jnz 1b\n xor %%rax, %%rax\n std\n pushf\n pop %%rcx\n cld\n"
                     "and $0x400, %%rcx\n add %%rcx, %%rax\n"
                     "add %%rbx, %%rax\n add %%rdx, %%rax\n add %%rsi, %%rax\n add %%rdi, %%rax\n add %%r8, %%rax\n"
                     "add %%r9, %%rax\n add %%r10, %%rax\n add %%r11, %%rax\n add %%r12, %%rax\n add %%r13, %%rax\n"
                     "add %%r14, %%rax\n add %%r15, %%rax\n"
                     : "=a"(sum) : : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
                       "r15", "cc", "memory");
    CHECK(sum == 78 + 0x400, "general registers: %llu", (unsigned long long)sum);
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS * 2; i++) {
        x87();
        mxcsr();
        general();
        if (__builtin_cpu_supports("avx2"))
            avx();
        if (__builtin_cpu_supports("avx512f"))
            avx512();
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0);
    }
    return finish("registers", hash);
}
