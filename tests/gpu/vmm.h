/* Device memory of the kind that is exported as a descriptor. */
#ifndef STRAIT_TESTS_GPU_VMM_H
#define STRAIT_TESTS_GPU_VMM_H

#include <stddef.h>
#include <stdint.h>

/* At least *size bytes, which become what was taken, mapped for all that the process does with this device. *fd: the
 * exported descriptor. */
uint8_t *vmm_alloc(int device, size_t *size, int *fd);

#endif
