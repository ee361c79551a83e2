/* Runs batches on a device and compares them with the scalar variant on the host. */
#ifndef STRAIT_TESTS_CUDA_SUPPORT_H
#define STRAIT_TESTS_CUDA_SUPPORT_H

#include <cuda_runtime_api.h>

#include "tests/support.h"

#define require_cuda(call) require((call) == cudaSuccess)

enum { BATCH_MAX = 4, DEVICE_SLACK = 4096 };

/* Shared by all calls. One call after another uses the scratch memory, which is never cleaned in between. */
struct device {
    const struct strait_codec *codec;
    const struct strait_codebook *codebook;
    cudaStream_t stream;
    uint8_t *scratch, *tables;
    size_t scratch_size;
    bool exact; /* every buffer is an allocation of just its size: for a memory checker */
};

/* Prints why and returns false when there is no device to test with. */
bool device_init(struct device *device, const struct strait_codebook *codebook);
void device_fini(struct device *device);

/* Call it before a launch, to wait for copies and fills of its memory: they may still be under way when their calls
 * return, and the stream does not wait for them. */
void device_filled(void);

/* Waits for everything in the stream. A launch that does not end makes the program fail instead of hang. */
void device_wait(const struct device *device);

/* One chunk of a batch. The scalar variant encodes `src` and decodes to `dst`; the device does the same with copies. */
struct trial {
    struct asked asked;
    struct layout src, dst;
    uint32_t ids[16], select[VERDICT_PAGES];
    bool has_ids, has_select, copied_metadata;
    uint32_t shift; /* offset of all device pages from an aligned address */
    bool at_most;   /* decoded with STRAIT_DECODE_AT_MOST */
    uint32_t room;  /* bytes after the chunk that src_size includes */

    uint8_t *chunk; /* malloc()ed; NULL when there is none */
    uint64_t chunk_size;
    struct verdict encoded, decoded; /* of the scalar variant */
};

/* How a call runs; chunks and pages do not depend on it. */
struct manner {
    uint32_t sm_budget;
    enum strait_caching caching;
};

/* Both run all trials and require that nothing differs: chunks, verdicts, pages that are OK, bytes around pages. All
 * trials of an encoding batch have the same `asked`. */
void compare_encoding(const struct device *device, struct trial *trials, uint32_t count, struct manner manner);
void compare_decoding(const struct device *device, struct trial *trials, uint32_t count, struct manner manner);

#endif
