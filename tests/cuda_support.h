/* Running batches on a device beside the scalar variant on the host. */
#ifndef STRAIT_TESTS_CUDA_SUPPORT_H
#define STRAIT_TESTS_CUDA_SUPPORT_H

#include <cuda_runtime_api.h>

#include "tests/support.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { BATCH_MAX = 4, DEVICE_SLACK = 4096 };

/* What all calls share. Scratch is used by one call after another, never cleaned between them. */
struct device {
    const struct strait_codec *codec;
    const struct strait_codebook *codebook;
    cudaStream_t stream;
    uint8_t *scratch, *tables;
    size_t scratch_size;
    bool exact; /* every buffer is an allocation of just its size: for a memory checker */
};

/* Prints why and returns false when there is nothing to test with. */
bool device_init(struct device *device, const struct strait_codebook *codebook);
void device_fini(struct device *device);

/* Before a launch, for copies to its memory and fills: they may be under way still when their calls return, and the
 * stream does not wait for them. */
void device_filled(void);

/* For everything that is in the stream. A launch that does not end fails the program instead of keeping it waiting. */
void device_wait(const struct device *device);

/* One chunk of a batch. The scalar variant encodes `src` and decodes to `dst`; the device does the same with copies. */
struct trial {
    struct asked asked;
    struct layout src, dst;
    uint32_t ids[16], select[VERDICT_PAGES];
    bool has_ids, has_select, copied_metadata;
    uint32_t shift; /* of all device pages from a round address */
    bool at_most;   /* decoded with STRAIT_DECODE_AT_MOST */
    uint32_t room;  /* bytes after the chunk that are told to belong to it */

    uint8_t *chunk; /* malloc()ed; NULL when there is none */
    uint64_t chunk_size;
    struct verdict encoded, decoded; /* of the scalar variant */
};

/* How a call runs; chunks and pages do not depend on it. */
struct manner {
    uint32_t sm_budget;
    enum strait_caching caching;
};

/* Both run all trials and require that nothing differs: chunks, verdicts, pages that are OK, bytes around pages. The
 * trials of an encoding batch are alike in `asked`. */
void compare_encoding(const struct device *device, struct trial *trials, uint32_t count, struct manner manner);
void compare_decoding(const struct device *device, struct trial *trials, uint32_t count, struct manner manner);

#endif
