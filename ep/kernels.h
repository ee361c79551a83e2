/* Table of a backend: memory, and the phases of a step, each with its arguments. ep/host.c fills it with functions for
 * processors, which are the specification in C; libstrait-ep-cuda with launches of kernels. The plugin knows this
 * header and those that it includes, and needs no symbol of the library. C11 and CUDA C++.
 *
 * Lists. The list (s, d) has those tokens of rank s of which an expert lives on rank d, ascending; place j in it is the
 * token's. Record r = s * B + j of rank d is what it knows of place j of list (s, d). Rows, scales and weights of a
 * dispatch lie in the arena of d at slot: LL s * B + j; HT base[s] + j, where base counts the rows of ranks before s.
 *
 * Phases. Each is ordered on its stream after the one before:
 *
 *   HT update     route, send (ROUTE), plan                     LL update     route
 *   HT dispatch   announce (READY), send (DATA), receive        LL dispatch   send (DATA) | receive
 *   HT combine    stage (READY), reduce (DONE), settle          LL combine    send_back (DATA) | reduce
 *
 * quantize belongs to no call: it makes rows for a dispatch.
 *
 * With SEND_ONLY, what is right of the bar runs in strait_ep_complete. A phase may be any number of kernels.
 *
 * Epochs. A phase with `begin` begins a call: its epoch is ep_state.epoch + 1, and before the phase ends this becomes
 * ep_state.epoch and ep_handle_state.epoch, after all of the phase has read the old one. Other phases use
 * ep_handle_state.epoch. Nothing about epochs passes through the host, so a graph of whole calls can be replayed.
 *
 * Signals. "Signals KIND" means: when all that the phase stores is there for every processor and GPU (a system-wide
 * fence after the last store of each block), stores the epoch to flags[KIND][rank] in the arena of each rank that takes
 * part, its own included, with release.
 *
 * Waits. "Waits for KIND" means: until flags[KIND][s] in the own arena is at least the epoch (acquire, system scope)
 * for each rank s that takes part, or ep_state.failed is not 0, or timeout_ns have passed. In the last case, with
 * masked, clears the bits of the missing ranks in ep_state.active and goes on with the others; without, sets
 * ep_state.failed. In both tells of it, see below. What another rank has stored is read after the wait only, and not
 * through caches that may be older (CUDA: not by ld.global.nc).
 *
 * Parts. Where rows cross host memory, or are coded, a link carries them for longer than launches take: one way when
 * they are stored, the other way when they are read. So that ranks read while others still store, tokens are cut in
 * at.parts parts (HT): part p has those from p * at.part_tokens on, and of a list the places of its tokens. Send (DATA)
 * and stage go through the parts in order; when all rows of a part are there they store ep_progress of the epoch and of
 * the parts so far to flags[PROGRESS][rank] in the arena of each rank, with release. What is stored besides rows, the
 * announcement included, is there with the first of these, and the last is stored also where there are no rows. Receive
 * and reduce go through them in the same order and wait for each, the last included, in place of DATA and READY. A
 * coded list has a chunk for each part. The plugin runs such send and stage on a side stream; receive and reduce wait
 * on the call's before each part until send and stage are done with it: they wait for no rank whose own send of that
 * part could be behind them, even if all launches of a rank come one after the other.
 *
 * Failures. Whoever finds one sets ep_state.failed to the status if it was 0 and then, only he, stores ep_report_pack
 * to *group.report, which the host reads: a single 8-byte store. With masked, a rank that times out is only stored to
 * the report, if that is 0, by whoever cleared its bit. While ep_state.failed is not 0, phases advance epochs and do
 * nothing else: no wait, no signal, no output.
 *
 * Ranks of other hosts are the bits of remote. Their arenas here are replicas, which phases store to and read as they
 * do others; ep/proxy.h says how what is stored gets there. So a phase that signals tells before which ranges the
 * signal is about, in a manifest for each such rank: all that it has stored in the replica since the last signal, and
 * what it has stored in its own arena for that rank to read. A signal without a manifest of its epoch does not leave
 * the host.
 *
 * Ranks that take part are the bits of ep_state.active, without masked always all. To others nothing is stored; their
 * records count as none, and reduce leaves them out.
 *
 * Trust. What peers store is checked before it is used as a place: counts are at most B, numbers of experts are of this
 * rank, own numbers of tokens below B, announcements inside the heap of their arena (ep_announced). A count above B or
 * a token's number from B on is ERR_CORRUPT. So is an announcement outside. */
#ifndef STRAIT_EP_KERNELS_H
#define STRAIT_EP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "ep/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What phases work on ---------------------------------------------------------------------------------------- */

/* Of a group, in memory of the backend, zeroed but for active. */
struct ep_state {
    uint64_t epoch;  /* calls begun */
    uint64_t active; /* bit s: rank s takes part */
    int32_t failed;  /* enum strait_status */
    uint32_t reserved;
    uint64_t sent_bytes, raw_bytes; /* of struct strait_ep_info; host backend only */
    uint32_t tickets[32];           /* the backend's; zero whenever no phase runs */
};

/* Of a handle, in memory of the backend, zeroed. */
struct ep_handle_state {
    uint64_t epoch; /* of its last call */
    uint32_t tickets[30];
};

/* What the CUDA backend has in memory of its device for groups whose rows cross host memory or are coded; open fills it
 * in. Rows of the rank itself lie at `own` as others do in the rows area. The rest is for coded
 * groups: rows of others are decoded by launches of the codec between kernels, which are of a fixed size: lists of rows
 * end with EP_NO_ROW. HT chunks are written and read where they lie; the place of a LL chunk follows from the epoch,
 * which only kernels know, so they are coded at `chunks` and copied. */
struct ep_coding {
    uint8_t *own;      /* [row_buffers] rows area; NULL: in the arena */
    uint8_t *decoded;  /* rows: LL at their slots, of a combine EXPERT_MAJOR token * K + k; HT s * B + j */
    uint8_t *chunks;   /* LL: [R] chunk_bytes */
    uint8_t *metadata; /* HT: [R][P] metadata_bytes, copies: those of a chunk must not change while it is read */
    uint32_t *rows;    /* [R][P][chunk_rows] the list of a chunk: numbers of rows where they are read or go */
    uint32_t *counts;  /* [R][P] how many of these are rows */
    struct strait_result *results; /* [R][P] of the last launch of the codec; P = at.parts, at least 1 */
    uint64_t metadata_bytes;
    uint32_t side;  /* 1: of phases on the side stream, which have other tickets, lists and results */
    uint32_t pages; /* of each chunk of the phase; what it has more than rows is EP_NO_ROW */
};
#define EP_NO_ROW 0xFFFFFFFFu

/* Ranges of an arena that a signal is about: `rows` times `bytes` bytes, one after another from offset on; or listed,
 * each `bytes` from offset + places[i] * bytes on. */
struct ep_range {
    uint64_t offset, bytes;
    uint32_t rows;
    uint32_t flags; /* EP_OF_SENDER, EP_LISTED */
};
#define EP_OF_SENDER 1u /* of the arena of the rank that signals; else of the one it signals to */
#define EP_LISTED    2u
#define EP_RANGES    6u
/* Manifests of each kind and rank, by epoch: as many signals may be on their way as there are buffers. */
#define EP_MANIFESTS 4u

struct ep_manifest {
    uint64_t value; /* of the flag */
    uint32_t count, reserved;
    struct ep_range ranges[EP_RANGES];
};

/* A group as phases see it. All pointers but report: memory that the backend's phases can access. */
struct ep_group_view {
    uint8_t *arenas[STRAIT_EP_RANKS_MAX]; /* of each rank, as mapped here */
    struct ep_arena at;
    struct ep_state *state;
    uint64_t *report; /* readable by the host at any time: pinned memory */
    uint64_t timeout_ns;
    uint32_t rank, rank_count;
    uint32_t experts, local_experts; /* of all ranks, of each */
    uint32_t tokens_max;             /* B */
    uint32_t topk_max;
    uint32_t receive_max; /* HT: tokens that a rank takes; at most R * B */
    uint32_t sm_budget;
    bool low_latency, masked, drop, coded;
    struct ep_coding coding;
    uint64_t remote;               /* bit s: rank s is on another host */
    uint64_t *signals;             /* [EP_FLAG_KINDS][R], to that rank */
    struct ep_manifest *manifests; /* [EP_FLAG_KINDS][EP_MANIFESTS][R]; NULL: all ranks are on one host */
    uint32_t *places;              /* LL: [EP_BUFFERS_LL][R][place_count] of rows that are listed */
    uint32_t place_count;
};

/* A handle as phases see it: K = topk, R = rank_count, B = tokens_max. All memory of the backend, made once. */
struct ep_handle_view {
    struct ep_handle_state *state;
    enum strait_ep_layout layout;
    uint32_t topk;             /* K */
    uint32_t expert_alignment; /* HT EXPERT_MAJOR, else 1 */
    /* Own tokens, written by route; HT: cut by plan where receivers drop rows. */
    int32_t *own_topk;    /* [B][K] global numbers; -1: none, out of range, or for the second time in this token */
    int32_t *send_index;  /* [B][R] place in the list of that rank, -1: not there */
    uint32_t *send_token; /* [R][B] the token at a place */
    uint32_t *send_count; /* [R] */
    uint32_t *send_base;  /* [R] HT, by plan: rows of ranks before this one at that rank */
    /* What comes, written by plan (HT) or receive (LL). */
    uint32_t *recv_count; /* [R] */
    uint32_t *recv_base;  /* [R] HT: rows of ranks before; LL: s * B */
    int32_t *numbers;     /* [R * B][K + 1] by record: as in the arena, but local numbers, checked */
    int32_t *expert_row;  /* [R * B][K] by record, EXPERT_MAJOR: the row of the output tensor, -1 */
    int32_t *totals;      /* [2 + L] HT: records, rows (ep.h, `total`), rows of each local expert */
    float *weights;       /* [B][K] LL EXPERT_MAJOR: weights of the last dispatch */
    void *scratch;        /* scratch_bytes(group, layout, topk) of the backend */
};

static inline EP_BOTH uint64_t ep_report_pack(int status, uint32_t rank)
{
    return ((uint64_t)rank << 32) | (uint32_t)status;
}

/* Address of flags[kind][by] in the arena of `owner`. */
static inline EP_BOTH uint64_t *ep_flag_of(const struct ep_group_view *group, uint32_t owner, enum ep_flag kind,
                                           uint32_t by)
{
    return (uint64_t *)(group->arenas[owner] + group->at.flags) + (uint64_t)kind * group->rank_count + by;
}

/* announce[by] in the arena of `owner`. */
static inline EP_BOTH struct ep_announce *ep_announce_of(const struct ep_group_view *group, uint32_t owner, uint32_t by)
{
    return (struct ep_announce *)(group->arenas[owner] + group->at.announce) + by;
}

/* Row `by` of counts: [rank_count]. */
static inline EP_BOTH uint32_t *ep_counts_of(const struct ep_group_view *group, uint32_t owner, uint64_t epoch,
                                             uint32_t by)
{
    return (uint32_t *)(group->arenas[owner] + group->at.counts + epoch % group->at.buffers * group->at.counts_stride) +
           (uint64_t)by * group->rank_count;
}

/* Numbers of a record, [topk + 1]. */
static inline EP_BOTH int32_t *ep_numbers_of(const struct ep_group_view *group, uint32_t owner, uint64_t epoch,
                                             uint32_t topk, uint64_t record)
{
    return (int32_t *)(group->arenas[owner] + group->at.numbers +
                       epoch % group->at.buffers * group->at.numbers_stride) +
           record * (topk + 1);
}

/* Weights at a slot, [topk]. */
static inline EP_BOTH float *ep_weights_of(const struct ep_group_view *group, uint32_t owner, uint64_t epoch,
                                           uint32_t topk, uint64_t slot)
{
    return (float *)(group->arenas[owner] + group->at.weights +
                     epoch % group->at.row_buffers * group->at.weights_stride) +
           slot * topk;
}

static inline EP_BOTH uint8_t *ep_scales_of(const struct ep_group_view *group, uint32_t owner, uint64_t epoch,
                                            uint32_t scale_bytes, uint64_t slot)
{
    return group->arenas[owner] + group->at.scales + epoch % group->at.row_buffers * group->at.scales_stride +
           slot * scale_bytes;
}

static inline EP_BOTH uint8_t *ep_rows_of(const struct ep_group_view *group, uint32_t owner, uint64_t epoch,
                                          uint32_t row_bytes, uint64_t slot)
{
    return group->arenas[owner] + group->at.rows + epoch % group->at.row_buffers * group->at.rows_stride +
           slot * row_bytes;
}

/* A chunk of or for rank s. */
static inline EP_BOTH uint8_t *ep_chunk_of(const struct ep_group_view *group, uint32_t owner, uint64_t epoch,
                                           uint32_t s, uint32_t part)
{
    return group->arenas[owner] + group->at.chunks +
           ((epoch % group->at.row_buffers * group->rank_count + s) * ep_arena_chunks(&group->at) + part) *
               group->at.chunk_bytes;
}

/* Whether a rank is on another host. */
static inline EP_BOTH bool ep_is_remote(const struct ep_group_view *group, uint32_t rank)
{
    return (group->remote >> rank & 1) != 0;
}

/* The last value of a flag that the proxy is to set at a rank of another host. */
static inline EP_BOTH uint64_t *ep_signal_of(const struct ep_group_view *group, enum ep_flag kind, uint32_t to)
{
    return &group->signals[(uint64_t)kind * group->rank_count + to];
}

/* The manifest of a signal to a rank of another host, in a call of this epoch. With parts there is one part here. */
static inline EP_BOTH struct ep_manifest *ep_manifest_of(const struct ep_group_view *group, enum ep_flag kind,
                                                         uint64_t epoch, uint32_t to)
{
    return &group->manifests[((uint64_t)kind * EP_MANIFESTS + epoch % EP_MANIFESTS) * group->rank_count + to];
}

static inline EP_BOTH uint32_t *ep_places_of(const struct ep_group_view *group, uint64_t epoch, uint32_t to)
{
    return group->places + (epoch % EP_BUFFERS_LL * group->rank_count + to) * group->place_count;
}

/* See "Parts". They only grow. */
static inline EP_BOTH uint64_t ep_progress(uint64_t epoch, uint32_t parts)
{
    return epoch << 8 | parts;
}

/* Tensors of peers (ep.h), as this rank reaches them; NULL: none. */
struct ep_peers {
    uint8_t *tensors[STRAIT_EP_RANKS_MAX];
};

/* Rows of row_bytes that rank `by` has announced here (HT): *rows becomes how many there are. NULL: the announcement is
 * not inside the heap of that rank, or of a tensor that is not known here. The values are those read by the caller
 * after READY. */
static inline EP_BOTH uint8_t *ep_announced(const struct ep_group_view *group, uint32_t by, struct ep_announce said,
                                            uint32_t row_bytes, const struct ep_peers *peers, uint64_t *rows)
{
    const uint64_t end = group->at.heap + group->at.heap_bytes;

    if (said.offset == 0) { /* the area's own room; HT has one buffer */
        *rows = group->at.row_slots;
        return group->arenas[by] + group->at.rows;
    }
    *rows = said.rows;
    if (said.offset == EP_IN_PEERS)
        return group->remote == 0 ? peers->tensors[by] : NULL;
    if (said.offset < group->at.heap || said.offset > end || said.offset % 16 != 0 ||
        said.rows > (end - said.offset) / row_bytes)
        return NULL;
    return group->arenas[by] + said.offset;
}

/* The rank of an expert. */
static inline EP_BOTH uint32_t ep_rank_of(const struct ep_group_view *group, int32_t expert)
{
    return (uint32_t)expert / group->local_experts;
}

/* ---- Arguments of phases ---------------------------------------------------------------------------------------- */

/* Makes lists of own tokens: own_topk, send_index, send_token, send_count of the handle. No wait, no signal. */
struct ep_route_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    const void *topk; /* [tokens][K] */
    uint32_t topk_bytes;
    uint32_t tokens;
};

/* HT dispatch, always with begin: stores the announcement to each rank's arena and signals READY. */
struct ep_announce_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    struct ep_announce announce;
};

/* Sends records of own tokens. HT with DATA: waits for READY first, also without rows, so that what is announced here
 * in the next call replaces nothing that a rank has yet to be told. For each rank d that takes part and each place j
 * below send_count[d], with t = send_token[d][j], stores in the arena of d:
 *
 *   lists     numbers of record rank * B + j: own_topk[t] (all K, experts of other ranks too), then t; and
 *             send_count as row `rank` of counts, also where all of it is 0
 *   weights   weights[t] at the slot
 *   scales    the row at the slot
 *   rows      raw: the row at the slot of the rows area, or HT at what d has announced. Slots beyond the rows
 *             that d has announced are left out: d finds that out itself. Coded: one chunk for d, of the list's
 *             rows in its order, to chunk `rank` of d's arena; for the rank itself not a chunk, but rows in its
 *             rows area. With `own` those for the rank itself go to that tensor instead: at the slot, HT
 *             EXPERT_MAJOR at expert_row of each k whose expert own_topk[t][k] is here; with keep_own nowhere
 *
 * Then signals `signal`. keep_weights: copies weights to handle.weights. */
struct ep_send_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    uint32_t part; /* GPUs, with parts: that of a launch; the table's caller leaves it 0 */
    struct ep_peers peers;
    const uint8_t *rows;   /* [tokens] or NULL */
    const float *weights;  /* [tokens][K] or NULL */
    const uint8_t *scales; /* [tokens] or NULL */
    uint8_t *own;          /* outputs of the dispatch, not announced, or NULL */
    uint32_t own_rows;     /* of them; rows beyond are left out */
    uint32_t row_bytes, scale_bytes;
    uint32_t tokens;
    enum strait_element type;
    enum ep_flag signal;
    bool begin;        /* HT update, LL dispatch */
    bool lists;        /* HT update, LL dispatch */
    bool keep_weights; /* LL EXPERT_MAJOR with weights */
    bool keep_own;     /* LL EXPERT_MAJOR: receive has these rows from the input. GPUs: another launch gives them */
};

/* HT update: waits for ROUTE. From the counts C[s][d], the own row being send_count; one above B fails with
 * ERR_CORRUPT and the least such s, before anything else. Total of d = sum of C[s][d] over s. Above receive_max:
 * without drop fails with ERR_NO_SPACE and that rank; with drop C[s][d] becomes what is left of receive_max after the
 * ranks before s, so that the last rows of the last ranks go. Then send_count, send_index (-1 for places cut off),
 * send_base, recv_count, recv_base; numbers of each record that came, as local numbers (-1: of another rank), and the
 * token; rows of each local expert and, EXPERT_MAJOR, expert_row: zones of experts in their order, each from a multiple
 * of expert_alignment on, in a zone the order of records; totals. Outputs are those of strait_ep_routing, NULL: not
 * wanted. */
struct ep_plan_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    int32_t *expert_counts, *expert_offsets, *rank_counts, *total;
};

/* Receives a dispatch: waits for DATA. LL: takes counts and numbers of the epoch's buffer as plan does, recv_base[s] =
 * s * B, expert_row of local expert e = e * R * B + its place in the order of records. Then rows, scales, weights and
 * numbers to the outputs, for each record that came: FLAT at base + j, RANK_MAJOR at s * B + j, EXPERT_MAJOR at
 * expert_row of each of its experts here. Coded rows are decoded first; a bad chunk fails with its status and rank.
 * Rows of the rank itself: with own_given they are there already; with `own` row send_token[rank][j] of that tensor,
 * for j below send_count[rank]. HT: more rows than row_count fail with ERR_NO_SPACE and the own rank; none is written
 * beyond. */
struct ep_receive_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    uint32_t part;      /* GPUs, with parts: that of a launch; the table's caller leaves it 0 */
    uint8_t *rows;      /* NULL: they are in place (FLAT, announced) */
    const uint8_t *own; /* with send's keep_own: the input */
    float *weights;
    uint8_t *scales;
    void *topk; /* local numbers; with global_ids global ones; -1: of another rank; wide_ids: int64, else int32 */
    int32_t *expert_counts; /* LL EXPERT_MAJOR */
    int32_t *rank_counts;   /* LL */
    uint32_t row_bytes, scale_bytes;
    uint32_t row_count; /* HT: rows of the outputs */
    enum strait_element type;
    bool global_ids, wide_ids;
    bool own_given; /* send had `own` */
};

/* HT combine, always with begin: makes rows that peers read. rows NULL: the announcement is of the caller's tensor, and
 * there is nothing to make. FLAT: copies the rows that came to the rows area, with keep_own but those of the rank
 * itself; EXPERT_MAJOR: the sum of each record's rows (ep.h, "Order of combine") at its slot. Coded: chunk s of the own
 * arena, of the rows for rank s in the order of its list; those for the rank itself stay in the rows area. weights: to
 * the weights area, [slot][K], EXPERT_MAJOR from expert_row. Then stores the announcement to each rank's arena and
 * signals READY. */
struct ep_stage_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    uint32_t part; /* GPUs, with parts: that of a launch; the table's caller leaves it 0 */
    const uint8_t *rows;
    const float *weights;
    struct ep_announce announce;
    uint32_t row_bytes;
    enum strait_element type;
    bool keep_own; /* FLAT */
};

/* LL combine, always with begin: for each record (s, j) that came from a rank s that takes part, RANK_MAJOR: the row
 * s * B + j to row rank * B + j of the rows area of s; EXPERT_MAJOR: the row expert_row of each k to row token * K + k.
 * Coded: one chunk for s of these rows, by j, then k, to chunk `rank` of the arena of s, but not for the rank itself.
 * With keep_own not those of the rank itself. Signals DATA. */
struct ep_send_back_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    const uint8_t *rows;
    uint32_t row_bytes;
    enum strait_element type;
    bool keep_own;
};

/* Sums the rows of own tokens. LL waits for DATA, HT for READY. For each token, ranks d ascending with send_index[t][d]
 * = j >= 0 that take part; the term is
 *   HT              row send_base[d] + j of what d has announced; coded: row j of chunk `rank` in the arena of d
 *   LL RANK_MAJOR   row d * B + j of the own rows area (coded: row j of chunk d)
 *   LL EXPERT_MAJOR for each k ascending whose expert is on d: weights[t][k] times row t * K + k (coded: of chunk d)
 * and with `own`, of the rank itself, in that tensor
 *   HT              row send_base[rank] + j
 *   LL RANK_MAJOR   row rank * B + j
 *   LL EXPERT_MAJOR row expert_row[k] of record (rank, j), times the weight as above; -1: none
 * The sum begins with the first term itself, each further one is added in FP32; products and sums are rounded each by
 * itself (no FMA), subnormals are kept. It is rounded to the type, to nearest even. NaN becomes 0x7FFF, FP32
 * 0x7FFFFFFF. No term: zeroes. weights_out: [t][k] is the value at [send_base[d] + j][k] of the weights area of the
 * rank d of expert own_topk[t][k], 0 where there is none. HT then signals DONE. */
struct ep_reduce_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
    uint32_t part; /* GPUs, with parts: that of a launch; the table's caller leaves it 0 */
    struct ep_peers peers;
    uint8_t *rows;        /* [tokens] */
    const uint8_t *own;   /* with keep_own of stage or send_back: their rows; else NULL */
    const float *weights; /* LL EXPERT_MAJOR: [tokens][K]; NULL: rows are added as they are */
    float *weights_out;   /* HT: [tokens][K] or NULL */
    uint32_t row_bytes;
    uint32_t tokens;
    enum strait_element type;
};

/* HT combine: waits for DONE. */
struct ep_settle_args {
    struct ep_group_view group;
    struct ep_handle_view handle;
};

#define EP_E4M3_MAX 448.0f  /* largest E4M3 value */
#define EP_AMAX_MIN 0.0001f /* so that the scale of zeroes is none */

/* Quantizes rows of BF16, which lie one after another, to E4M3. No epoch, wait or signal; whether the group has failed
 * does not matter. Of each STRAIT_EP_SCALE_VALUES values, in FP32 and with each result rounded to nearest even:
 *   amax     their largest magnitude, NaN passed over, or EP_AMAX_MIN if that is larger
 *   scale    amax * (1 / 448); with powers the least power of two that is not below it
 *   factor   448 / amax; with powers 1 / scale
 *   value    factor * x as E4M3: to nearest even, at most 448 in magnitude; -0 is kept, NaN is 0x7F
 * An infinite value makes the scale infinite and the factor 0: then infinite values are NaN, all others 0. */
struct ep_quantize_args {
    const uint8_t *rows; /* [rows] of values, a multiple of STRAIT_EP_SCALE_VALUES */
    uint8_t *quantized;  /* as many bytes */
    float *scales;       /* [rows][values / STRAIT_EP_SCALE_VALUES] */
    uint32_t row_count, values;
    uint32_t sm_budget;
    bool powers;
};

/* ---- The table -------------------------------------------------------------------------------------------------- */

#define EP_TICKET_BYTES 128u

/* What a backend needs to know of a group before it has one. */
struct ep_open_args {
    const struct strait_ep_config *config; /* checked; defaults filled in */
    struct ep_arena at;
    bool coded, far;          /* far: rows of GPUs cross host memory */
    struct ep_coding *coding; /* of the view, zeroed; for open to fill */
    char *text;               /* what went wrong, for people */
    size_t text_size;
};

/* Incremented with every change of this header. */
#define EP_OPS_VERSION 5u

/* Functions return at once and enqueue on the stream, if there is one, unless they say otherwise. `context` is what
 * open made. Phases return ERR_DEVICE where a launch failed, else OK: what goes wrong later is told by the report. The
 * device that was current in open is made current for each call, and the caller's restored. */
struct ep_ops {
    uint32_t version; /* EP_OPS_VERSION */
    /* Chooses the current device, loads kernels. ERR_UNSUPPORTED, ERR_NO_MEMORY, ERR_DEVICE. */
    enum strait_status (*open)(const struct ep_open_args *args, void **context);
    void (*close)(void *context); /* waits for the device's work on this context */

    /* Arena that peers map: zeroed. The ticket is what arena_map of another rank of this host, in this or another
     * process, needs; bytes beyond what it uses are zero. *medium: static text for strait_ep_info. ERR_UNSUPPORTED:
     * this backend's memory cannot be shared here. */
    enum strait_status (*arena_create)(void *context, uint64_t bytes, uint8_t ticket[EP_TICKET_BYTES], void **base,
                                       const char **medium);
    /* ERR_UNSUPPORTED: that rank's memory cannot be reached. Then all ranks give up theirs, and arenas are shared host
     * memory, see host_attach. A NULL function stands for such a refusal by all. */
    enum strait_status (*arena_map)(void *context, uint32_t rank, const uint8_t ticket[EP_TICKET_BYTES], uint64_t bytes,
                                    void **base);
    void (*arena_unmap)(void *context, uint32_t rank, void *base);
    void (*arena_destroy)(void *context, void *base); /* peers may still have it mapped, but do not use it */
    /* Makes `bytes` of host memory, the arena of a rank mapped into this process, accessible to phases: *device is its
     * address for them. NULL function: the address is the same. */
    enum strait_status (*host_attach)(void *context, void *memory, uint64_t bytes, void **device);
    void (*host_detach)(void *context, void *memory);

    /* Memory of phases, zeroed, multiples of 256; NULL: none left. */
    void *(*alloc)(void *context, uint64_t bytes);
    void (*free)(void *context, void *memory);
    /* Memory that both sides access, zeroed: *device is the phases' address. */
    void *(*alloc_pinned)(void *context, uint64_t bytes, void **device);
    void (*free_pinned)(void *context, void *memory);
    /* Copies to or from host memory and waits for it, and for all before it on the stream. NULL: of the context. */
    enum strait_status (*write)(void *context, void *memory, const void *host, uint64_t bytes,
                                struct CUstream_st *stream);
    enum strait_status (*read)(void *context, void *host, const void *memory, uint64_t bytes,
                               struct CUstream_st *stream);
    /* Of ep_handle_view.scratch. */
    uint64_t (*scratch_bytes)(const struct ep_group_view *group, enum strait_ep_layout layout, uint32_t topk);

    enum strait_status (*route)(void *context, const struct ep_route_args *args, struct CUstream_st *stream);
    enum strait_status (*announce)(void *context, const struct ep_announce_args *args, struct CUstream_st *stream);
    enum strait_status (*send)(void *context, const struct ep_send_args *args, struct CUstream_st *stream);
    enum strait_status (*plan)(void *context, const struct ep_plan_args *args, struct CUstream_st *stream);
    enum strait_status (*receive)(void *context, const struct ep_receive_args *args, struct CUstream_st *stream);
    enum strait_status (*stage)(void *context, const struct ep_stage_args *args, struct CUstream_st *stream);
    enum strait_status (*send_back)(void *context, const struct ep_send_back_args *args, struct CUstream_st *stream);
    enum strait_status (*reduce)(void *context, const struct ep_reduce_args *args, struct CUstream_st *stream);
    enum strait_status (*settle)(void *context, const struct ep_settle_args *args, struct CUstream_st *stream);
    enum strait_status (*quantize)(void *context, const struct ep_quantize_args *args, struct CUstream_st *stream);
};

/* What the plugin exports: its table. NULL: there is no GPU. */
typedef const struct ep_ops *ep_plugin_get(void);
#define EP_PLUGIN_SYMBOL "strait_ep_plugin"
#define EP_PLUGIN        "libstrait-ep-cuda.so.0"

#ifdef __cplusplus
}
#endif
#endif
