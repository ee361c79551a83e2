#include "tools/node_sample.h"

#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/codebook_file.h"
#include "proto/channel.h"
#include "tools/ask.h"
#include "tools/util.h"

#define LATE_MS 5000u /* an answer may come so much later than the sample's end */
#define MS_NS   UINT64_C(1000000)

_Static_assert(NODE_SAMPLE_BYTES_MAX == MESSAGE_SAMPLE_BYTES_MAX, "what may be asked for");
_Static_assert(NODE_SAMPLE_SECONDS_MAX * 1000 == MESSAGE_SAMPLE_MS_MAX, "what may be asked for");

static bool fail(const struct node_sampling *asked, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(const struct node_sampling *asked, const char *format, ...)
{
    char why[MESSAGE_TEXT_MAX + 256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    print_error(asked->socket, "%s", why);
    return false;
}

/* ---- The connection ---------------------------------------------------------------------------------------------- */

static bool say(const struct node_sampling *asked, struct channel *channel, const struct message *message)
{
    enum strait_status status = channel_send(channel, message, NULL, 0);
    if (status != STRAIT_OK)
        return fail(asked, "%s", strait_status_string(status));
    /* A new connection takes a message at once. If it has ended, there may be a reason to be read. */
    (void)channel_flush(channel);
    return true;
}

/* The next message of this type, or REFUSED; others, which daemons send to all clients, are passed
 * over. The caller calls message_fini. */
static bool await(const struct node_sampling *asked, struct channel *channel, enum message_type type,
                  unsigned patience_ms, struct message *message)
{
    const uint64_t end = clock_ns() + patience_ms * MS_NS;
    enum strait_status read = STRAIT_OK;
    for (uint64_t now = clock_ns();; now = clock_ns()) {
        int fds[CHANNEL_FDS_MAX];
        uint32_t fd_count;
        enum strait_status status = channel_next(channel, message, fds, &fd_count);
        if (status == STRAIT_OK) {
            if (message->type == type || message->type == MESSAGE_REFUSED)
                return true;
            message_fini(message);
            continue;
        }
        if (status != STRAIT_ERR_AGAIN)
            return fail(asked, "not a straitd: %s", channel_why(channel));
        if (read != STRAIT_OK)
            return fail(asked, "straitd has closed the connection");
        if (now >= end)
            return fail(asked,
                        "no answer within %g seconds: straitd hangs, is stopped, or it is another program's socket",
                        patience_ms / 1000.0);
        struct pollfd poll_fd = {.fd = channel_fd(channel), .events = POLLIN};
        (void)poll(&poll_fd, 1, (int)((end - now) / MS_NS) + 1);
        read = channel_read(channel);
    }
}

static bool refused(const struct node_sampling *asked, const struct message *message)
{
    return fail(asked, "straitd refuses: %.*s", (int)message->refused.text.size,
                (const char *)message->refused.text.data);
}

/* The daemon says in its welcome whether it takes samples: one that does not would end the connection. */
static bool introduce(const struct node_sampling *asked, struct channel *channel)
{
    const struct message hello = {.type = MESSAGE_HELLO,
                                  .hello = {.version = PROTOCOL_VERSION,
                                            .version_min = PROTOCOL_VERSION_MIN,
                                            .pid = (uint32_t)getpid(),
                                            .library = view_of(strait_version(), strlen(strait_version()))}};
    struct message answer;
    if (!say(asked, channel, &hello) || !await(asked, channel, MESSAGE_WELCOME, ASK_PATIENCE_MS, &answer))
        return false;
    bool fine = answer.type == MESSAGE_WELCOME || refused(asked, &answer);
    if (fine && (answer.welcome.version < PROTOCOL_VERSION_MIN || answer.welcome.version > PROTOCOL_VERSION ||
                 !answer.welcome.samples))
        fine = fail(asked, "straitd %.*s does not take samples: it is older than this program (or far newer)",
                    (int)answer.welcome.daemon.size, (const char *)answer.welcome.daemon.data);
    message_fini(&answer);
    return fine;
}

/* ---- The answer -------------------------------------------------------------------------------------------------- */

#define MIB (1024.0 * 1024)

/* Says why nothing was counted. */
static bool fail_empty(const struct node_sampling *asked, const struct node_sample *sample)
{
    if (sample->ready_bytes > 0 && sample->bytes == 0)
        return fail(asked,
                    "%.1f MiB were ready, but nothing was counted within %.3g seconds: a page may be larger than "
                    "--sample-bytes, or transfers end too soon",
                    (double)sample->ready_bytes / MIB, sample->seconds);
    if (sample->device_bytes > 0 || sample->other_bytes > 0)
        return fail(asked,
                    "nothing to count within %.3g seconds: passed over %.1f MiB in GPU memory, which is not "
                    "sampled, and %.1f MiB that are not of --dtype",
                    sample->seconds, (double)sample->device_bytes / MIB, (double)sample->other_bytes / MIB);
    return fail(asked, "nothing to count within %.3g seconds: no pool of %s has offered or served pages",
                sample->seconds, geteuid() == 0 ? "the node" : "yours");
}

static bool take_answer(const struct node_sampling *asked, const struct message_sampled *answer,
                        struct codebook_histogram **list, uint32_t *count, struct node_sample *sample)
{
    if (answer->status != STRAIT_OK)
        return fail(asked, "straitd takes no sample: %.*s", (int)answer->text.size, (const char *)answer->text.data);
    *sample = (struct node_sample){.pools = answer->pools,
                                   .ready_bytes = answer->ready_bytes,
                                   .bytes = answer->bytes,
                                   .device_bytes = answer->device_bytes,
                                   .other_bytes = answer->other_bytes,
                                   .seconds = answer->milliseconds / 1000.0};
    if (answer->counts.size == 0)
        return fail_empty(asked, sample);
    enum strait_status status = codebook_partial_parse(answer->counts.data, answer->counts.size, list, count);
    return status == STRAIT_OK || fail(asked, "the counts in the answer are damaged: %s", strait_status_string(status));
}

static bool take(const struct node_sampling *asked, struct channel *channel, struct codebook_histogram **list,
                 uint32_t *count, struct node_sample *sample)
{
    const uint32_t ms = (uint32_t)(asked->seconds * 1000);
    const struct message wanted = {
        .type = MESSAGE_SAMPLE,
        .sample = {.bytes = asked->bytes, .milliseconds = ms > 0 ? ms : 1, .elements = asked->elements}};
    struct message answer;
    if (!introduce(asked, channel) || !say(asked, channel, &wanted) ||
        !await(asked, channel, MESSAGE_SAMPLED, ms + LATE_MS, &answer))
        return false;
    const bool taken = answer.type == MESSAGE_SAMPLED ? take_answer(asked, &answer.sampled, list, count, sample)
                                                      : refused(asked, &answer);
    message_fini(&answer);
    return taken;
}

bool node_sample_take(const struct node_sampling *asked, struct codebook_histogram **list, uint32_t *count,
                      struct node_sample *sample)
{
    struct asked daemon = {.path = asked->socket};
    struct channel *channel;
    const int fd = daemon_connect(&daemon);
    if (fd < 0)
        return fail(asked, "%s", daemon.why);
    enum strait_status status = channel_create(fd, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX, &channel);
    if (status != STRAIT_OK) {
        close(fd);
        return fail(asked, "%s", strait_status_string(status));
    }
    const bool taken = take(asked, channel, list, count, sample);
    channel_destroy(channel);
    return taken;
}
