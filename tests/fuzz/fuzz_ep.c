/* Foreign bytes as what another rank of a group has put into this rank's arena, and into its own: counts, numbers,
 * announcements, weights, rows, chunks. Here rank 0 of two runs the phases of a step; the first byte of the input
 * chooses algorithm, layout, coding and what happens to rows without room. The rest takes the place of all that lies in
 * both arenas but the flags, before each phase that reads them. Outputs lie in memory of exactly their size. */
#include <string.h>

#include "ep/host.h"
#include "tests/ep/proxy_link.h"
#include "tests/fuzz/fuzz.h"

enum { RANKS = 2, TOKENS = 5, TOPK = 3, EXPERTS = 6, LOCAL = EXPERTS / RANKS, ROW = 32, HEAP = 1024, PIECES = 40 };
enum { HIGH_THROUGHPUT = 1, EXPERT_MAJOR = 2, CODED = 4, DROP = 8, MASKED = 16 };

static struct ep_group_view group;
static struct ep_handle_view handle;
static struct ep_state state;
static struct ep_handle_state handle_state;
static uint64_t report;
static void *pieces[PIECES];
static uint32_t piece_count;
static const uint8_t *foreign;
static size_t foreign_size;

/* Memory of exactly this size until the end of the input, filled with 1. */
static void *piece(size_t size)
{
    void *memory = NULL;

    require(posix_memalign(&memory, 16, size) == 0 && piece_count < PIECES);
    memset(memory, 1, size);
    pieces[piece_count++] = memory;
    return memory;
}

static void begin_group(unsigned how, struct strait_ep_config *config)
{
    *config = (struct strait_ep_config){.rank_count = RANKS,
                                        .algorithm =
                                            how & HIGH_THROUGHPUT ? STRAIT_EP_HIGH_THROUGHPUT : STRAIT_EP_LOW_LATENCY,
                                        .experts = EXPERTS,
                                        .tokens_max = TOKENS,
                                        .receive_max = how & DROP ? 7 : 0,
                                        .row_bytes_max = ROW,
                                        .topk_max = TOPK,
                                        .heap_bytes = HEAP};
    state = (struct ep_state){.active = 3};
    handle_state = (struct ep_handle_state){0};
    report = 0;
    group = (struct ep_group_view){.state = &state,
                                   .report = &report,
                                   .timeout_ns = 1,
                                   .rank_count = RANKS,
                                   .experts = EXPERTS,
                                   .local_experts = LOCAL,
                                   .tokens_max = TOKENS,
                                   .topk_max = TOPK,
                                   .receive_max = how & DROP ? 7 : RANKS * TOKENS,
                                   .low_latency = !(how & HIGH_THROUGHPUT),
                                   .masked = !(how & HIGH_THROUGHPUT) && (how & MASKED) != 0,
                                   .drop = (how & DROP) != 0,
                                   .coded = (how & CODED) != 0};
    require(ep_arena_plan(config, group.coded ? EP_ROWS_CODED : EP_ROWS_RAW, 0, &group.at) == STRAIT_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        group.arenas[rank] = piece(group.at.bytes);
        memset(group.arenas[rank], 0, group.at.bytes);
        memset(group.arenas[rank] + group.at.flags, 0x7F, EP_FLAG_KINDS * RANKS * sizeof(uint64_t));
    }
}

static void begin_handle(unsigned how)
{
    handle = (struct ep_handle_view){.state = &handle_state,
                                     .layout = how & EXPERT_MAJOR      ? STRAIT_EP_EXPERT_MAJOR
                                               : how & HIGH_THROUGHPUT ? STRAIT_EP_FLAT
                                                                       : STRAIT_EP_RANK_MAJOR,
                                     .topk = TOPK,
                                     .expert_alignment = how & HIGH_THROUGHPUT && how & EXPERT_MAJOR ? 4 : 1,
                                     .own_topk = piece(TOKENS * TOPK * 4),
                                     .send_index = piece(TOKENS * RANKS * 4),
                                     .send_token = piece(RANKS * TOKENS * 4),
                                     .send_count = piece(RANKS * 4),
                                     .send_base = piece(RANKS * 4),
                                     .recv_count = piece(RANKS * 4),
                                     .recv_base = piece(RANKS * 4),
                                     .numbers = piece(RANKS * TOKENS * (TOPK + 1) * 4),
                                     .expert_row = piece(RANKS * TOKENS * TOPK * 4),
                                     .totals = piece((2 + LOCAL) * 4),
                                     .weights = piece(TOKENS * TOPK * 4)};
}

/* Lays the input over what peers write. */
static void overlay(void)
{
    const size_t room = group.at.bytes - group.at.announce;

    for (uint32_t rank = 0; rank < RANKS; rank++)
        memcpy(group.arenas[rank] + group.at.announce, foreign, foreign_size < room ? foreign_size : room);
}

static void route(void *context)
{
    const int32_t numbers[TOKENS][TOPK] = {{0, 1, 2}, {3, 4, 0}, {-1, 5, -1}, {2, 2, 3}, {-1, -1, -1}};
    const struct ep_route_args args = {
        .group = group, .handle = handle, .topk = numbers, .topk_bytes = 4, .tokens = TOKENS};

    require(ep_host_ops.route(context, &args, NULL) == STRAIT_OK);
}

/* HT: the lists of all ranks. */
static void update(void *context)
{
    const struct ep_send_args send = {
        .group = group, .handle = handle, .tokens = TOKENS, .signal = EP_FLAG_ROUTE, .begin = true, .lists = true};
    const struct ep_plan_args plan = {.group = group,
                                      .handle = handle,
                                      .expert_counts = piece(LOCAL * 4),
                                      .expert_offsets =
                                          handle.layout == STRAIT_EP_EXPERT_MAJOR ? piece(LOCAL * 4) : NULL,
                                      .rank_counts = piece(RANKS * 4),
                                      .total = piece(4)};

    ep_host_ops.send(context, &send, NULL);
    overlay();
    ep_host_ops.plan(context, &plan, NULL);
}

static void dispatch(void *context)
{
    const uint32_t rows = group.low_latency && handle.layout == STRAIT_EP_EXPERT_MAJOR ? LOCAL * RANKS * TOKENS
                          : group.low_latency                                          ? RANKS * TOKENS
                                                                                       : 11;
    const uint32_t each = handle.layout == STRAIT_EP_EXPERT_MAJOR ? 1 : TOPK;
    const struct ep_announce_args announce = {.group = group, .handle = handle};
    const struct ep_send_args send = {.group = group,
                                      .handle = handle,
                                      .rows = piece(TOKENS * ROW),
                                      .weights = piece(TOKENS * TOPK * 4),
                                      .row_bytes = ROW,
                                      .tokens = TOKENS,
                                      .type = STRAIT_ELEMENT_BF16,
                                      .signal = EP_FLAG_DATA,
                                      .begin = group.low_latency,
                                      .lists = group.low_latency};
    const struct ep_receive_args receive = {.group = group,
                                            .handle = handle,
                                            .rows = piece(rows * ROW),
                                            .weights = piece(rows * each * 4),
                                            .topk = each > 1 ? piece(rows * each * 4) : NULL,
                                            .rank_counts = group.low_latency ? piece(RANKS * 4) : NULL,
                                            .row_bytes = ROW,
                                            .row_count = rows,
                                            .type = STRAIT_ELEMENT_BF16};

    if (!group.low_latency) {
        ep_host_ops.announce(context, &announce, NULL);
        overlay();
    }
    ep_host_ops.send(context, &send, NULL);
    overlay();
    ep_host_ops.receive(context, &receive, NULL);
}

static void combine(void *context, const uint8_t *rows)
{
    const struct ep_stage_args stage = {.group = group,
                                        .handle = handle,
                                        .rows = rows,
                                        .weights = piece(RANKS * TOKENS * TOPK * 4),
                                        .row_bytes = ROW,
                                        .type = STRAIT_ELEMENT_BF16};
    const struct ep_send_back_args send = {
        .group = group, .handle = handle, .rows = rows, .row_bytes = ROW, .type = STRAIT_ELEMENT_BF16};
    const struct ep_reduce_args reduce = {.group = group,
                                          .handle = handle,
                                          .rows = piece(TOKENS * ROW),
                                          .weights_out = group.low_latency ? NULL : piece(TOKENS * TOPK * 4),
                                          .row_bytes = ROW,
                                          .tokens = TOKENS,
                                          .type = STRAIT_ELEMENT_BF16};
    const struct ep_settle_args settle = {.group = group, .handle = handle};

    if (group.low_latency)
        ep_host_ops.send_back(context, &send, NULL);
    else
        ep_host_ops.stage(context, &stage, NULL);
    overlay();
    ep_host_ops.reduce(context, &reduce, NULL);
    if (!group.low_latency)
        ep_host_ops.settle(context, &settle, NULL);
}

void fuzz_ep(const uint8_t *data, size_t size)
{
    struct strait_ep_config config;
    void *context;

    if (size == 0)
        return;
    foreign = data + 1;
    foreign_size = size - 1;
    piece_count = 0;
    begin_group(data[0], &config);
    begin_handle(data[0]);
    const struct ep_open_args open = {.config = &config, .at = group.at, .coded = group.coded};
    require(ep_host_ops.open(&open, &context) == STRAIT_OK);
    route(context);
    if (!group.low_latency)
        update(context);
    dispatch(context);
    if (!ep_host_failed(&group)) /* the caller would not go on */
        combine(context, piece(LOCAL * RANKS * TOKENS * ROW));
    require(!ep_host_failed(&group) == (report == 0));
    ep_host_ops.close(context);
    while (piece_count > 0)
        free(pieces[--piece_count]);
}

/* Foreign bytes as what the proxy of a rank on another host says: frames with the length that each claims to send. What
 * they may write is written. */
void fuzz_ep_frames(const uint8_t *data, size_t size)
{
    enum { FRAME = 4 + 4 + 8 + 8 };
    struct strait_ep_config config;
    struct ep_proxy_peer peer;

    piece_count = 0;
    begin_group(CODED, &config);
    link_begin(&peer, &group);
    for (; size >= FRAME && peer.link != NULL; data += FRAME, size -= FRAME) {
        const uint64_t bytes = load_le64(data + 16);
        void *to = arrive(load_le32(data), load_le32(data + 4), load_le64(data + 8), bytes);
        if (to != NULL)
            memset(to, 1, bytes);
    }
    while (piece_count > 0)
        free(pieces[--piece_count]);
}
