/* Host backend: the phases of kernels.h on processors. These are its parts; the table is what others use. */
#ifndef STRAIT_EP_HOST_H
#define STRAIT_EP_HOST_H

#include <string.h>

#include <strait/codec.h>

#include "ep/kernels.h"

extern const struct ep_ops ep_host_ops;

/* What a group on processors has for itself. */
struct ep_host {
    const struct strait_codec *codec; /* NULL: not coded; so is what follows */
    void *scratch;                    /* strait_scratch_size */
    uint8_t *metadata;                /* a copy of a chunk's, metadata_bytes */
    uint64_t metadata_bytes;
    uint32_t *ids; /* chunk_rows */
    uint8_t *rows; /* HT: decoded rows of a combine, tokens_max * min(topk_max, rank_count) */
};

/* ---- host_sync.c: epochs, signals, waits, failures --------------------------------------------------------------- */

/* The epoch of a phase. */
uint64_t ep_host_epoch(const struct ep_group_view *group, const struct ep_handle_view *handle, bool begin);
bool ep_host_active(const struct ep_group_view *group, uint32_t rank);
bool ep_host_failed(const struct ep_group_view *group);
void ep_host_fail(const struct ep_group_view *group, enum strait_status status, uint32_t rank);
/* Sets the flag in the arena of `owner`, and wakes it if it waits. */
void ep_host_set_flag(const struct ep_group_view *group, uint32_t owner, enum ep_flag kind, uint32_t by,
                      uint64_t epoch);
/* Adds `bytes` of memory to what the signal of this kind and epoch is about, if `rank` is on another host. The memory
 * is in the arena of that rank, or in the own one. */
void ep_host_add_range(const struct ep_group_view *group, uint32_t rank, enum ep_flag kind, uint64_t epoch,
                       const void *memory, uint64_t bytes);
/* The same of `rows` rows in the arena of that rank, at the slots that are in places (ep_places_of). */
void ep_host_add_listed(const struct ep_group_view *group, uint32_t rank, enum ep_flag kind, uint64_t epoch,
                        uint32_t rows, uint32_t row_bytes);
void ep_host_signal(const struct ep_group_view *group, enum ep_flag kind, uint64_t epoch);
/* False: the group has failed. */
bool ep_host_wait(const struct ep_group_view *group, enum ep_flag kind, uint64_t epoch);

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static inline float ep_host_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t ep_host_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* ---- host_sum.c: rows of numbers --------------------------------------------------------------------------------- */

/* dst becomes the sum of `count` rows, each times its weight unless weights is NULL, as kernels.h says of reduce. */
void ep_host_sum(enum strait_element type, uint8_t *dst, const uint8_t *const *terms, const float *weights,
                 uint32_t count, uint32_t bytes);

/* ---- host_quantize.c: BF16 to E4M3 ------------------------------------------------------------------------------- */

enum strait_status ep_host_quantize(void *context, const struct ep_quantize_args *args, struct CUstream_st *stream);

/* ---- host_route.c: lists ----------------------------------------------------------------------------------------- */

/* LL: takes counts and numbers of the call that has arrived. False: the group has failed. */
bool ep_host_take_lists(const struct ep_group_view *group, const struct ep_handle_view *handle, uint64_t epoch);
enum strait_status ep_host_route(void *context, const struct ep_route_args *args, struct CUstream_st *stream);
enum strait_status ep_host_plan(void *context, const struct ep_plan_args *args, struct CUstream_st *stream);

/* ---- host_code.c: chunks ----------------------------------------------------------------------------------------- */

/* Rows of a chunk: `count` of row_bytes from base on, those with these ids (NULL: 0, 1, 2, ...), below id_end. */
struct ep_host_rows {
    void *base;
    const uint32_t *ids;
    uint32_t count, id_end, row_bytes;
    enum strait_element type;
};

/* The rows that have come from a rank, in the own rows area. */
struct ep_host_rows ep_host_received(const struct ep_group_view *group, const struct ep_handle_view *handle,
                                     uint64_t epoch, uint32_t rank, uint32_t row_bytes, enum strait_element type);
/* Encodes rows to a chunk of the group. Returns its bytes; 0: there are no rows, or the group has failed. */
uint64_t ep_host_encode(struct ep_host *host, const struct ep_group_view *group, const struct ep_host_rows *rows,
                        uint8_t *chunk);
/* Decodes a chunk that `rank` wrote. False: it is bad, and the group has failed. */
bool ep_host_decode(struct ep_host *host, const struct ep_group_view *group, const struct ep_host_rows *rows,
                    const uint8_t *chunk, uint32_t rank);

/* ---- host_move.c: dispatch, and the way back of LL; host_reduce.c: combine --------------------------------------- */

/* With parts: all of them are there. */
void ep_host_progress(const struct ep_group_view *group, uint64_t epoch);
void ep_host_tell(const struct ep_group_view *group, struct ep_announce announce, uint64_t epoch);
enum strait_status ep_host_announce(void *context, const struct ep_announce_args *args, struct CUstream_st *stream);
enum strait_status ep_host_send(void *context, const struct ep_send_args *args, struct CUstream_st *stream);
enum strait_status ep_host_receive(void *context, const struct ep_receive_args *args, struct CUstream_st *stream);
enum strait_status ep_host_send_back(void *context, const struct ep_send_back_args *args, struct CUstream_st *stream);
enum strait_status ep_host_stage(void *context, const struct ep_stage_args *args, struct CUstream_st *stream);
enum strait_status ep_host_reduce(void *context, const struct ep_reduce_args *args, struct CUstream_st *stream);
enum strait_status ep_host_settle(void *context, const struct ep_settle_args *args, struct CUstream_st *stream);

#endif
