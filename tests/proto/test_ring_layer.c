/* Channels whose bytes go through rings: messages of all sizes both ways, the change from the socket, a full ring, who
 * is woken, the end, and a side that writes into the shared memory what it likes. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/ring_layer.h"
#include "tests/proto/frames.h"
#include "tests/run_suite.h"
#include "tests/support.h"

#define QUEUE_MAX ((size_t)32 * 1024 * 1024)
#define RING      4096u

static const uint32_t sizes[] = {RING};

/* An end, with a mapping of its own. */
static struct end {
    struct channel *channel;
    struct ring_file file;
    struct ring_layer layer;
    unsigned wakes;
} ends[2];

static void on_wake(void *owner)
{
    struct end *end = owner;
    end->wakes += ring_must_wake(ring_file_sleeps(&end->file, true));
}

static void setup(void)
{
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    const struct ring_file model = {.pairs = 1, .sizes = sizes};
    int memory = ring_file_make(&model);
    require(memory >= 0);
    for (uint32_t i = 0; i < 2; i++) {
        ends[i] = (struct end){.file = {.side = i, .pairs = 1, .sizes = sizes}};
        require(ring_file_map(&ends[i].file, memory));
        ring_layer_init(&ends[i].layer, ring_file_ring(&ends[i].file, 0, false), ring_file_ring(&ends[i].file, 0, true),
                        true, on_wake, &ends[i]);
        require(channel_create(fds[i], MESSAGE_BYTES_MAX, QUEUE_MAX, &ends[i].channel) == STRAIT_OK);
    }
    close(memory);
}

static void teardown(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        channel_destroy(ends[i].channel);
        ring_file_unmap(&ends[i].file);
    }
}

/* Both directions, with nothing before. */
static void use_rings(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        channel_send_by(ends[i].channel, &ends[i].layer.layer);
        ck_assert(channel_receive_by(ends[i].channel, &ends[i].layer.layer));
    }
}

static enum strait_status next(struct end *to, struct message *message)
{
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    enum strait_status status = STRAIT_ERR_AGAIN;
    for (uint32_t i = 0; i < 10000 && status == STRAIT_ERR_AGAIN; i++) {
        if (ends[to == ends].channel != NULL)
            channel_flush(ends[to == ends].channel);
        const bool ended = channel_read(to->channel) != STRAIT_OK;
        status = channel_next(to->channel, message, fds, &fd_count);
        if (ended)
            break;
    }
    return status;
}

static void require_next(struct end *to, const struct message *wanted)
{
    struct message message;
    ck_assert_int_eq(STRAIT_OK, next(to, &message));
    require_same_message(wanted, &message);
    message_fini(&message);
}

static struct message note_of(size_t size)
{
    static uint8_t data[STRAIT_NOTE_BYTES_MAX];
    ck_assert_uint_le(size, sizeof(data));
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 31 + size);
    struct message note = *golden_message("peer-note");
    note.owner = NULL;
    note.note.data = view_of(data, size);
    return note;
}

TEST_LOOP(messages_of_all_sizes_come_in_order, 2)
{
    use_rings();
    for (size_t size = 1; size < 40000; size += size / 3 + 7) {
        struct message note = note_of(size);
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[_i].channel, &note, NULL, 0));
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[_i].channel, golden_message("end"), NULL, 0));
        require_next(&ends[1 - _i], &note);
        require_next(&ends[1 - _i], golden_message("end"));
    }
}

TEST(what_was_queued_before_goes_the_way_so_far)
{
    enum { NOTES = 20 }; /* more than the socket takes at once */
    struct message note = note_of(60000);
    for (uint32_t i = 0; i < NOTES; i++)
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, &note, NULL, 0));
    channel_flush(ends[0].channel);
    ck_assert_uint_gt(channel_queued(ends[0].channel), 0);
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("ring"), NULL, 0));
    channel_send_by(ends[0].channel, &ends[0].layer.layer);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("heartbeat"), NULL, 0));
    channel_flush(ends[0].channel);
    ck_assert(channel_wants_write(ends[0].channel));
    ck_assert_uint_eq(0, ring_used(&ends[1].layer.in));
    for (uint32_t i = 0; i < NOTES; i++)
        require_next(&ends[1], &note);
    require_next(&ends[1], golden_message("ring"));
    channel_flush(ends[0].channel);
    ck_assert_uint_gt(ring_used(&ends[1].layer.in), 0);
    ck_assert(channel_receive_by(ends[1].channel, &ends[1].layer.layer));
    for (uint32_t i = 0; i < 5; i++)
        require_next(&ends[1], golden_message("heartbeat"));
    ck_assert(!channel_wants_write(ends[0].channel));
}

TEST(what_follows_on_the_socket_breaks_the_protocol)
{
    ring_layer_init(&ends[1].layer, ends[1].layer.in, ends[1].layer.out, false, on_wake, &ends[1]);
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("ring"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("end"), NULL, 0));
    require_next(&ends[1], golden_message("ring"));
    ck_assert(!channel_receive_by(ends[1].channel, &ends[1].layer.layer));
}

/* Bytes that wake, and descriptors with them, may follow at once. */
TEST(what_follows_on_a_socket_with_descriptors_is_none_of_the_messages)
{
    struct message message;
    int fds[CHANNEL_FDS_MAX], before = open_descriptors();
    uint32_t fd_count = 0;
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("ring"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(ends[0].channel));
    channel_send_by(ends[0].channel, &ends[0].layer.layer);
    require(send(channel_fd(ends[0].channel), "\0\0\0\0\0", 5, 0) == 5);
    const struct message words = {.type = MESSAGE_WORDS, .words = {.count = 1}};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, &words, (const int[]){STDIN_FILENO}, 1));
    require_next(&ends[1], golden_message("ring"));
    (void)channel_read(ends[1].channel);
    ck_assert(channel_receive_by(ends[1].channel, &ends[1].layer.layer));
    for (int i = 0; i < 3; i++) {
        channel_flush(ends[0].channel);
        (void)channel_read(ends[1].channel);
        ck_assert_int_eq(STRAIT_OK, channel_next(ends[1].channel, &message, fds, &fd_count));
        ck_assert_uint_eq(1, fd_count);
        close(fds[0]);
        message_fini(&message);
    }
    ck_assert_int_eq(before, open_descriptors());
}

/* Each frame gets its own, in their order, however many frames are on their way. */
TEST(descriptors_go_with_their_frames)
{
    enum { FRAMES = 40 };
    struct message message;
    int fds[CHANNEL_FDS_MAX], own[FRAMES], before = open_descriptors();
    uint32_t fd_count = 0;
    use_rings();
    for (uint32_t i = 0; i < FRAMES; i++) {
        const struct message words = {.type = MESSAGE_WORDS, .words = {.count = i + 1}};
        own[i] = sealed_memory(4096 * (i + 1), 0, NULL);
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, &words, &own[i], 1));
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("end"), NULL, 0));
        close(own[i]);
    }
    for (uint32_t i = 0; i < FRAMES; i++) {
        do {
            channel_flush(ends[0].channel);
            (void)channel_read(ends[1].channel);
        } while (channel_next(ends[1].channel, &message, fds, &fd_count) == STRAIT_ERR_AGAIN);
        ck_assert_uint_eq(i + 1, message.words.count);
        ck_assert_uint_eq(1, fd_count);
        ck_assert_int_eq(4096 * (i + 1), lseek(fds[0], 0, SEEK_END));
        close(fds[0]);
        message_fini(&message);
        require_next(&ends[1], golden_message("end"));
    }
    ck_assert_int_eq(before, open_descriptors());
}

/* A frame without the descriptors that it has to have, and descriptors without a frame. */
TEST_LOOP(descriptors_that_do_not_fit_break_the_protocol, 2)
{
    struct message message;
    int before = open_descriptors();
    use_rings();
    uint8_t byte = 0;
    for (int i = 0; i < 12 && _i == 1; i++)
        send_with_rights(channel_fd(ends[0].channel), &byte, 1, STDIN_FILENO, 12);
    ring_layer_socket_ready(&ends[1].layer);
    enum strait_status status = channel_read(ends[1].channel);
    for (int i = 0; i < 20 && status == STRAIT_OK && _i == 1; i++) {
        ring_layer_socket_ready(&ends[1].layer);
        status = channel_read(ends[1].channel);
    }
    ck_assert_int_eq(_i == 1 ? STRAIT_ERR_IO : STRAIT_OK, status);
    ring_layer_fini(&ends[1].layer);
    ck_assert_int_eq(before, open_descriptors());
    if (_i == 1)
        return;
    uint8_t *frame;
    size_t size;
    const struct message words = {.type = MESSAGE_WORDS, .words = {.count = 1}};
    ck_assert_int_eq(STRAIT_OK, message_pack(&words, &frame, &size));
    require(ring_put(&ends[0].layer.out, frame, size) == size);
    free(frame);
    ck_assert_int_eq(STRAIT_ERR_CORRUPT, next(&ends[1], &message));
}

TEST(a_full_ring_takes_no_more_until_there_is_room)
{
    struct message note = note_of(3 * RING), got;
    use_rings();
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, &note, NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(ends[0].channel));
    ck_assert_uint_eq(RING, ring_used(&ends[1].layer.in));
    ck_assert(!channel_wants_write(ends[0].channel)); /* a poll of the socket would not tell */
    ck_assert(!ring_layer_can_write(&ends[0].layer));
    ring_sleep(ring_file_sleeps(&ends[0].file, false), true);
    ck_assert_int_eq(STRAIT_OK, channel_read(ends[1].channel));
    ck_assert_uint_eq(1, ends[1].wakes); /* for the room */
    ck_assert(ring_layer_can_write(&ends[0].layer));
    ck_assert_int_eq(STRAIT_OK, next(&ends[1], &got));
    require_same_message(&note, &got);
    message_fini(&got);
    ck_assert(!ring_layer_can_write(&ends[0].layer));
    ring_sleep(ring_file_sleeps(&ends[0].file, false), true);
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("end"), NULL, 0));
    require_next(&ends[1], golden_message("end"));
    ck_assert_uint_eq(1, ends[1].wakes); /* nobody waits for room any more */
}

TEST(only_a_side_that_sleeps_is_woken_and_once)
{
    use_rings();
    for (uint32_t i = 0; i < 6; i++) {
        if (i == 3)
            ring_sleep(ring_file_sleeps(&ends[1].file, false), true);
        ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("end"), NULL, 0));
        ck_assert_int_eq(STRAIT_OK, channel_flush(ends[0].channel));
        ck_assert_uint_eq(i >= 3, ends[0].wakes);
    }
    ck_assert(channel_pending(ends[1].channel));
    for (uint32_t i = 0; i < 6; i++)
        require_next(&ends[1], golden_message("end"));
    ck_assert(!channel_pending(ends[1].channel));
}

/* What is in the ring comes first, but not what is put in after the end of the socket. */
TEST_LOOP(the_end_of_the_socket_is_the_end, 2)
{
    static const char bytes[10000];
    struct message message;
    use_rings();
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[0].channel, golden_message("end"), NULL, 0));
    ck_assert_int_eq(STRAIT_OK, channel_flush(ends[0].channel));
    if (_i == 1) /* somebody has woken this side very often */
        require(send(channel_fd(ends[0].channel), bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    channel_destroy(ends[0].channel);
    ends[0].channel = NULL;
    ck_assert_int_eq(STRAIT_OK, channel_read(ends[1].channel)); /* nobody has said that the socket is readable */
    enum strait_status status = STRAIT_OK;
    for (uint32_t i = 0; i < 2 && status == STRAIT_OK; i++) { /* a poll reports it as long as there is something */
        ring_layer_socket_ready(&ends[1].layer);
        status = channel_read(ends[1].channel);
    }
    ck_assert_int_eq(STRAIT_ERR_IO, status);
    require(ring_put(&ends[0].layer.out, bytes, 100) == 100);
    ck_assert(!channel_pending(ends[1].channel));
    require_next(&ends[1], golden_message("end"));
    ck_assert_int_eq(STRAIT_ERR_AGAIN, next(&ends[1], &message));
}

static const struct lie {
    bool put;
    uint32_t by;
} lies[] = {
    {true, RING + 1}, {true, UINT32_MAX}, {true, 1u << 31}, {false, 1}, {false, UINT32_MAX - RING}, {false, 1u << 31},
};

TEST_LOOP(an_index_that_cannot_be_ends_the_connection, COUNT(lies))
{
    const struct lie *lie = &lies[_i];
    use_rings();
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[1].channel, golden_message("end"), NULL, 0));
    require_next(&ends[0], golden_message("end"));
    if (lie->put)
        ends[0].layer.out.head->put += lie->by;
    else
        ends[0].layer.in.head->taken += lie->by;
    ck_assert_int_eq(STRAIT_OK, channel_send(ends[1].channel, golden_message("end"), NULL, 0));
    if (lie->put)
        ck_assert(channel_pending(ends[1].channel));
    ck_assert_int_eq(STRAIT_ERR_IO, lie->put ? channel_read(ends[1].channel) : channel_flush(ends[1].channel));
    ck_assert(!channel_pending(ends[1].channel));
}

/* Whatever is in the shared memory: no access out of bounds, and no call that does not return. */
TEST(any_change_of_the_shared_memory_does_no_harm)
{
    use_rings();
    const size_t size = ring_file_size(&ends[0].file), heads = ring_file_heads(&ends[0].file);
    struct rng rng = rng_init(1);
    for (uint32_t round = 0; round < 3000; round++) {
        struct message message;
        int fds[CHANNEL_FDS_MAX];
        uint32_t fd_count;
        for (uint32_t i = 0; i < 20; i++) {
            const size_t at = rng_below(&rng, (uint32_t)(i < 10 ? heads / 4 : size));
            ends[0].file.base[at] = (uint8_t)rng_next(&rng);
        }
        ends[0].layer.out.head->put = ends[1].layer.in.own + rng_below(&rng, RING + 2);
        (void)channel_send(ends[1].channel, golden_message("request"), NULL, 0);
        (void)channel_flush(ends[1].channel);
        (void)channel_read(ends[1].channel);
        while (channel_next(ends[1].channel, &message, fds, &fd_count) == STRAIT_OK)
            message_fini(&message);
        if (ends[1].layer.in.broken || ends[1].layer.out.broken || *channel_why(ends[1].channel) != 0) {
            teardown();
            setup();
            use_rings();
        }
    }
}

static const struct memory {
    int seals;
    size_t size;
    bool good;
} memories[] = {
    {F_SEAL_SHRINK | F_SEAL_GROW, 3 * 4096, true},
    {F_SEAL_SHRINK, 3 * 4096, true},
    {F_SEAL_GROW, 3 * 4096, false},
    {0, 3 * 4096, false},
    {F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, 3 * 4096, false},
    {F_SEAL_SHRINK | F_SEAL_GROW, 3 * 4096 - 1, false},
};

TEST_LOOP(only_sealed_memory_of_the_size_is_mapped, COUNT(memories))
{
    struct ring_file file = {.side = 1, .pairs = 1, .sizes = sizes};
    ck_assert_uint_eq(3 * 4096, ring_file_size(&file));
    int fd = sealed_memory(memories[_i].size, memories[_i].seals, NULL);
    ck_assert_uint_eq(memories[_i].good, ring_file_map(&file, fd));
    ring_file_unmap(&file);
    close(fd);
    ck_assert(!ring_file_map(&file, STDIN_FILENO));
}

int main(void)
{
    return run_tests("ring_layer", setup, teardown);
}
