/* Expert parallelism when something is wrong: ranks that are killed or late, rows without room, arguments, chunks and
 * numbers that no rank of ours would send. */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ep/group.h"
#include "ep/share.h"
#include "tests/ep/party.h"
#include "tests/run_suite.h"

static struct strait_ep_config config;
static struct scenario scenario;
static struct party_options options;

static const struct {
    enum strait_ep_algorithm algorithm;
    enum strait_ep_layout layout;
} layouts[] = {{STRAIT_EP_LOW_LATENCY, STRAIT_EP_EXPERT_MAJOR},
               {STRAIT_EP_LOW_LATENCY, STRAIT_EP_RANK_MAJOR},
               {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_FLAT},
               {STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_EXPERT_MAJOR}};

#define MILLISECOND 1000000ull
#define SHORT_NS    (200 * MILLISECOND) /* a timeout, where a rank is gone; before, and where none is, it is long */

static void prepare(int layout, uint32_t ranks)
{
    struct rng rng = rng_init(7);

    config = (struct strait_ep_config){.algorithm = layouts[layout].algorithm,
                                       .timeout_ns = 100000 * MILLISECOND,
                                       .experts = 4 * ranks,
                                       .tokens_max = 12,
                                       .row_bytes_max = 64,
                                       .topk_max = 4,
                                       .heap_bytes = 1u << 16};
    scenario = (struct scenario){.seed = 7,
                                 .ranks = ranks,
                                 .experts = 4 * ranks,
                                 .tokens_max = 12,
                                 .topk = 4,
                                 .algorithm = layouts[layout].algorithm,
                                 .layout = layouts[layout].layout,
                                 .alignment = 1,
                                 .receive_max = 12 * ranks,
                                 .row_bytes = 64,
                                 .combine_bytes = 64,
                                 .type = STRAIT_ELEMENT_BF16,
                                 .combine_type = STRAIT_ELEMENT_BF16};
    for (uint32_t s = 0; s < ranks; s++)
        scenario.tokens[s] = 12;
    ref_draw(&scenario, &rng, REF_UNIFORM);
    options = (struct party_options){.weights = true, .counts = true};
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Calls of a step. */
enum moment { BEFORE_UPDATE, BEFORE_DISPATCH, BEFORE_COMBINE, MOMENTS, NEVER };

static void end_at(enum moment at, enum moment end)
{
    if (at == end)
        raise(SIGKILL);
}

/* A step whose calls may fail: the first status that is not OK. Outputs are not looked at. The process is killed before
 * the call `end`. */
static enum strait_status try_step(struct strait_ep_group *group, uint32_t rank, enum moment end)
{
    const uint32_t rows = ref_rows(&scenario, rank);
    uint8_t *tokens = aligned_alloc(64, 12 * 64), *received = aligned_alloc(64, (size_t)(rows + 1) * 64);
    struct party party;
    struct strait_ep_routing routing = {.size = sizeof(routing), .tokens = 12, .topk_bytes = 8};
    int64_t numbers[12 * 4];

    require(tokens != NULL && received != NULL);
    memset(tokens, 0, 12 * 64);
    memset(received, 0, (size_t)(rows + 1) * 64);
    for (uint32_t i = 0; i < 12 * 4; i++)
        numbers[i] = scenario.numbers[rank][i / 4][i % 4];
    routing.topk = numbers;
    party_begin(&party, group, &scenario, rank, options);
    end_at(BEFORE_UPDATE, end);
    enum strait_status status = strait_ep_update(party.handle, &routing, NULL);
    end_at(BEFORE_DISPATCH, end);
    const struct strait_ep_tensor own = {tokens, 64, STRAIT_ELEMENT_BF16}, others = {received, 64, STRAIT_ELEMENT_BF16};
    const struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = own};
    const struct strait_ep_dispatch_out out = {.size = sizeof(out), .tokens = others, .rows = rows};
    if (status == STRAIT_OK)
        status = strait_ep_dispatch(party.handle, &in, &out, 0, NULL);
    end_at(BEFORE_COMBINE, end);
    const struct strait_ep_combine_in back = {.size = sizeof(back), .tokens = others};
    const struct strait_ep_combine_out sum = {.size = sizeof(sum), .tokens = own};
    if (status == STRAIT_OK)
        status = strait_ep_combine(party.handle, &back, &sum, 0, NULL);
    party_end(&party);
    free(tokens);
    free(received);
    return status;
}

/* ---- Ranks that are gone ----------------------------------------------------------------------------------------- */

enum { GONE = 2 };

static enum moment moment;

static void run_killed(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    struct party party;
    uint32_t rank = UINT32_MAX;

    party_begin(&party, group, &scenario, member->rank, options);
    party_step(&party);
    party_end(&party);
    world_barrier(member); /* a rank that is killed takes along what its proxy has not sent yet */
    group->view.timeout_ns = SHORT_NS;
    const uint64_t begin = now_ns(), late = machine_late_ns();
    require(try_step(group, member->rank, member->rank == GONE ? moment : NEVER) == STRAIT_ERR_TIMEOUT);
    const uint64_t took = now_ns() - begin;
    require(took >= SHORT_NS && took < SHORT_NS + 3000 * MILLISECOND + machine_late_ns() - late);
    require(strait_ep_async_error(group, &rank) == STRAIT_ERR_TIMEOUT && rank < 4 && rank != member->rank);
    /* The group is of no more use, and says so at once. */
    group->view.timeout_ns = config.timeout_ns; /* longer than the test may take */
    require(try_step(group, member->rank, NEVER) == STRAIT_ERR_TIMEOUT);
    strait_ep_error_clear(group);
    require(strait_ep_async_error(group, NULL) == STRAIT_ERR_TIMEOUT);
    strait_ep_group_destroy(group);
}

/* Names in /dev/shm that could be ours. */
static int shared_files(void)
{
    DIR *folder = opendir("/dev/shm");
    int count = 0;

    if (folder == NULL)
        return 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += strstr(entry->d_name, "strait-ep") != NULL;
    closedir(folder);
    return count;
}

/* On one host, and on two. */
TEST_LOOP(a_killed_rank_is_an_error_at_the_others_in_time, 2 * 4 * MOMENTS)
{
    prepare(_i / MOMENTS % 4, 4);
    moment = _i % MOMENTS;
    world_run_hosts(4, 1 + _i / (4 * MOMENTS), run_killed, NULL);
    require(shared_files() == 0);
}
END_TEST

static void run_masked(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    struct party party;
    int32_t active[4] = {7, 7, 7, 7};
    uint32_t rank = UINT32_MAX;

    party_begin(&party, group, &scenario, member->rank, options);
    party_step(&party);
    world_barrier(member);
    if (member->rank == GONE)
        raise(SIGKILL);
    party_update(&party);
    group->view.timeout_ns = 1000 * MILLISECOND;
    /* This dispatch has nothing of the rank that is gone, as if it had no tokens. */
    struct scenario rest = scenario;
    rest.tokens[GONE] = 0;
    ref_route(&rest);
    party.scenario = &rest;
    party.options.gone = 1u << GONE;
    party_dispatch(&party, 0);
    require(strait_ep_async_error(group, &rank) == STRAIT_ERR_TIMEOUT && rank == GONE);
    strait_ep_error_clear(group);
    require(strait_ep_async_error(group, NULL) == STRAIT_OK);
    group->view.timeout_ns = config.timeout_ns; /* nobody waits for that rank any longer */
    party_combine(&party, 0, false);
    for (uint32_t i = 0; i < 5; i++)
        party_step(&party);
    require(strait_ep_mask_get(group, active, NULL) == STRAIT_OK);
    for (uint32_t i = 0; i < 4; i++)
        require(active[i] == (i != GONE));
    require(strait_ep_async_error(group, NULL) == STRAIT_OK);
    party_end(&party);
    strait_ep_group_destroy(group);
}

TEST_LOOP(a_killed_rank_is_left_out_with_mask, 8)
{
    prepare(_i % 2, 4);
    config.mask = true;
    config.coding = _i / 2 % 2 ? STRAIT_EP_CODED : STRAIT_EP_RAW;
    world_run_hosts(4, 1 + _i / 4, run_masked, NULL);
}
END_TEST

/* All but one leave that one out before anything has failed, and take it in again. */
static void run_mask_set(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    const int32_t without[3] = {1, 1, 0}, with[3] = {1, 1, 1}, wrong[3] = {0, 2, 1};
    struct scenario rest = scenario;
    struct party party;

    rest.tokens[2] = 0;
    ref_route(&rest);
    require(strait_ep_mask_set(group, wrong, NULL) == STRAIT_ERR_INVALID);
    party_begin(&party, group, &rest, member->rank, options);
    if (member->rank != 2) {
        require(strait_ep_mask_set(group, without, NULL) == STRAIT_OK);
        party.options.gone = 1u << 2;
        for (uint32_t i = 0; i < 3; i++)
            party_step(&party);
        require(strait_ep_mask_set(group, with, NULL) == STRAIT_OK);
    }
    require(strait_ep_async_error(group, NULL) == STRAIT_OK);
    party_end(&party);
    world_barrier(member);
    strait_ep_group_destroy(group);
}

TEST(ranks_can_be_left_out_by_hand)
{
    prepare(0, 3);
    config.mask = true;
    world_run(3, false, run_mask_set, NULL);
}
END_TEST

/* ---- Rows without room ------------------------------------------------------------------------------------------- */

static void run_trap(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    uint32_t rank = UINT32_MAX;

    require(try_step(group, member->rank, NEVER) == STRAIT_ERR_NO_SPACE);
    require(strait_ep_async_error(group, &rank) == STRAIT_ERR_NO_SPACE && rank == 0);
    require(try_step(group, member->rank, NEVER) == STRAIT_ERR_NO_SPACE);
    strait_ep_group_destroy(group);
}

TEST_LOOP(more_tokens_than_a_rank_takes_are_an_error_at_all, 2)
{
    struct rng rng = rng_init(8);

    prepare(2 + _i, 4);
    ref_draw(&scenario, &rng, REF_ONE);
    config.receive_max = 47; /* of 48 */
    world_run(4, false, run_trap, NULL);
}
END_TEST

/* A tensor with a row less than comes, inside of the heap and outside. */
static void run_short_tensor(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    const uint32_t rows = ref_rows(&scenario, member->rank), given = rows - (member->rank == 1);
    struct guarded outside;
    uint8_t *inside = strait_ep_alloc(group, (size_t)rows * 64), *tokens = aligned_alloc(64, 12 * 64);
    struct party party;
    uint32_t rank = UINT32_MAX;

    require(inside != NULL && tokens != NULL);
    guarded_init(&outside, (size_t)given * 64);
    memset(inside, CANARY, (size_t)rows * 64);
    memset(tokens, 1, 12 * 64);
    party_begin(&party, group, &scenario, member->rank, options);
    party_update(&party);
    const struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = {tokens, 64, STRAIT_ELEMENT_BF16}};
    const struct strait_ep_dispatch_out out = {
        .size = sizeof(out), .tokens = {options.heap ? inside : outside.bytes, 64, STRAIT_ELEMENT_BF16}, .rows = given};
    const enum strait_status status = strait_ep_dispatch(party.handle, &in, &out, 0, NULL);
    require(status == (member->rank == 1 ? STRAIT_ERR_NO_SPACE : STRAIT_OK));
    require((strait_ep_async_error(group, &rank) == STRAIT_ERR_NO_SPACE) == (member->rank == 1));
    require(member->rank != 1 || (rank == 1 && is_filled(inside + (size_t)given * 64, 64, CANARY)));
    world_barrier(member);
    party_end(&party);
    guarded_fini(&outside);
    free(tokens);
    strait_ep_group_destroy(group);
}

TEST_LOOP(a_tensor_that_is_too_short_is_not_written_beyond_its_end, 4)
{
    prepare(2 + _i % 2, 3);
    options.heap = _i / 2;
    world_run(3, false, run_short_tensor, NULL);
}
END_TEST

/* One rank has tensors of peers, and the others do not. */
static void run_half_peers(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    static uint8_t memory[3][2][1 << 14] __attribute__((aligned(64)));
    uint8_t(*own)[1 << 14] = memory[member->rank];
    void *const peers[] = {memory[0][1], memory[1][1], memory[2][1]};
    const struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = {own[0], 64, STRAIT_ELEMENT_BF16}};
    const struct strait_ep_dispatch_out out = {.size = sizeof(out),
                                               .tokens = {own[1], 64, STRAIT_ELEMENT_BF16},
                                               .rows = 36,
                                               .peers = member->rank == 1 ? peers : NULL};
    struct party party;
    uint32_t rank = UINT32_MAX;

    party_begin(&party, group, &scenario, member->rank, options);
    party_update(&party);
    if (member->rank == 1) /* it alone waits in vain */
        group->view.timeout_ns = SHORT_NS;
    const enum strait_status status = strait_ep_dispatch(party.handle, &in, &out, 0, NULL);
    if (member->rank == 1)
        require(status == STRAIT_ERR_TIMEOUT); /* the others gave up */
    else
        require(status == STRAIT_ERR_CORRUPT && strait_ep_async_error(group, &rank) == status && rank == 1);
    world_barrier(member);
    party_end(&party);
    strait_ep_group_destroy(group);
}

TEST(tensors_of_peers_that_one_rank_alone_has_are_an_error)
{
    prepare(2, 3);
    world_run(3, false, run_half_peers, NULL);
}
END_TEST

/* ---- What no rank of ours would send ----------------------------------------------------------------------------- */

/* Makes a failed group work again, as the library never would. */
static void revive(struct strait_ep_group *group)
{
    group->view.state->failed = 0;
    *group->report = 0;
}

/* Rank 0 damages a chunk that rank 1 has sent, between its arrival and the call that decodes it. */
static void run_damaged_chunk(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    const uint32_t all = (uint32_t)group->view.at.chunk_bytes;
    uint8_t *tokens = aligned_alloc(64, 12 * 64);
    uint8_t *received = aligned_alloc(64, (size_t)ref_rows(&scenario, member->rank) * 64);
    struct strait_chunk_info info;
    struct party party;
    struct rng rng = rng_init(9);
    uint32_t refused = 0;

    require(tokens != NULL && received != NULL);
    for (uint32_t t = 0; t < 12; t++)
        ref_token_row(&scenario, 0, member->rank, t, tokens + t * 64);
    party_begin(&party, group, &scenario, member->rank, options);
    party_update(&party);
    const struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = {tokens, 64, STRAIT_ELEMENT_BF16}};
    const struct strait_ep_dispatch_out out = {.size = sizeof(out), .tokens = {received, 64, STRAIT_ELEMENT_BF16}};
    for (uint32_t i = 0; i < 2000; i++) {
        require(strait_ep_dispatch(party.handle, &in, &out, STRAIT_EP_SEND_ONLY, NULL) == STRAIT_OK);
        world_barrier(member);
        if (member->rank == 0) {
            uint8_t *chunk = ep_chunk_of(&group->view, 0, group->view.state->epoch, 1, 0);
            require(strait_chunk_info(chunk, all, &info) == STRAIT_OK);
            chunk[i < info.chunk_bytes ? i : rng_below(&rng, (uint32_t)info.chunk_bytes)] ^= (uint8_t)(1u << (i % 8));
            uint32_t rank = UINT32_MAX;
            const enum strait_status status = strait_ep_complete(party.handle, NULL);
            require(status == STRAIT_ERR_CORRUPT || status == STRAIT_ERR_INTEGRITY);
            require(strait_ep_async_error(group, &rank) == status && rank == 1);
            refused++;
            revive(group);
        } else {
            require(strait_ep_complete(party.handle, NULL) == STRAIT_OK);
        }
        world_barrier(member);
    }
    require(member->rank != 0 || refused == 2000);
    party_end(&party);
    free(tokens);
    free(received);
    strait_ep_group_destroy(group);
}

TEST_LOOP(damaged_chunks_are_refused, 2)
{
    prepare(_i, 2);
    config.coding = STRAIT_EP_CODED;
    world_run(2, false, run_damaged_chunk, NULL);
}
END_TEST

/* What rank 1 has put into the arena of rank 0, changed there. */
enum lie { LIE_COUNT, LIE_TOKEN, LIE_NUMBERS, LIES, LIE_AGAIN };
static enum lie lie;

static void tell_lie(struct strait_ep_group *group)
{
    const uint64_t epoch = group->view.state->epoch;

    while (__atomic_load_n(ep_flag_of(&group->view, 0, EP_FLAG_DATA, 1), __ATOMIC_ACQUIRE) < epoch)
        sched_yield(); /* from another host it may not be there yet */
    if (lie == LIE_COUNT)
        ep_counts_of(&group->view, 0, epoch, 1)[0] = 13;
    else if (lie == LIE_TOKEN)
        ep_numbers_of(&group->view, 0, epoch, 4, 12)[4] = 12;
    else /* one expert, again and again: more rows than its zone has, or as many, which are more than lists have */
        for (uint32_t j = 0; j < (lie == LIE_AGAIN ? 4 : 12); j++)
            for (uint32_t k = 0; k < 4; k++)
                ep_numbers_of(&group->view, 0, epoch, 4, 12 + j)[k] = lie == LIE_AGAIN ? 0 : 3;
}

/* The combine after a dispatch that was lied about. */
static void combine_lie(struct party *party, void *received, void *tokens)
{
    const struct strait_ep_combine_in in = {.size = sizeof(in), .tokens = {received, 64, STRAIT_ELEMENT_BF16}};
    const struct strait_ep_combine_out out = {.size = sizeof(out), .tokens = {tokens, 64, STRAIT_ELEMENT_BF16}};

    require(strait_ep_combine(party->handle, &in, &out, STRAIT_EP_SEND_ONLY, NULL) ==
            (party->rank == 0 ? STRAIT_ERR_CORRUPT : STRAIT_OK));
}

static void run_lie(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    uint8_t *tokens = aligned_alloc(64, 12 * 64);
    struct guarded received;
    struct party party;
    uint32_t rank = UINT32_MAX;

    require(tokens != NULL);
    memset(tokens, 0, 12 * 64);
    guarded_init(&received, (size_t)ref_rows(&scenario, member->rank) * 64);
    party_begin(&party, group, &scenario, member->rank, options);
    party_update(&party);
    const struct strait_ep_dispatch_in in = {.size = sizeof(in), .tokens = {tokens, 64, STRAIT_ELEMENT_BF16}};
    const struct strait_ep_dispatch_out out = {.size = sizeof(out),
                                               .tokens = {received.bytes, 64, STRAIT_ELEMENT_BF16}};
    require(strait_ep_dispatch(party.handle, &in, &out, STRAIT_EP_SEND_ONLY, NULL) == STRAIT_OK);
    world_barrier(member);
    if (member->rank == 0)
        tell_lie(group);
    const enum strait_status status = strait_ep_complete(party.handle, NULL);
    require(status == (member->rank == 0 && lie != LIE_AGAIN ? STRAIT_ERR_CORRUPT : STRAIT_OK));
    if (lie == LIE_AGAIN)
        combine_lie(&party, received.bytes, tokens);
    require((strait_ep_async_error(group, &rank) == STRAIT_ERR_CORRUPT && rank == 1) == (member->rank == 0));
    world_barrier(member);
    party_end(&party);
    guarded_fini(&received);
    free(tokens);
    strait_ep_group_destroy(group);
}

TEST_LOOP(counts_and_numbers_that_cannot_be_are_refused, LIES)
{
    struct rng rng = rng_init(10);

    prepare(0, 2);
    lie = _i;
    ref_draw(&scenario, &rng, REF_ONE);
    world_run(2, false, run_lie, NULL);
}
END_TEST

/* Lists of rows that go back have room for each expert of a token once: those of another host, and coded ones. */
TEST_LOOP(an_expert_that_is_named_again_is_refused, 2)
{
    struct rng rng = rng_init(11);

    prepare(0, 2);
    lie = LIE_AGAIN;
    config.experts = scenario.experts = 2;
    config.coding = _i == 0 ? STRAIT_EP_RAW : STRAIT_EP_CODED;
    scenario.tokens[0] = 0;
    ref_draw(&scenario, &rng, REF_ONE);
    world_run_hosts(2, 2, run_lie, NULL);
}
END_TEST

TEST(announcements_outside_of_the_heap_are_refused)
{
    struct ep_group_view group = {.at = {.rows = 4096, .heap = 8192, .heap_bytes = 4096, .row_slots = 5}};
    uint8_t *base = group.arenas[1] = (uint8_t *)(uintptr_t)0x100000;
    const struct ep_peers peers = {.tensors = {[1] = base + 64}}, none = {.tensors = {NULL}};
    uint64_t rows;

    require(ep_announced(&group, 1, (struct ep_announce){0, 0}, 64, &peers, &rows) == base + 4096 && rows == 5);
    require(ep_announced(&group, 1, (struct ep_announce){8192, 64}, 64, &peers, &rows) == base + 8192 && rows == 64);
    require(ep_announced(&group, 1, (struct ep_announce){8192 + 4080, 0}, 64, &peers, &rows) != NULL && rows == 0);
    require(ep_announced(&group, 1, (struct ep_announce){EP_IN_PEERS, 9}, 64, &peers, &rows) == base + 64 && rows == 9);
    require(ep_announced(&group, 1, (struct ep_announce){EP_IN_PEERS, 9}, 64, &none, &rows) == NULL);
    group.remote = 1u << 1; /* peers' tensors are of the own host's ranks only */
    require(ep_announced(&group, 1, (struct ep_announce){EP_IN_PEERS, 9}, 64, &peers, &rows) == NULL);
    const struct ep_announce bad[] = {
        {8192, 65},           {8176, 1},          {8200, 1},       {12288, 1}, {16384, 0}, {12288 + 16, 0},
        {UINT64_MAX - 15, 1}, {8192, UINT64_MAX}, {8192 + 64, 64}, {4096, 1}};
    for (int i = 0; i < COUNT(bad); i++)
        require(ep_announced(&group, 1, bad[i], 64, &peers, &rows) == NULL);
}
END_TEST

/* ---- Groups that cannot be --------------------------------------------------------------------------------------- */

static enum strait_status made[4];
static char texts[4][256];

static void run_create(struct member *member)
{
    const struct strait_ep_config *wanted = member->context;
    struct strait_ep_config own = wanted[member->rank];
    const struct strait_ep_config world = world_config(member);
    struct strait_ep_group *group = NULL;

    own.size = world.size;
    own.all_gather = world.all_gather;
    own.context = world.context;
    if (own.rank == 0)
        own.rank = world.rank;
    own.rank_count = world.rank_count;
    made[member->rank] = strait_ep_group_create(&own, &group, texts[member->rank], sizeof(texts[0]));
    require((group != NULL) == (made[member->rank] == STRAIT_OK));
    strait_ep_group_destroy(group);
}

/* All ranks fail with this status, and some text has these words. */
static void require_refused(const struct strait_ep_config *configs, enum strait_status status, const char *words)
{
    bool told = false;

    world_run(3, false, run_create, configs);
    for (uint32_t rank = 0; rank < 3; rank++) {
        require(made[rank] == status);
        told = told || strstr(texts[rank], words) != NULL;
    }
    if (!told)
        fprintf(stderr, "%s / %s / %s\n", texts[0], texts[1], texts[2]);
    require(told);
}

static struct strait_ep_config good_config(void)
{
    return (struct strait_ep_config){.experts = 12, .tokens_max = 8, .row_bytes_max = 64, .topk_max = 2};
}

TEST(all_ranks_refuse_when_configurations_differ)
{
    struct strait_ep_config configs[3] = {good_config(), good_config(), good_config()};

    world_run(3, false, run_create, configs);
    for (uint32_t rank = 0; rank < 3; rank++)
        require(made[rank] == STRAIT_OK);
    configs[1].tokens_max = 9;
    require_refused(configs, STRAIT_ERR_INVALID, "tokens_max differs: 9 on rank 1, 8 expected");
    configs[1] = good_config();
    configs[2].heap_bytes = 256;
    require_refused(configs, STRAIT_ERR_INVALID, "heap_bytes");
    configs[2] = good_config();
    configs[2].rank = 1;
    require_refused(configs, STRAIT_ERR_INVALID, "rank differs");
}
END_TEST

TEST(all_ranks_refuse_when_one_is_out_of_limits)
{
    struct strait_ep_config configs[3] = {good_config(), good_config(), good_config()};
    const struct {
        size_t offset;
        uint32_t value;
        const char *words;
    } wrong[] = {{offsetof(struct strait_ep_config, algorithm), 2, "algorithm"},
                 {offsetof(struct strait_ep_config, memory), 2, "memory"},
                 {offsetof(struct strait_ep_config, experts), 13, "experts"},
                 {offsetof(struct strait_ep_config, experts), 0, "experts"},
                 {offsetof(struct strait_ep_config, experts), 4098, "experts"},
                 {offsetof(struct strait_ep_config, tokens_max), 0, "tokens_max"},
                 {offsetof(struct strait_ep_config, tokens_max), UINT32_MAX, "tokens_max"},
                 {offsetof(struct strait_ep_config, row_bytes_max), 24, "row_bytes_max"},
                 {offsetof(struct strait_ep_config, row_bytes_max), 0, "row_bytes_max"},
                 {offsetof(struct strait_ep_config, scale_bytes_max), 6, "scale_bytes_max"},
                 {offsetof(struct strait_ep_config, topk_max), 33, "topk_max"},
                 {offsetof(struct strait_ep_config, overflow), 2, "overflow"},
                 {offsetof(struct strait_ep_config, coding), 3, "coding"},
                 {offsetof(struct strait_ep_config, rank), 3, "rank"}};

    for (int i = 0; i < COUNT(wrong); i++) {
        configs[1] = good_config();
        memcpy((uint8_t *)&configs[1] + wrong[i].offset, &wrong[i].value, sizeof(uint32_t));
        require_refused(configs, STRAIT_ERR_INVALID, wrong[i].words);
    }
    configs[1] = good_config();
    configs[1].algorithm = STRAIT_EP_HIGH_THROUGHPUT;
    configs[1].mask = true;
    require_refused(configs, STRAIT_ERR_INVALID, "mask");
}
END_TEST

static int no_gather(void *context, const void *send, void *receive, size_t bytes)
{
    (void)context;
    (void)send;
    (void)receive;
    (void)bytes;
    return 1;
}

TEST(a_gather_that_fails_is_an_error)
{
    struct strait_ep_config one = good_config();
    struct strait_ep_group *group;
    char text[8];

    one.size = sizeof(one);
    one.rank_count = 1;
    require(strait_ep_group_create(&one, &group, text, sizeof(text)) == STRAIT_ERR_INVALID);
    one.all_gather = no_gather;
    require(strait_ep_group_create(&one, &group, text, sizeof(text)) == STRAIT_ERR_IO);
    require(strcmp(text, "all_gat") == 0);
    one.rank_count = 65;
    require(strait_ep_group_create(&one, &group, NULL, 0) == STRAIT_ERR_INVALID);
}
END_TEST

TEST(memory_of_another_host_is_not_mistaken_for_ours)
{
    struct ep_share_ticket ticket, changed;
    void *base, *again;
    int fd;

    require(ep_share_create(8192, &ticket, &fd, &base) == STRAIT_OK);
    require(ep_share_map(&ticket, &again) == STRAIT_OK && again == base);
    ep_share_unmap(again);
    changed = ticket;
    changed.name[0]++; /* the process and descriptor are there, but of something else */
    require(ep_share_map(&changed, &again) == STRAIT_ERR_UNSUPPORTED);
    changed = ticket;
    changed.process = INT32_MAX;
    require(ep_share_map(&changed, &again) == STRAIT_ERR_UNSUPPORTED);
    changed = ticket;
    changed.fd = 1 << 20;
    changed.name[1]++;
    require(ep_share_map(&changed, &again) == STRAIT_ERR_UNSUPPORTED);
    changed = ticket;
    changed.bytes = 4096;
    require(ep_share_map(&changed, &again) == STRAIT_ERR_UNSUPPORTED);
    memset(base, 1, 8192);
    ep_share_unmap(base);
    close(fd);
}
END_TEST

/* Rank 1 has no interface for ranks of other hosts. */
static void run_unreachable(struct member *member)
{
    const struct strait_ep_config own = party_config(member, &config);
    struct strait_ep_group *group;
    char text[200];

    if (member->rank == 1)
        require(setenv("NCCL_SOCKET_IFNAME", "=none", 1) == 0);
    require(strait_ep_group_create(&own, &group, text, sizeof(text)) == STRAIT_ERR_IO);
    require(strstr(text, member->rank == 1 ? "no address" : "rank 1") != NULL);
}

TEST(all_ranks_refuse_when_one_cannot_be_reached)
{
    prepare(2, 4);
    world_run_hosts(4, 2, run_unreachable, NULL);
}
END_TEST

/* The gather of rank 3 changes what rank 2 tells of its memory, which is the second that ranks gather. */
static int gather_changed(void *context, const void *send, void *receive, size_t bytes)
{
    static uint32_t gathers;
    const struct member *member = context;
    uint8_t *of_rank2 = (uint8_t *)receive + 2 * bytes;

    if (world_gather(context, send, receive, bytes) != 0)
        return 1;
    gathers++;
    for (uint32_t i = 0; gathers == 2 && member->rank == 3 && i < sizeof(struct ep_share_ticket); i++)
        of_rank2[sizeof(int64_t) + i] ^= 0x55;
    return 0;
}

static void run_unmapped(struct member *member)
{
    struct strait_ep_config own = party_config(member, &config);
    struct strait_ep_group *group;
    const uint64_t begun = now_ns();
    char text[200];

    own.all_gather = gather_changed;
    require(strait_ep_group_create(&own, &group, text, sizeof(text)) == STRAIT_ERR_UNSUPPORTED);
    require(strstr(text, member->rank == 3 ? "memory of rank 2 cannot be mapped" : "rank 3") != NULL);
    require(now_ns() - begun < 9000 * MILLISECOND); /* nobody waits for a connection */
}

TEST(all_ranks_refuse_when_memory_cannot_be_mapped)
{
    prepare(2, 4);
    world_run_hosts(4, 2, run_unmapped, NULL);
}
END_TEST

/* A child of rank 0 frees its copy of the group, as programs do that end their objects wherever they exit. */
static void run_forked(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    struct party party;

    if (member->rank == 0) {
        const pid_t child = fork();
        require(child >= 0);
        if (child == 0) {
            strait_ep_group_destroy(group);
            _exit(0);
        }
        require(waitpid(child, NULL, 0) == child);
    }
    world_barrier(member);
    party_begin(&party, group, &scenario, member->rank, options);
    party_step(&party);
    party_end(&party);
    strait_ep_group_destroy(group);
}

TEST(a_child_that_frees_the_group_takes_nothing_from_its_parent)
{
    prepare(2, 4);
    config.timeout_ns = 20000 * MILLISECOND;
    world_run_hosts(4, 2, run_forked, NULL);
}
END_TEST

/* ---- Calls out of order ------------------------------------------------------------------------------------------ */

static struct strait_ep_dispatch_in dispatch_in(void *rows)
{
    return (struct strait_ep_dispatch_in){.size = sizeof(struct strait_ep_dispatch_in),
                                          .tokens = {rows, 64, STRAIT_ELEMENT_BF16}};
}

static struct strait_ep_dispatch_out dispatch_out(void *rows)
{
    return (struct strait_ep_dispatch_out){.size = sizeof(struct strait_ep_dispatch_out),
                                           .tokens = {rows, 64, STRAIT_ELEMENT_BF16}};
}

static void run_order(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    static uint8_t memory[2][1 << 16] __attribute__((aligned(64)));
    const struct strait_ep_dispatch_in in = dispatch_in(memory[0]);
    const struct strait_ep_dispatch_out out = dispatch_out(memory[1]);
    const struct strait_ep_combine_in back = {.size = sizeof(back), .tokens = out.tokens};
    const struct strait_ep_combine_out sum = {.size = sizeof(sum), .tokens = in.tokens};
    struct strait_ep_dispatch_out odd = out;
    struct party a, b, c;

    odd.topk = memory[1] + 4;
    party_begin(&a, group, &scenario, 0, options);
    party_begin(&b, group, &scenario, 0, options);
    party_begin(&c, group, &scenario, 0, options);
    require(strait_ep_dispatch(a.handle, &in, &out, 0, NULL) == STRAIT_ERR_INVALID); /* no update */
    party_update(&a);
    party_update(&b);
    party_update(&c);
    require(strait_ep_combine(a.handle, &back, &sum, 0, NULL) == STRAIT_ERR_INVALID); /* no dispatch */
    require(strait_ep_complete(a.handle, NULL) == STRAIT_ERR_INVALID);
    require(strait_ep_dispatch(a.handle, &in, &out, 1u << 31, NULL) == STRAIT_ERR_INVALID);
    require(strait_ep_dispatch(a.handle, &in, &odd, STRAIT_EP_WIDE_IDS, NULL) == STRAIT_ERR_INVALID);
    require(strait_ep_dispatch(a.handle, &in, &out, STRAIT_EP_SEND_ONLY, NULL) == STRAIT_OK);
    require(strait_ep_dispatch(a.handle, &in, &out, 0, NULL) == STRAIT_ERR_INVALID); /* of the same handle */
    require(strait_ep_combine(a.handle, &back, &sum, 0, NULL) == STRAIT_ERR_INVALID);
    require(strait_ep_dispatch(b.handle, &in, &out, 0, NULL) == STRAIT_OK);
    require(strait_ep_dispatch(c.handle, &in, &out, 0, NULL) == STRAIT_ERR_INVALID); /* a's is not the last */
    require(strait_ep_complete(a.handle, NULL) == STRAIT_OK);
    require(strait_ep_dispatch(a.handle, &in, &out, STRAIT_EP_SEND_ONLY, NULL) == STRAIT_OK);
    require(strait_ep_dispatch(b.handle, &in, &out, STRAIT_EP_SEND_ONLY, NULL) == STRAIT_OK);
    require(strait_ep_dispatch(c.handle, &in, &out, 0, NULL) == STRAIT_ERR_INVALID); /* two are open */
    strait_ep_handle_destroy(b.handle);
    require(strait_ep_complete(a.handle, NULL) == STRAIT_OK);
    require(strait_ep_dispatch(c.handle, &in, &out, 0, NULL) == STRAIT_OK);
    party_end(&a);
    party_end(&c);
    strait_ep_group_destroy(group);
}

TEST(calls_that_may_not_be_open_at_once_are_refused)
{
    prepare(1, 1);
    world_run(1, false, run_order, NULL);
}
END_TEST

static void run_arguments(struct member *member)
{
    struct strait_ep_group *group = party_group(member, &config);
    static uint8_t memory[1 << 16] __attribute__((aligned(64)));
    const struct strait_ep_dispatch_in in = dispatch_in(memory);
    struct strait_ep_dispatch_out out = dispatch_out(memory + 8192);
    struct strait_ep_handle_config handle = {.size = sizeof(handle), .layout = scenario.layout, .topk = 5};
    struct strait_ep_handle *none;
    struct party party;

    require(strait_ep_handle_create(group, &handle, &none) == STRAIT_ERR_INVALID);
    handle.topk = 0;
    require(strait_ep_handle_create(group, &handle, &none) == STRAIT_ERR_INVALID);
    handle.topk = 1;
    handle.layout = config.algorithm == STRAIT_EP_LOW_LATENCY ? STRAIT_EP_FLAT : STRAIT_EP_RANK_MAJOR;
    require(strait_ep_handle_create(group, &handle, &none) == STRAIT_ERR_INVALID);
    party_begin(&party, group, &scenario, 0, options);
    party_update(&party);
    struct strait_ep_routing routing = {.size = sizeof(routing), .topk = memory, .tokens = 13, .topk_bytes = 4};
    require(strait_ep_update(party.handle, &routing, NULL) == STRAIT_ERR_INVALID);
    routing.tokens = 1;
    routing.topk_bytes = 2;
    require(strait_ep_update(party.handle, &routing, NULL) == STRAIT_ERR_INVALID);
    out.rows = 48;
    void *const odd[] = {memory + 8}, *const nothing[] = {NULL}, *const good[] = {memory + 8192};
    for (int i = 0; i < 11 + (scenario.layout != STRAIT_EP_FLAT); i++) {
        struct strait_ep_dispatch_in other = in;
        struct strait_ep_dispatch_out given = out;
        float weights[48 * 4];
        other.tokens.row_bytes = given.tokens.row_bytes = i == 0 ? 80 : i == 1 ? 24 : i == 2 ? 0 : 64;
        other.tokens.data = i == 3 ? NULL : i == 4 ? memory + 8 : memory;
        given.tokens.type = i == 5 ? STRAIT_ELEMENT_FP16 : STRAIT_ELEMENT_BF16;
        given.weights = i == 6 ? weights : NULL; /* without weights of the tokens */
        other.size -= i == 7 ? 8 : 0;
        given.tokens.data = i == 8 ? NULL : given.tokens.data;
        given.peers = i == 9 ? odd : i == 10 ? nothing : i == 11 ? good : NULL;
        require(strait_ep_dispatch(party.handle, &other, &given, 0, NULL) == STRAIT_ERR_INVALID);
    }
    require(strait_ep_dispatch(party.handle, &in, &out, 0, NULL) == STRAIT_OK);
    const struct strait_ep_combine_out sum = {.size = sizeof(sum), .tokens = in.tokens};
    struct strait_ep_combine_in back = {.size = sizeof(back), .tokens = out.tokens};
    back.tokens.type = STRAIT_ELEMENT_FP8_E4M3; /* cannot be summed */
    require(strait_ep_combine(party.handle, &back, &sum, 0, NULL) == STRAIT_ERR_INVALID);
    back.tokens.type = STRAIT_ELEMENT_BF16;
    back.peers = odd;
    require(strait_ep_combine(party.handle, &back, &sum, 0, NULL) == STRAIT_ERR_INVALID);
    back.peers = NULL;
    if (config.algorithm == STRAIT_EP_HIGH_THROUGHPUT)
        require(strait_ep_combine(party.handle, &back, &sum, STRAIT_EP_SEND_ONLY, NULL) == STRAIT_ERR_INVALID);
    require(strait_ep_combine(party.handle, &back, &sum, 0, NULL) == STRAIT_OK);
    require(strait_ep_async_error(group, NULL) == STRAIT_OK); /* bad arguments do no harm */
    require(strait_ep_mask_get(group, (int32_t *)memory, NULL) == STRAIT_ERR_INVALID);
    party_end(&party);
    strait_ep_group_destroy(group);
}

TEST_LOOP(bad_arguments_are_refused_at_once, 4)
{
    prepare(_i, 1);
    world_run(1, false, run_arguments, NULL);
}
END_TEST

int main(void)
{
    print_conditions();
    require(machine_watch());
    return run_tests("ep_failures", NULL, NULL);
}
