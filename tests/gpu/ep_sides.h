/* The two groups of a rank, one of memory of its GPU and one of processors: their memory, inputs and calls. */
#ifndef STRAIT_TESTS_GPU_EP_SIDES_H
#define STRAIT_TESTS_GPU_EP_SIDES_H

#include "tests/ep/world.h"
#include "tests/gpu/device.h"

/* Of all scenes. */
struct ep_setting {
    int devices;
    bool threads, no_peers, alone;
    uint64_t seed;
    uint32_t groups, hosts;   /* hosts: 0, one */
    uint32_t multiprocessors; /* of times */
};
extern struct ep_setting setting;

/* A step: its shape is the same on all ranks but for the number of tokens. */
struct step_shape {
    enum strait_ep_layout layout;
    enum strait_element type;
    uint32_t topk, tokens, row_bytes, scale_bytes, alignment, row_count;
    bool weights, gradients, heap, staged;
    uint64_t seed;
};

/* Tensors of a step. */
enum buffer {
    TOPK,
    ROWS,
    WEIGHTS,
    SCALES,
    OUT_ROWS,
    OUT_WEIGHTS,
    OUT_SCALES,
    OUT_TOPK,
    COUNTS,
    SUMS,
    GRADIENTS,
    BUFFERS
};

/* One of the two groups of a rank. */
struct side {
    bool cuda;
    struct strait_ep_config config;
    struct strait_ep_group *group;
    struct strait_ep_handle *handle;
    cudaStream_t stream;
    struct step_shape shape;
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS];
    bool in_heap;
};

/* Rows that tensors of a dispatch have. */
uint32_t most_rows(const struct strait_ep_config *config, const struct step_shape *shape);
/* Inputs of both sides; the numbers of experts alone. */
void draw_routing(struct side *sides, struct rng *rng);
void draw_inputs(struct side *sides, struct rng *rng);
/* Ends the program, and says where, if an output differs. */
void compare(struct side *sides, const char *what);
bool low_latency(const struct side *side);
enum strait_status update(struct side *side);
enum strait_status dispatch(struct side *side, uint32_t flags);
/* What came is what goes back, in place. */
enum strait_status combine(struct side *side, uint32_t flags);
/* Ends the program, and says what the group knows, unless the status is OK. */
void require_good(const struct side *side, enum strait_status status);
void step(struct side *side);
/* Between barriers: memory is neither made nor freed while a kernel of another rank on the GPU waits for this one's. */
void make_handles(struct member *member, struct side *sides);
void drop_handles(struct member *member, struct side *sides);
/* Both groups of a rank, or that of its GPU alone. */
void make_groups(struct member *member, struct strait_ep_config like, bool host, struct side *sides);
void drop_groups(struct member *member, struct side *sides);
const char *medium_of(const struct side *side);

/* ep_quantize.c: the scene `quantize`. */
void run_quantize(struct member *member);

/* ep_times.c: the scene `times`. */
void run_times(struct member *member);

#endif
