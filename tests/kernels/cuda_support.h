/* Tests of the CUDA variant: batches on a device against the scalar variant on the host (cuda_support.c), and long runs
 * (cuda_runs.c). */
#ifndef STRAIT_TESTS_KERNELS_CUDA_SUPPORT_H
#define STRAIT_TESTS_KERNELS_CUDA_SUPPORT_H

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

/* A call on the device that reports there; NULL: in a batch's items. */
struct strait_run device_run(const struct device *device, struct strait_result *result);

/* One chunk of a batch. The scalar variant encodes `src` and decodes to `dst`; the device does the same with copies. */
struct trial {
    struct asked asked;
    struct layout src, dst;
    uint32_t ids[16], select[VERDICT_PAGES];
    bool has_ids, has_select, copied_metadata;
    uint32_t metadata_size; /* of the copy; 0: all */
    uint32_t shift;         /* offset of all device pages from an aligned address */
    bool at_most;           /* decoded with STRAIT_DECODE_AT_MOST */
    uint32_t room;          /* bytes after the chunk that src_size includes */

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

/* Hundreds of MiB in one launch: finds errors that occur only when counters or rings wrap around after many blocks.
 * Runs a batch of chunks in both modes, several times. Each chunk must equal the host's, and every page must come back.
 */
void many_blocks(const struct device *device);

/* Batches of chunks that mix blocks of many modes, of several element types. No encoder writes such chunks, but all
 * decoders must read them: what a block leaves in a team's shared memory must not disturb the next block, whatever the
 * modes of the two. Returns the number of chunks. */
unsigned mixed_blocks(const struct device *device, unsigned batches);

/* Prints the speed of the kernels, a line for each size and each mode whose name contains `named`; "-" where the plugin
 * refuses. Values are synthetic: published figures come from bench/. */
void time_modes(const struct device *device, const char *named);

#endif
