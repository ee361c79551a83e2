/* Streams that wait for transfers, as libstrait alone sees to them: against a daemon that says or does not say. */
#include "tests/client/harness.h"

#include <sys/mman.h>

#include "client/gpu.h"
#include "tests/fakes/cuda.h"

static uint32_t *words; /* as the daemon has them */
static struct strait_pool *pool;

/* One of the two regions is on a GPU. */
static struct strait_transfer *on_gpu(uint32_t deadline_ms)
{
    struct strait_pool_region regions[2] = {region_of(0, 0, STRAIT_ROLE_K), region_of(0, 3, STRAIT_ROLE_K)};
    regions[1].handle = STRAIT_HANDLE_CUDA_IPC;
    regions[1].device = 0;
    regions[1].fd = -1;
    descriptors_kept = 1; /* of the words: for the next client */
    pool = try_pool(regions, 2, STRAIT_OK);
    return expect_pages(pool, 0, 3, deadline_ms);
}

static void map_words(void)
{
    until(find_got(MESSAGE_WORDS, 0) != NULL);
    for (uint32_t i = 0; i < fake.count; i++)
        if (fake.got[i].message.type == MESSAGE_WORDS) {
            size_t size = fake.got[i].message.words.count * sizeof(uint32_t);
            words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fake.got[i].fds[0], 0);
            ck_assert_ptr_ne(MAP_FAILED, words);
        }
}

static void raise(const struct message *wait)
{
    __atomic_store_n(&words[wait->wait.word], wait->wait.value, __ATOMIC_RELEASE);
}

static uint64_t number_of(uint32_t nth)
{
    until(find_got(MESSAGE_EXPECT, nth) != NULL);
    return find_got(MESSAGE_EXPECT, nth)->expect.transfer;
}

/* Long enough for a stream that does not wait. */
static void require_waiting(atomic_int *ran)
{
    for (int i = 0; i < 20; i++) {
        step();
        rest();
    }
    ck_assert_int_eq(0, atomic_load(ran));
}

#define goes_on(ran) until(atomic_load(ran) != 0)

TEST_LOOP(a_stream_waits_for_its_word, 2)
{
    atomic_int ran = 0;
    void *stream = stream_make(_i), *context;
    connect_client();
    struct strait_transfer *transfer = on_gpu(10000);
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, 3, stream));
    stream_mark(stream, &ran);
    ck_assert_int_eq(0, cuCtxGetCurrent(&context));
    ck_assert_ptr_null(context); /* as it was */
    map_words();
    until(find_got(MESSAGE_WAIT, 0) != NULL);
    const struct message *wait = find_got(MESSAGE_WAIT, 0);
    ck_assert_uint_eq(number_of(0), wait->wait.transfer);
    ck_assert_int_eq(3, wait->wait.layer);
    require_waiting(&ran);
    raise(wait); /* nobody polls from here on */
    for (long end = now_ms() + PATIENCE_MS; atomic_load(&ran) == 0 && now_ms() < end;)
        rest();
    ck_assert_int_eq(1, atomic_load(&ran));
}

enum ending { FAILED_BY_DAEMON, DONE_BY_DAEMON, DEADLINE, HANG_UP, ABORT, RELEASE, CLOSE, POOL_GOES, ENDINGS };

/* A verdict without a word, as of a daemon that has been slow about it or has died. */
TEST_LOOP(every_verdict_lets_streams_go_on, ENDINGS)
{
    atomic_int ran = 0;
    void *stream = stream_make(0);
    connect_client();
    struct strait_transfer *transfer = on_gpu(_i == DEADLINE ? 200 : 10000);
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, -1, stream));
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, 0, stream));
    stream_mark(stream, &ran);
    uint64_t id = number_of(0);
    if (_i != DEADLINE)
        require_waiting(&ran);
    if (_i == FAILED_BY_DAEMON)
        fake_state(id, STRAIT_FAILED, STRAIT_REASON_INTEGRITY, true);
    else if (_i == DONE_BY_DAEMON)
        fake_state(id, STRAIT_DONE, STRAIT_REASON_NONE, true);
    else if (_i == HANG_UP)
        fake_hang_up();
    else if (_i == ABORT)
        strait_abort(transfer);
    else if (_i == RELEASE)
        strait_release(transfer);
    else if (_i == POOL_GOES)
        fake_pool_status(pool, STRAIT_ERR_DEVICE, false);
    if (_i == CLOSE) {
        strait_client_close(client);
        client = NULL;
        for (long end = now_ms() + PATIENCE_MS; atomic_load(&ran) == 0 && now_ms() < end;)
            rest();
        ck_assert_int_eq(1, atomic_load(&ran));
        return;
    }
    goes_on(&ran);
}

TEST_LOOP(what_has_ended_is_not_waited_for, 2)
{
    atomic_int ran = 0;
    void *stream = stream_make(0);
    connect_client();
    struct strait_transfer *transfer = on_gpu(10000);
    fake_state(number_of(0), _i == 0 ? STRAIT_DONE : STRAIT_FAILED, STRAIT_REASON_NONE, true);
    until(strait_transfer_progress(transfer).drained);
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, 0, stream));
    stream_mark(stream, &ran);
    goes_on(&ran);
    ck_assert_ptr_null(find_got(MESSAGE_WAIT, 0));
    descriptors_kept = 0;
}

/* Words and waits reach a daemon that comes later, and the next one after it. */
TEST(a_daemon_that_comes_later_hears_of_words_first)
{
    atomic_int ran = 0;
    void *stream = stream_make(0);
    fake_listen();
    open_client();
    struct strait_transfer *transfer = on_gpu(10000);
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, -1, stream));
    stream_mark(stream, &ran);
    fake_greet();
    until(find_got(MESSAGE_WAIT, 0) != NULL);
    static const enum message_type order[] = {MESSAGE_HELLO, MESSAGE_WORDS, MESSAGE_POOL_REGISTER, MESSAGE_EXPECT,
                                              MESSAGE_WAIT};
    for (uint32_t i = 0; i < COUNT(order); i++)
        ck_assert_int_eq(order[i], fake.got[i].message.type);
    fake_hang_up();
    goes_on(&ran);
    fake_forget();
    fake_greet();
    until(find_got(MESSAGE_POOL_REGISTER, 0) != NULL);
    ck_assert_int_eq(MESSAGE_WORDS, fake.got[1].message.type);
    ck_assert_ptr_null(find_got(MESSAGE_WAIT, 0));
}

TEST(words_are_used_again)
{
    void *stream = stream_make(0);
    atomic_int ran = 0;
    connect_client();
    fake.deaf = true;
    for (uint32_t i = 0; i < 40; i++) {
        struct strait_transfer *transfer = on_gpu(10000);
        for (uint32_t k = 0; k < 1000; k++)
            ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, -1, stream));
        strait_abort(transfer);
        strait_release(transfer);
    }
    stream_mark(stream, &ran);
    goes_on(&ran);
    struct strait_transfer *transfer = on_gpu(60000);
    for (uint32_t k = 0; k < WORDS_COUNT; k++)
        ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, -1, stream));
    ck_assert_int_eq(STRAIT_ERR_NO_MEMORY, strait_wait_stream(transfer, -1, stream));
    strait_release(transfer);
    stream_mark(stream, &ran);
    until(atomic_load(&ran) == 2);
}

/* The memory stays; what a daemon of before writes to it is never more than what was asked of it. */
TEST(the_next_client_has_the_same_words)
{
    atomic_int ran = 0;
    void *stream = stream_make(0);
    connect_client();
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(on_gpu(10000), -1, stream));
    map_words();
    until(find_got(MESSAGE_WAIT, 0) != NULL);
    const struct message_wait old = find_got(MESSAGE_WAIT, 0)->wait;
    strait_client_close(client);
    client = NULL;
    fake_forget();
    fake_hang_up();
    fake_stop_listening();
    connect_client();
    struct strait_transfer *transfer = on_gpu(10000);
    ck_assert_int_eq(STRAIT_OK, strait_wait_stream(transfer, -1, stream));
    stream_mark(stream, &ran);
    ck_assert_uint_eq(old.value, words[old.word]); /* raised when the first client was closed */
    until(find_got(MESSAGE_WAIT, 0) != NULL);
    const struct message_wait now = find_got(MESSAGE_WAIT, 0)->wait;
    ck_assert_uint_eq(now.value - 1, words[now.word]);
    words[old.word] = old.value; /* late */
    require_waiting(&ran);
    struct words *others = words_get();
    ck_assert_uint_eq(0, others->issued[old.word]); /* not the same */
    words_raise(others, 0, 7);
    words_raise(others, 0, 6);
    ck_assert_uint_eq(7, others->at[0]);
    words_put(others);
    descriptors_kept = 2;
    strait_abort(transfer);
    goes_on(&ran);
}

TEST(what_cannot_wait_is_refused)
{
    void *stream = stream_make(0);
    connect_client();
    struct strait_transfer *transfer = on_gpu(10000);
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_wait_stream(NULL, 0, stream));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_wait_stream(transfer, -2, stream));
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_wait_stream(transfer, 1, stream));
    ck_assert_int_eq(STRAIT_ERR_DEVICE, strait_wait_stream(transfer, 0, NULL)); /* no context is current */
    fake_cuda_control.capturing = 1;
    ck_assert_int_eq(STRAIT_ERR_INVALID, strait_wait_stream(transfer, 0, stream));
    fake_cuda_control.capturing = 0;
    fake_cuda_control.fail = 1;
    ck_assert_int_eq(STRAIT_ERR_DEVICE, strait_wait_stream(transfer, 0, stream));
    ck_assert_uint_eq(0, fake_cuda_control.waits);
    struct strait_transfer *on_host = expect_pages(register_pool(), 0, 1, 10000);
    ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, strait_wait_stream(on_host, 0, stream));
}

int main(void)
{
    return client_main("client_stream");
}
