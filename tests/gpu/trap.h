/* Mistakes of a process's own kernels, after which it has no use of its GPU any more. */
#ifndef STRAIT_TESTS_GPU_TRAP_H
#define STRAIT_TESTS_GPU_TRAP_H

#ifdef __cplusplus
extern "C" {
#endif

enum trap_kind { TRAP_INSTRUCTION, TRAP_ADDRESS, TRAPS };

/* What the driver says of it. */
const char *trap_here(int device, enum trap_kind kind);

#ifdef __cplusplus
}
#endif
#endif
