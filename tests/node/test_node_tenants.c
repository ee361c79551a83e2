/* Tenants: a client reaches pools of its own tenant only, under one daemon and between two, and uses no more than its
 * tenant may. Clients of other users are this thread with another user id while it connects. */
#include "tests/node/harness.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/channel.h"
#include "tests/node/rogue.h"

enum { ALICE = 61001, BOB = 61002, CAROL = 61003, STRANGER = 61009 };

static const char file_of_tenants[] = "tenant = blue\nuids = 61001\ngids = 61003\n"
                                      "tenant = red\nuids = 61002\npool-bytes = 1M\ntransfers = 3\nrate = 8M\n";

/* The system call itself is for this thread alone. */
static void become(uint32_t id)
{
    if (id != 0)
        ck_assert_int_eq(0, (int)syscall(SYS_setresgid, -1, id, -1));
    ck_assert_int_eq(0, (int)syscall(SYS_setresuid, -1, id, -1));
    if (id == 0)
        ck_assert_int_eq(0, (int)syscall(SYS_setresgid, -1, id, -1));
}

static struct party *party_as(const struct test_node *node, uint32_t id)
{
    become(id);
    struct party *party = party_open(node);
    become(0);
    return party;
}

static void give_tenants(struct test_node *node, const char *text)
{
    snprintf(node->options.tenants_file, sizeof(node->options.tenants_file), "%s/tenants", folder);
    FILE *file = fopen(node->options.tenants_file, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static struct pair pair_of(int wire, uint32_t source, uint32_t sink, struct geometry geometry)
{
    struct pair pair = pair_init(wire);
    give_tenants(pair.a, file_of_tenants);
    give_tenants(pair.b, file_of_tenants);
    ck_assert_int_eq(0, chmod(folder, 0711));
    test_node_start(pair.a);
    if (pair.b != pair.a)
        test_node_start(pair.b);
    ck_assert_int_eq(0, chmod(pair.a->options.socket, 0666));
    ck_assert_int_eq(0, chmod(pair.b->options.socket, 0666));
    pair.from = party_as(pair.a, source);
    pair.to = party_as(pair.b, sink);
    pair_pools(&pair, geometry);
    return pair;
}

TEST_LOOP(clients_of_one_tenant_move_pages_and_notes, WIRES)
{
    struct pair pair = pair_of(_i, ALICE, CAROL, (struct geometry){0}); /* by user, and by group */
    move_all(pair.source, pair.sink);
    struct flow *o = OFFER(pair.source, "push", LISTS({.count = 4}), .last = true);
    struct flow *e = EXPECT(pair.sink, "push", LISTS({.count = 4}));
    flow_start(o, pair.sink);
    arrives(e, o);
    ck_assert_int_eq(STRAIT_OK, strait_notify(peer_of(pair.from, pair.sink), "k", 1, "hello", 5));
    WAIT(pair.to->notes == 1);
    ck_assert(stat_of(pair.from, "counters.denied") == 0);
}

/* Whether there is such a key or not, the answer is the same. */
TEST_LOOP(pools_of_another_tenant_are_out_of_reach, WIRES)
{
    struct pair pair = pair_of(_i, ALICE, BOB, (struct geometry){0});
    struct flow *o = OFFER(pair.source, "secret", LISTS({.count = 4}), .last = true);
    (void)stats_text(pair.from);
    static const char *const keys[] = {"secret", "no such key"};
    for (int i = 0; i < 2; i++) {
        struct flow *e = EXPECT(pair.sink, keys[i], LISTS({.count = 4}));
        flow_start(e, pair.source);
        ends_failed(e, STRAIT_REASON_DENIED);
    }
    ck_assert_int_eq(STRAIT_OK, strait_pool_serve(pair.source->pool, NULL, 0));
    (void)stats_text(pair.from);
    const struct strait_page_list pages = {.count = 4};
    ends_failed(flow_read(pair.sink, pair.source, pages, pages, 0), STRAIT_REASON_DENIED);
    struct flow *pushed = OFFER(pair.source, "push", LISTS({.count = 4}), .last = true);
    struct flow *awaited = EXPECT(pair.sink, "push", LISTS({.count = 4}));
    (void)stats_text(pair.to);
    flow_start(pushed, pair.sink);
    ends_failed(pushed, STRAIT_REASON_DENIED);
    stays_undecided(awaited, 20);
    ck_assert(!o->decided);
    ck_assert_int_eq(STRAIT_OK, strait_notify(peer_of(pair.to, pair.source), "k", 1, "hello", 5));
    WAIT(pair.to->notes_failed == 1);
    ck_assert_str_eq("the pool belongs to another tenant", pair.to->note_text);
    ck_assert_uint_eq(0, pair.from->notes);
    struct party *root = party_open(pair.a);
    ck_assert(stat_of(root, "counters.denied") >= 4);
    ck_assert(pool_as_imagined(pair.sink));
}

/* ---- Clients whose messages the test writes itself --------------------------------------------------------------- */

/* Their pool is of the same shape as others here, under an id of the test's choice. */
struct raw {
    struct channel *channel;
    int memory;
    uint8_t *bytes;
};

enum { RAW_PAGES = 16, RAW_PAGE = 4096 };

static void raw_say(struct raw *raw, const struct message *message, const int *fds, uint32_t fd_count)
{
    ck_assert_int_eq(STRAIT_OK, channel_send(raw->channel, message, fds, fd_count));
    ck_assert_int_eq(STRAIT_OK, channel_flush(raw->channel));
}

/* Waits for a message of this type, passing over others; message_fini is the caller's. */
static struct raw raw_as(const struct test_node *node, uint32_t id)
{
    struct raw raw;
    const struct message hello = {.type = MESSAGE_HELLO,
                                  .hello = {.version = PROTOCOL_VERSION, .version_min = PROTOCOL_VERSION_MIN}};
    become(id);
    int fd = unix_dial(node->options.socket);
    become(0);
    ck_assert_int_eq(STRAIT_OK, channel_create(fd, MESSAGE_BYTES_MAX, 1 << 20, &raw.channel));
    raw.memory = sealed_memory(RAW_PAGES * RAW_PAGE, F_SEAL_SHRINK, (void **)&raw.bytes);
    memset(raw.bytes, 0x5a, RAW_PAGES * RAW_PAGE);
    raw_say(&raw, &hello, NULL, 0);
    struct message welcome = channel_await(raw.channel, MESSAGE_WELCOME);
    message_fini(&welcome);
    return raw;
}

static enum strait_status raw_pool(struct raw *raw, const struct pool_id *id)
{
    const struct wire_region region = {.handle = STRAIT_HANDLE_MEMFD,
                                       .device = -1,
                                       .page_stride = RAW_PAGE,
                                       .row_stride = RAW_PAGE,
                                       .page_count = RAW_PAGES,
                                       .rows = 1,
                                       .row_bytes = RAW_PAGE};
    const struct message message = {
        .type = MESSAGE_POOL_REGISTER,
        .pool_register = {.pool = *id, .fd_count = 1, .region_count = 1, .regions = &region}};
    raw_say(raw, &message, &raw->memory, 1);
    struct message answer = channel_await(raw->channel, MESSAGE_POOL_STATUS);
    enum strait_status status = (enum strait_status)answer.pool_status.status;
    message_fini(&answer);
    return status;
}

static void raw_offer(struct raw *raw, const struct pool_id *pool, uint64_t transfer, const char *key)
{
    const struct wire_page_list list = {.count = 4};
    const struct message message = {.type = MESSAGE_OFFER,
                                    .offer = {.transfer = transfer,
                                              .pool = *pool,
                                              .key = view_of(key, strlen(key)),
                                              .consumers = 1,
                                              .lease_ms = 60000,
                                              .last = true,
                                              .list_count = 1,
                                              .lists = &list}};
    raw_say(raw, &message, NULL, 0);
}

/* Without a word, as when it is killed. */
static void raw_die(struct raw *raw)
{
    channel_destroy(raw->channel);
    munmap(raw->bytes, RAW_PAGES * RAW_PAGE);
    close(raw->memory);
}

static struct pool_id id_of(struct test_pool *pool)
{
    struct pool_blob blob = blob_of(pool);
    struct pool_id id = blob.pool;
    blob_fini(&blob);
    return id;
}

/* Another tenant has a pool of the same id under the same daemon, and offers and sends notes under the same keys. */
TEST_LOOP(equal_names_of_two_tenants_do_not_meet, WIRES)
{
    struct pair pair = pair_of(_i, ALICE, CAROL, (struct geometry){0});
    const struct pool_id source = id_of(pair.source), sink = id_of(pair.sink);
    struct raw bob = raw_as(pair.a, BOB);
    ck_assert_int_eq(STRAIT_OK, raw_pool(&bob, &source));
    raw_offer(&bob, &source, 1, "k");
    struct flow *e = EXPECT(pair.sink, "k", LISTS({.count = 4}));
    flow_start(e, pair.source);
    stays_undecided(e, 30); /* there is an offer of that name, but not in this tenant */
    struct flow *o = OFFER(pair.source, "k", LISTS({.count = 4}), .last = true);
    arrives(e, o);
    struct raw second = raw_as(pair.b, BOB); /* where the notes and the pushes go */
    ck_assert_int_eq(STRAIT_OK, raw_pool(&second, &sink));
    struct flow *pushed = OFFER(pair.source, "push", LISTS({.count = 4}), .last = true);
    struct flow *awaited = EXPECT(pair.sink, "push", LISTS({.count = 4}));
    flow_start(pushed, pair.sink);
    arrives(awaited, pushed);
    ck_assert_int_eq(STRAIT_OK, strait_notify(peer_of(pair.from, pair.sink), "k", 1, "hello", 5));
    WAIT(pair.to->notes == 1);
    const struct message note = {.type = MESSAGE_NOTIFY,
                                 .notify = {.peer_pool = sink, .key = view_of("k", 1), .data = view_of("?", 1)}};
    raw_say(&second, &note, NULL, 0); /* to the pool of its own tenant */
    struct message come = channel_await(second.channel, MESSAGE_NOTE);
    ck_assert_int_eq('?', *(const char *)come.note.data.data);
    message_fini(&come);
    ck_assert_uint_eq(1, pair.to->notes);
    raw_die(&bob);
    raw_die(&second);
    move_all(pair.source, pair.sink);
    ck_assert(stat_of(pair.from, "counters.denied") == 0);
}

/* Whoever knows the id of a pool cannot take it while its owner is away. */
TEST(the_id_of_a_pool_cannot_be_taken_by_another_tenant)
{
    struct pair pair = pair_of(SAME, ALICE, ALICE, (struct geometry){0});
    const struct pool_id id = id_of(pair.source);
    party_close(pair.from);
    struct raw bob = raw_as(pair.a, BOB), alice = raw_as(pair.a, ALICE), again = raw_as(pair.a, CAROL);
    ck_assert_int_eq(STRAIT_OK, raw_pool(&bob, &id));
    ck_assert_int_eq(STRAIT_OK, raw_pool(&alice, &id));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, raw_pool(&again, &id)); /* of the same tenant: in use */
    raw_die(&bob);
    raw_die(&alice);
    raw_die(&again);
}

/* Pools of 64 KiB each, of which a tenant may have 1 MiB, and offers, of which it may have three. */
TEST(what_a_client_used_is_free_again_when_it_dies)
{
    struct pair pair = pair_of(SAME, ALICE, ALICE, (struct geometry){0});
    struct pool_id id = {{1}};
    for (uint8_t round = 0; round < 3; round++) {
        struct raw clients[16];
        id.bytes[1] = round;
        for (uint8_t i = 0; i < 16; i++) {
            id.bytes[2] = i;
            clients[i] = raw_as(pair.a, BOB);
            enum strait_status status = STRAIT_ERR_NO_MEMORY;
            for (int tries = 0; tries < 1000 && status != STRAIT_OK; tries++) { /* the others may not be gone yet */
                status = raw_pool(&clients[i], &id);
                pump_for(status != STRAIT_OK ? 5 : 0);
            }
            ck_assert_int_eq(STRAIT_OK, status);
        }
        struct raw more = raw_as(pair.a, BOB);
        id.bytes[2] = 16;
        ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, raw_pool(&more, &id));
        raw_die(&more);
        id.bytes[2] = 15;
        for (uint64_t i = 0; i < 4; i++)
            raw_offer(&clients[15], &id, i + 1, name_of((uint32_t)i));
        struct message refused = channel_await(clients[15].channel, MESSAGE_STATE);
        while (refused.state.transfer != 4) { /* the first three are live */
            ck_assert_int_ne(STRAIT_FAILED, (int)refused.state.state);
            message_fini(&refused);
            refused = channel_await(clients[15].channel, MESSAGE_STATE);
        }
        ck_assert_int_eq(STRAIT_REASON_NO_MEMORY, (int)refused.state.reason);
        message_fini(&refused);
        for (int i = 0; i < 16; i++)
            raw_die(&clients[i]);
    }
    struct party *root = party_open(pair.a);
    WAIT(stat_of(root, "gauges.clients") == 3); /* of the pair, and this one */
    WAIT(stat_of(root, "gauges.pools") == 2);
}

TEST(limits_are_those_of_all_clients_of_a_tenant)
{
    struct pair pair = pair_of(SAME, BOB, BOB, (struct geometry){.pages = 64}); /* 256 KiB each */
    struct test_pool *fits = pool_open(pair.to, (struct geometry){.pages = 100});
    pool_refused(pair.from, (struct geometry){.pages = 64}, STRAIT_ERR_NO_MEMORY, "that may be mapped");
    struct party *other = party_as(pair.a, ALICE);
    (void)pool_open(other, (struct geometry){.pages = 1024});
    struct flow *live[4];
    for (uint32_t i = 0; i < 3; i++)
        live[i] = OFFER(i % 2 == 0 ? fits : pair.source, name_of(i), LISTS({.first_id = i, .count = 1}));
    (void)stats_text(pair.to); /* all of them are there: the daemon reads its clients in any order */
    (void)stats_text(pair.from);
    live[3] = OFFER(pair.source, "k", LISTS({.first_id = 9, .count = 1}));
    ends_failed(live[3], STRAIT_REASON_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(live[3]->text, "tenant"));
    strait_abort(live[0]->transfer);
    ends_failed(live[0], STRAIT_REASON_ABORTED);
    (void)stats_text(pair.from);
    struct flow *next = OFFER(pair.source, "l", LISTS({.first_id = 9, .count = 1}));
    (void)stats_text(pair.from);
    pump_for(5);
    ck_assert(!next->decided);
}

/* 2 MiB at 8 MiB/s, of which 0.8 MiB are there at the beginning, and a chunk of 256 KiB may be owed at the end. */
TEST_LOOP(a_rate_is_kept, 2)
{
    struct pair pair = pair_init(_i == 0 ? SAME : SHM);
    give_tenants(pair.a, "tenant = default\nrate = 8M\n");
    give_tenants(pair.b, "tenant = default\nrate = 8M\n");
    pair_start(&pair, (struct geometry){.pages = 64, .layers = 8});
    uint64_t began = now_ms();
    move_all(pair.source, pair.sink);
    ck_assert_uint_ge(now_ms() - began, 100);
    ck_assert(stat_of(pair.to, "counters.grants_reclaimed") == 0);
}

static int pools_seen_by(struct party *party)
{
    cJSON *root = cJSON_Parse(stats_text(party));
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "pools"));
    cJSON_Delete(root);
    return count;
}

static int tenants_seen_by(struct party *party)
{
    cJSON *root = cJSON_Parse(stats_text(party));
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "tenants"));
    cJSON_Delete(root);
    return count;
}

TEST(a_tenant_sees_its_own_pools_and_root_all)
{
    struct pair pair = pair_of(SAME, ALICE, BOB, (struct geometry){0});
    struct party *root = party_open(pair.a), *stranger = party_as(pair.a, STRANGER);
    ck_assert_int_eq(1, pools_seen_by(pair.from));
    ck_assert_int_eq(1, pools_seen_by(pair.to));
    ck_assert_int_eq(0, pools_seen_by(stranger));
    ck_assert_int_eq(2, pools_seen_by(root));
    ck_assert_int_eq(1, tenants_seen_by(pair.from));
    ck_assert_int_eq(3, tenants_seen_by(root));
}

TEST(others_are_refused_if_the_file_says_so)
{
    struct pair pair = pair_init(SAME);
    give_tenants(pair.a, "others = refuse\ntenant = blue\nuids = 61001\n");
    ck_assert_int_eq(0, chmod(folder, 0711));
    test_node_start(pair.a);
    ck_assert_int_eq(0, chmod(pair.a->options.socket, 0666));
    struct party *alice = party_as(pair.a, ALICE), *stranger = party_as(pair.a, STRANGER), *root = party_open(pair.a);
    stranger->deaf = true; /* or it would connect again, as root */
    WAIT(alice->connects == 1);
    WAIT(stat_of(root, "counters.clients_refused_no_tenant") == 1);
    ck_assert(stat_of(root, "counters.clients_accepted") == 2);
    ck_assert(!strait_client_connected(stranger->client));
}

/* ---- Reading the file again -------------------------------------------------------------------------------------- */

static void change_tenants(struct test_node *node, const char *text)
{
    give_tenants(node, text);
    test_node_reload(node);
}

TEST(limits_that_a_reload_changes_hold_for_what_is_new)
{
    struct pair pair = pair_of(SAME, BOB, BOB, (struct geometry){.pages = 64}); /* 256 KiB each, of 1 MiB; 3 offers */
    struct flow *first = OFFER(pair.source, "first", LISTS({.count = 1}));
    (void)stats_text(pair.from);
    change_tenants(pair.a, "tenant = red\nuids = 61002\npool-bytes = 256K\ntransfers = 1\n");
    ends_failed(OFFER(pair.source, "second", LISTS({.first_id = 1, .count = 1})), STRAIT_REASON_NO_MEMORY);
    pool_refused(pair.to, (struct geometry){.pages = 1}, STRAIT_ERR_NO_MEMORY, "that may be mapped");
    change_tenants(pair.a, "tenant = red\nuids = 61002\npool-bytes = 16M\ntransfers = 2\n");
    struct flow *third = OFFER(pair.source, "third", LISTS({.first_id = 1, .count = 1}));
    (void)pool_open(pair.to, (struct geometry){.pages = 1024});
    (void)stats_text(pair.from);
    pump_for(5);
    ck_assert(!first->decided && !third->decided);
    ck_assert_uint_eq(0, pair.from->disconnects + pair.to->disconnects);
}

static bool sees_tenant(struct party *party, const char *name)
{
    cJSON *root = cJSON_Parse(stats_text(party)), *tenant;
    bool found = false;
    cJSON_ArrayForEach(tenant, cJSON_GetObjectItemCaseSensitive(root, "tenants")) found |=
        strcmp(name, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tenant, "name"))) == 0;
    cJSON_Delete(root);
    return found;
}

/* Who is connected stays where it is, with its pools and requests. */
TEST(users_that_a_reload_moves_belong_to_their_new_tenant_with_the_next_connection)
{
    struct pair pair = pair_of(SAME, ALICE, ALICE, (struct geometry){0});
    change_tenants(pair.a, "tenant = blue\nuids = 61002\ntenant = red\nuids = 61001\n");
    move_all(pair.source, pair.sink);
    ck_assert(sees_tenant(pair.from, "blue"));
    struct party *alice = party_as(pair.a, ALICE), *bob = party_as(pair.a, BOB);
    ck_assert(sees_tenant(alice, "red"));
    ck_assert(sees_tenant(bob, "blue"));
    struct test_pool *other = pool_open(alice, (struct geometry){0});
    struct flow *e = EXPECT(other, "k", LISTS({.count = 4}));
    flow_start(e, pair.source);
    ends_failed(e, STRAIT_REASON_DENIED);
    ck_assert_uint_eq(0, pair.from->disconnects + pair.to->disconnects);
}

/* What runs ends as ever and is told; then the client's connection ends, and it comes again as whoever it is now: here
 * as root, as this thread is. */
TEST_LOOP(a_removed_tenant_ends_with_what_its_clients_had_begun, WIRES)
{
    struct pair pair = pair_of(_i, BOB, BOB, (struct geometry){0});
    struct flow *o = OFFER(pair.source, "live", LISTS({.count = 4}), .last = true);
    struct flow *e = EXPECT(pair.sink, "live", LISTS({.count = 4}));
    struct party *idle = party_as(pair.b, BOB), *root = party_open(pair.b);
    (void)stats_text(pair.from);
    (void)stats_text(pair.to);
    (void)stats_text(idle);
    change_tenants(pair.a, "tenant = blue\nuids = 61001\n");
    if (pair.a != pair.b)
        change_tenants(pair.b, "tenant = blue\nuids = 61001\n");
    WAIT(idle->disconnects == 1 && idle->connects == 2);
    ck_assert(sees_tenant(root, "red"));
    struct flow *late = OFFER(pair.source, "late", LISTS({.first_id = 4, .count = 1}));
    ends_failed(late, STRAIT_REASON_LOCAL);
    ck_assert_str_eq("the client's tenant is no longer in tenants-file", late->text);
    pool_refused(pair.to, (struct geometry){0}, STRAIT_ERR_INVALID, "no longer in tenants-file");
    ck_assert_uint_eq(0, pair.from->disconnects + pair.to->disconnects);
    pull(e, o);
    WAIT(pair.from->connects == 2 && pair.to->connects == 2);
    WAIT(!sees_tenant(root, "red"));
    move_all(pair.source, pair.sink);
}

int main(void)
{
    if (geteuid() != 0) {
        printf("skipped: only root can connect as other users\n");
        return 77;
    }
    return node_main("node_tenants");
}
