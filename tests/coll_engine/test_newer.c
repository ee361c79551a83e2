/* What NCCL has had since 2.28: communicators that grow and that are suspended, calls with a config, encryption. */
#include <string.h>

#include "tests/coll_engine/harness.h"

/* ---- Growing ----------------------------------------------------------------------------------------------------- */

/* From two ranks to three and on to four. New ranks know nothing but the id, which the root alone has of the others. */
enum { GROWN = 4, FIRST = 2 };

static coll_id grow_id;

static coll_comm grow(struct rank *rank, coll_comm parent, int root, int ranks)
{
    coll_comm grown = NULL;
    if (rank->rank == root)
        require_ok(ncclCommGetUniqueId(parent, &grow_id));
    ranks_meet();
    if (rank->rank < ranks) {
        const bool is_new = parent == NULL;
        require_ok(ncclCommGrow(parent, ranks, is_new || rank->rank == root ? &grow_id : NULL, is_new ? rank->rank : -1,
                                &grown, NULL));
        struct rank of_grown = *rank;
        of_grown.ranks = ranks;
        rank_gather(&of_grown, grown, true);
    }
    ranks_meet();
    return grown;
}

static void grow_twice(struct rank *rank)
{
    const int root = *(const int *)rank->argument % FIRST;
    coll_comm comms[3] = {NULL};
    fake_device_set(rank->rank);
    rank->stream = fake_stream_make();
    if (rank->rank < FIRST)
        require_ok(ncclCommInitRank(&comms[0], FIRST, rank->id, rank->rank));
    comms[1] = grow(rank, comms[0], root, 3);
    comms[2] = grow(rank, comms[1], root, GROWN);
    for (int i = 0; i < 3; i++)
        if (comms[i] != NULL)
            require_ok(ncclCommDestroy(comms[i]));
    fake_stream_end(rank->stream);
}

/* Scenes: either rank is the root; ranks join at a server, or in shared memory. */
START_TEST(communicators_that_grow_join)
{
    if (_i / FIRST == 1)
        setenv("STRAIT_COLL_MEET", "host", 1);
    ranks_start(GROWN, grow_twice, &_i);
}
END_TEST

/* ---- Suspending -------------------------------------------------------------------------------------------------- */

static uint64_t statistic(coll_comm comm, int which)
{
    uint64_t value = 0;
    require_ok(ncclCommMemStats(comm, which, &value));
    return value;
}

/* The fake's own figures are 1000, 0 and 2000. */
static void require_memory(coll_comm comm, uint64_t suspendable, uint64_t persistent, bool suspended)
{
    require(statistic(comm, COLL_MEMORY_SUSPENDABLE) == 1000 + suspendable);
    require(statistic(comm, COLL_MEMORY_SUSPENDED) == suspended);
    require(statistic(comm, COLL_MEMORY_PERSISTENT) == 2000 + persistent);
    require(statistic(comm, COLL_MEMORY_TOTAL) == 3000 + suspendable + persistent);
}

static void gather_some(struct rank *rank, size_t count, uint64_t seed)
{
    struct gather gather = gather_new(rank, COLL_BF16, count, VALUES_NORMAL);
    gather_fill(rank, &gather, VALUES_NORMAL, seed);
    gather_run(rank, &gather, false);
}

/* Blocks of memory on all ranks, which all of them see alike. */
static int64_t blocks_of(void)
{
    ranks_meet();
    const int64_t blocks = fake_gpu.made;
    ranks_meet();
    return blocks;
}

enum { SMALL = 40001, LARGE = 2000001 };

static void suspend_and_resume(struct rank *rank)
{
    const uint64_t fixed = statistic(rank->comm, COLL_MEMORY_PERSISTENT) - 2000;
    const int64_t before = blocks_of();
    require(fixed > 0);
    require_memory(rank->comm, 0, fixed, false);
    gather_some(rank, SMALL, 1);
    gather_some(rank, LARGE, 2); /* the memory before is kept, too */
    const int64_t used = blocks_of();
    require(used == before + 2 * rank->ranks);
    const uint64_t own = statistic(rank->comm, COLL_MEMORY_SUSPENDABLE) - 1000;
    require(own >= 2 * (uint64_t)LARGE);
    require_memory(rank->comm, own, fixed, false);
    require_ok(ncclCommSuspend(rank->comm, COLL_SUSPEND_MEMORY));
    require(blocks_of() == before);
    const uint64_t later = statistic(rank->comm, COLL_MEMORY_SUSPENDABLE) - 1000;
    require(later > 0 && later < own); /* what was outgrown does not come again */
    require_memory(rank->comm, later, fixed, true);
    require_ok(ncclCommResume(rank->comm));
    require(blocks_of() == before + rank->ranks);
    require_memory(rank->comm, later, fixed, false);
    gather_some(rank, LARGE, 3);
    require(blocks_of() == before + rank->ranks);
    require_told(rank->comm, "all_gather", "bf16", 3, 3);
}

/* A graph's memory stays, as the graph has its addresses. */
static void suspend_with_graph(struct rank *rank)
{
    struct gather gather = gather_new(rank, COLL_BF16, SMALL, VALUES_NORMAL);
    gather_fill(rank, &gather, VALUES_NORMAL, 4);
    fake_capture_begin(rank->stream);
    require_ok(gather_post(rank, &gather));
    struct fake_graph *graph = fake_capture_end(rank->stream);
    fake_graph_launch(graph, rank->stream);
    gather_check(rank, &gather);
    const int64_t used = blocks_of();
    require_ok(ncclCommSuspend(rank->comm, COLL_SUSPEND_MEMORY));
    require(blocks_of() == used);
    require_ok(ncclCommResume(rank->comm));
    gather_fill(rank, &gather, VALUES_NORMAL, 5);
    fake_graph_launch(graph, rank->stream);
    gather_check(rank, &gather);
    fake_graph_end(graph);
}

/* When a rank cannot have its memory again, all are raw from the second operation on, as without. */
static void resume_without_memory(struct rank *rank)
{
    gather_some(rank, SMALL, 6);
    require_ok(ncclCommSuspend(rank->comm, COLL_SUSPEND_MEMORY));
    fake_gpu.full = 1u << 1;
    ranks_meet();
    require_ok(ncclCommResume(rank->comm));
    for (uint64_t i = 0; i < 3; i++) {
        gather_some(rank, SMALL, 7 + i);
        ranks_meet();
    }
    require_told(rank->comm, "all_gather", "bf16", 4, 2);
    ranks_meet();
    fake_gpu.full = 0;
}

/* ---- Configs ----------------------------------------------------------------------------------------------------- */

static coll_call_config config_new(void)
{
    return (coll_call_config){.head = {sizeof(coll_call_config), COLL_CONFIG_MAGIC, FAKE_VERSION},
                              .least_blocks = COLL_UNDEFINED,
                              .most_blocks = COLL_UNDEFINED,
                              .nvls_blocks = COLL_UNDEFINED,
                              .cluster = COLL_UNDEFINED,
                              .must_select = 1,
                              .policy = COLL_UNDEFINED};
}

enum config_kind { PLAIN, HINTS, OLDER, SELECTS, SELECTS_NOTHING, POLICY, POLICY_DEFAULT, EVENT, EXTENDED, CONFIGS };

static coll_call_config config_of(enum config_kind kind, char *text)
{
    static uint64_t something;
    coll_call_config config = config_new();
    if (kind == HINTS)
        config.most_blocks = config.cluster = 4;
    if (kind == HINTS)
        config.tag = 5;
    if (kind == SELECTS || kind == SELECTS_NOTHING)
        config.selection = text;
    if (kind == SELECTS)
        strcpy(text, FAKE_SELECTION);
    if (kind == POLICY)
        config.policy = 2;
    if (kind == POLICY_DEFAULT)
        config.policy = 0;
    if (kind == EVENT || kind == OLDER)
        config.launched = &something;
    if (kind == OLDER) /* which has no event */
        config.head.size = offsetof(coll_call_config, launched);
    if (kind == EXTENDED)
        config.extensions = &something;
    return config;
}

static bool is_compressed(int kind)
{
    return kind == PLAIN || kind == HINTS || kind == OLDER || kind == SELECTS_NOTHING || kind == POLICY_DEFAULT;
}

/* In a group, the config has ended when NCCL gets the call; an all_to_all waits there for its turn. */
static coll_result post_configured(struct rank *rank, const uint8_t *out, uint8_t *in, int kind, size_t count,
                                   bool exchanges)
{
    char text[sizeof(FAKE_SELECTION)] = "";
    coll_call_config config = config_of(kind, text);
    const coll_result result = exchanges
                                   ? ncclAlltoAllConfig(out, in, count, COLL_BF16, rank->comm, rank->stream, &config)
                                   : ncclAllGatherConfig(out, in, count, COLL_BF16, rank->comm, rank->stream, &config);
    memset(&config, 0x5a, sizeof(config));
    memset(text, 0x5a, sizeof(text));
    return result;
}

static void call_configured(struct rank *rank)
{
    const int scene = *(const int *)rank->argument, kind = scene % CONFIGS;
    const bool grouped = scene / CONFIGS == 1;
    const size_t all = SMALL * (size_t)rank->ranks;
    uint8_t *out = values_new(rank, COLL_BF16, all), *gathered = values_new(rank, COLL_BF16, all),
            *exchanged = values_new(rank, COLL_BF16, all);
    parts_fill(out, COLL_BF16, SMALL, rank->ranks, VALUES_NORMAL, seed_of(1, rank->rank, 0), 1);
    if (grouped)
        require_ok(ncclGroupStart());
    require_ok(post_configured(rank, out, gathered, kind, SMALL, false));
    require_ok(post_configured(rank, out, exchanged, kind, SMALL, true));
    if (grouped)
        require_ok(ncclGroupEnd());
    fake_stream_wait(rank->stream);
    for (int from = 0; from < rank->ranks; from++) {
        require(values_are(gathered + 2 * SMALL * (size_t)from, COLL_BF16, SMALL, VALUES_NORMAL, seed_of(1, from, 0)));
        require(values_are(exchanged + 2 * SMALL * (size_t)from, COLL_BF16, SMALL, VALUES_NORMAL,
                           seed_of(1, from, rank->rank)));
    }
    require_told(rank->comm, "all_gather", "bf16", 1, is_compressed(kind));
    require_told(rank->comm, "all_to_all", "bf16", 1, is_compressed(kind));
    ranks_meet();
    require(fake_nccl.configured == (is_compressed(kind) ? 0 : 2u * (unsigned)rank->ranks));
    require(fake_nccl.selected == (kind == SELECTS ? 2u * (unsigned)rank->ranks : 0));
    /* No config is none at all. */
    require_ok(ncclAllGatherConfig(out, gathered, SMALL, COLL_BF16, rank->comm, rank->stream, NULL));
    require_told(rank->comm, "all_gather", "bf16", 2, 1u + is_compressed(kind));
}

START_TEST(configs_that_say_how_nccl_moves_it_keep_calls_raw)
{
    ranks_run(2 + _i % 2, call_configured, &_i);
}
END_TEST

/* ---- Encryption -------------------------------------------------------------------------------------------------- */

static void set_encryption(int mode)
{
    const coll_encryption encryption = {
        .head = {sizeof(encryption), COLL_CONFIG_MAGIC, FAKE_VERSION}, .mode = mode, .key = "a secret"};
    require_ok(ncclSetEncryption(&encryption));
}

/* Ranks of one host join by its memory. Those of several do not, however they have found each other. */
static void gather_encrypted(struct rank *rank)
{
    const bool one_host = *(const int *)rank->argument % 2 == 0;
    rank_gather(rank, rank->comm, one_host);
    if (!one_host)
        require(strstr(told_of(rank->comm, "all_gather", "bf16").reason, "raw: ") != NULL);
}

START_TEST(with_encryption_ranks_of_several_hosts_stay_raw)
{
    coll_id id;
    set_encryption(0);
    require_ok(ncclGetUniqueId(&id)); /* it names a server, which is not used */
    set_encryption(1);
    setenv("STRAIT_TEST_HOSTS", _i % 2 == 0 ? "4" : "2", 1);
    if (_i / 2 == 0)
        ranks_run(4, gather_encrypted, &_i);
    else
        ranks_run_with_id(&id, 4, gather_encrypted, &_i);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("newer");
    tcase_add_loop_test(tests, communicators_that_grow_join, 0, 2 * FIRST);
    add_ranks(tests, "what_is_suspended_has_no_memory", ranks_run, suspend_and_resume, 3, 1);
    add_ranks(tests, "graphs_keep_their_memory", ranks_run, suspend_with_graph, 2, 1);
    add_ranks(tests, "what_cannot_be_resumed_goes_raw", ranks_run, resume_without_memory, 3, 1);
    tcase_add_loop_test(tests, configs_that_say_how_nccl_moves_it_keep_calls_raw, 0, 2 * CONFIGS);
    tcase_add_loop_test(tests, with_encryption_ranks_of_several_hosts_stay_raw, 0, 4);
    return suite_run("newer", tests);
}
