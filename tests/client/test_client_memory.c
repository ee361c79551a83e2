/* Each allocation of the library fails once, at every place of a whole conversation: what a verb returned and what the
 * events say must still fit together. Linked with --wrap for the allocating functions. */
#include "tests/client/harness.h"

#define TURNS 4000 /* of the pump, until something must have happened */

/* ---- Memory that fails ------------------------------------------------------------------------------------------- */

static bool inside;      /* the library */
static long until_fails; /* allocations to go; 0: none fails any more */
static bool failed;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

static bool fails_now(void)
{
    if (!inside || until_fails == 0 || --until_fails > 0)
        return false;
    failed = true;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails_now() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return fails_now() ? NULL : __real_strndup(text, size);
}

#define call(expression) (inside = true, result = (expression), inside = false, result)

/* ---- A daemon that agrees to everything -------------------------------------------------------------------------- */

static void say_state(uint64_t transfer, enum strait_state state, bool more)
{
    struct wire_page_list pages = {.first_id = more ? 0 : 1, .count = 1};
    struct message message = {.type = MESSAGE_STATE};
    message.state.transfer = transfer;
    message.state.state = state;
    message.state.more = more;
    if (state == STRAIT_FAILED) {
        message.state.reason = STRAIT_REASON_CODEC;
        message.state.failed = &pages;
        message.state.failed_count = 1;
        message.state.text = view_of("text", 4);
    }
    fake_say(&message);
}

static void say_not_delivered(uint32_t number)
{
    struct message message = {.type = MESSAGE_NOTED};
    message.noted =
        (struct message_noted){.failed = true, .text = view_of("text", 4), .notes = &number, .note_count = 1};
    fake_say(&message);
}

/* Expectations fail in two parts and drain, offers are done, notes are not delivered. */
static void answer(const struct message *message)
{
    if (message->type == MESSAGE_HELLO) {
        fake_welcome(PROTOCOL_VERSION);
    } else if (message->type == MESSAGE_POOL_REGISTER) {
        fake_say(&(struct message){.type = MESSAGE_POOL_STATUS, .pool_status.pool = message->pool_register.pool});
    } else if (message->type == MESSAGE_EXPECT) {
        say_state(message->expect.transfer, STRAIT_READY, false);
        fake_say(&(struct message){.type = MESSAGE_LAYERS, .layers = {message->expect.transfer, 2, (int32_t[]){0, 1}}});
        fake_say(&(struct message){
            .type = MESSAGE_PAGES,
            .pages = {message->expect.transfer, 1, &(struct wire_page_list){.count = 2, .ids = (uint32_t[]){5, 3}}}});
        say_state(message->expect.transfer, STRAIT_FAILED, true);
        say_state(message->expect.transfer, STRAIT_FAILED, false);
        fake_say(&(struct message){.type = MESSAGE_DRAINED, .transfer.transfer = message->expect.transfer});
    } else if (message->type == MESSAGE_OFFER && !message->offer.more) {
        say_state(message->offer.transfer, STRAIT_DONE, false);
    } else if (message->type == MESSAGE_NOTIFY) {
        say_not_delivered(message->notify.note);
    }
}

static void daemon_step(void)
{
    fake_step();
    for (uint32_t i = 0; i < fake.count && !fake.ended; i++)
        answer(&fake.got[i].message);
    fake_forget();
    if (fake.ended)
        fake_hang_up();
}

/* ---- The conversation -------------------------------------------------------------------------------------------- */

static int verdicts[3], drained[3]; /* of sink, source and an offer begun before there was a daemon */
static int notes_sent, notes_failed;

static void note(const struct strait_event *event)
{
    int *which = event->context;
    if (event->type == STRAIT_EVENT_NOTIFY_FAILED) {
        notes_failed++;
        ck_assert_int_ne('\0', event->text[0]);
    }
    if (event->type == STRAIT_EVENT_STATE && (event->state == STRAIT_DONE || event->state == STRAIT_FAILED))
        verdicts[which - verdicts]++;
    if (event->transfer != NULL && event->drained)
        drained[which - verdicts]++;
}

static void pump(const struct strait_transfer *const transfers[3])
{
    for (int turn = 0; turn < TURNS; turn++) {
        struct strait_event events[4];
        uint32_t result, count = call(strait_poll(client, events, 4));
        bool waits = notes_failed < notes_sent;
        for (uint32_t i = 0; i < count; i++)
            note(&events[i]);
        for (int i = 0; i < 3; i++)
            waits |= transfers[i] != NULL && drained[i] == 0;
        daemon_step();
        if (!waits && turn > 20)
            return;
        if (turn > 100)
            usleep(500);
    }
}

static struct strait_transfer *offer(struct strait_pool *pool, int which)
{
    uint32_t ids[3] = {3, 2, 1};
    struct strait_page_list list = {.count = 3, .ids = ids};
    struct strait_offer_params params = offer_params(&list, 1);
    params.last = true;
    params.context = &verdicts[which];
    struct strait_transfer *transfer = NULL;
    int result, status = call(strait_offer(pool, &params, &transfer));
    ck_assert_int_eq(status == STRAIT_OK, transfer != NULL);
    ck_assert(status == STRAIT_OK || status == STRAIT_ERR_NO_MEMORY);
    return transfer;
}

static struct strait_transfer *expect(struct strait_pool *pool, int which)
{
    struct strait_page_list list = {.count = 2};
    struct strait_expect_params params = expect_params(&list, 1);
    params.context = &verdicts[which];
    struct strait_transfer *transfer = NULL;
    int result, status = call(strait_expect(pool, &params, &transfer));
    ck_assert_int_eq(status == STRAIT_OK, transfer != NULL);
    ck_assert(status == STRAIT_OK || status == STRAIT_ERR_NO_MEMORY);
    return transfer;
}

/* To the pool itself, by its blob. */
static void notify(const struct strait_pool *pool)
{
    char blob[1024];
    size_t size;
    struct strait_peer *peer = NULL;
    int result;
    if (call(strait_pool_export(pool, blob, sizeof(blob), &size)) != STRAIT_OK)
        return;
    if (call(strait_peer_import(client, blob, size, &peer)) == STRAIT_OK)
        notes_sent += call(strait_notify(peer, "key", 3, "data", 4)) == STRAIT_OK;
}

static void converse(void)
{
    struct strait_pool_region region = region_of(0, 0, 0);
    struct strait_pool_params params = {.size = sizeof(params), .regions = &region, .region_count = 1};
    struct strait_pool *pool = NULL;
    struct strait_transfer *transfers[3] = {NULL};
    int result, status = call(strait_pool_register(client, &params, &pool));
    ck_assert_int_eq(status == STRAIT_OK, pool != NULL);
    if (pool == NULL)
        return;
    transfers[2] = offer(pool, 2);
    for (int i = 0; i < 10; i++) {
        struct strait_event event;
        if (call((int)strait_poll(client, &event, 1)) == 1)
            note(&event);
        daemon_step();
    }
    transfers[0] = expect(pool, 0);
    transfers[1] = offer(pool, 1);
    notify(pool);
    pump((const struct strait_transfer *const *)transfers);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(transfers[i] != NULL, verdicts[i]);
        ck_assert_int_eq(transfers[i] != NULL, drained[i]);
        strait_release(transfers[i]);
    }
    ck_assert_int_eq(notes_sent, notes_failed);
}

TEST(no_allocation_that_fails_loses_a_verdict)
{
    int rounds = 0;
    fake_listen();
    for (long at = 1; rounds == 0 || failed; at++, rounds++) {
        struct strait_client_config config = {.size = sizeof(config), .socket = fake.path};
        memset(verdicts, 0, sizeof(verdicts));
        memset(drained, 0, sizeof(drained));
        notes_sent = notes_failed = 0;
        failed = false;
        until_fails = at;
        int result, status = call(strait_client_open(&config, &client));
        ck_assert_int_eq(status == STRAIT_OK, client != NULL);
        if (client != NULL)
            converse();
        until_fails = 0;
        strait_client_close(client);
        client = NULL;
        for (int i = 0; i < 3; i++)
            daemon_step();
    }
    printf("%d allocations\n", rounds - 1);
    ck_assert_int_gt(rounds, 40);
}

int main(void)
{
    return client_main("client_memory");
}
