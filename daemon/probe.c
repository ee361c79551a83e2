#include "daemon/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <strait/codec.h>

#include "daemon/base/auth.h"
#include "daemon/base/seal.h"
#include "daemon/base/tls.h"
#include "proto/channel.h"

#define HELLO_BODY_MAX 4096u
#define QUEUE_BYTES    65536u

static void tell(struct probe *probe, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(struct probe *probe, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(probe->why, sizeof(probe->why), format, arguments);
    va_end(arguments);
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static int wait_writable(int fd, uint32_t patience_ms)
{
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof(error);
    if (poll(&ready, 1, (int)patience_ms) != 1)
        return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/* The connected socket, or -1: `why`. */
static int dial(const struct sockaddr_storage *address, uint32_t patience_ms, struct probe *probe)
{
    const uint64_t began = uv_hrtime();
    const int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)address_text(address, probe->address);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, address_size(address)) != 0)
        error = errno == EINPROGRESS ? wait_writable(fd, patience_ms) : errno;
    if (error == 0) {
        probe->reached = true;
        probe->connect_us = (uv_hrtime() - began) / 1000;
        return fd;
    }
    tell(probe, "%s", strerror(error));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- Hellos ------------------------------------------------------------------------------------------------------ */

/* The strongest encryption of pages that this node would use. */
static enum seal_suite own_suite(const struct node_options *options)
{
    return options->encrypt_pages ? seal_best() : SEAL_NONE;
}

static enum strait_status send_hello(struct channel *channel, const struct node_options *options, const char *list)
{
    uint8_t nonce[NONCE_BYTES];
    struct message message = {.type = MESSAGE_PEER_HELLO};
    auth_random(nonce, sizeof(nonce));
    message.peer_hello = (struct message_peer_hello){
        .version = PROTOCOL_VERSION,
        .version_min = PROTOCOL_VERSION_MIN,
        .nonce = view_of(nonce, sizeof(nonce)),
        .address = view_of("", 0), /* it listens nowhere, as an embedded node */
        .dialled = view_of(list, strlen(list)),
        .pages = own_suite(options),
    };
    auth_random(&message.peer_hello.node, sizeof(message.peer_hello.node));
    auth_random(&message.peer_hello.incarnation, sizeof(message.peer_hello.incarnation));
    message.peer_hello.incarnation |= 1; /* not 0 */
    hello_tell(&message.peer_hello, strait_version());
    return channel_send(channel, &message, NULL, 0);
}

static void take_hello(struct probe *probe, const struct node_options *options, const struct message *message)
{
    const struct message_peer_hello *hello = &message->peer_hello;
    if (message->type != MESSAGE_PEER_HELLO) {
        tell(probe, "it sent %s in place of a hello", message_name(message->type));
        return;
    }
    probe->proved = true;
    probe->version = hello->version;
    probe->version_min = hello->version_min;
    hello_software(hello, probe->software);
    probe->clock_skew_us = hello_clock_skew_us(hello);
    if (hello->version_min > PROTOCOL_VERSION || hello->version < PROTOCOL_VERSION_MIN)
        tell(probe, "protocol versions differ: %" PRIu32 " to %" PRIu32 " there, %u to %u here", hello->version_min,
             hello->version, PROTOCOL_VERSION_MIN, PROTOCOL_VERSION);
    else if ((hello->pages != SEAL_NONE) != (own_suite(options) != SEAL_NONE))
        tell(probe, "encrypt-pages is %s there, and %s here", hello->pages != SEAL_NONE ? "on" : "off",
             own_suite(options) != SEAL_NONE ? "on" : "off");
    else
        probe->fits = true;
}

/* AGAIN: the hello has not come yet. */
static enum strait_status next_message(struct channel *channel, bool tls, struct probe *probe,
                                       const struct node_options *options)
{
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    struct message message = {0};
    const enum strait_status status = channel_next(channel, &message, fds, &fd_count);
    if (status == STRAIT_OK)
        take_hello(probe, options, &message);
    else if (status != STRAIT_ERR_AGAIN && tls)
        tell(probe, "it does not speak this protocol: %s", channel_why(channel));
    else if (status != STRAIT_ERR_AGAIN)
        tell(probe, "it demands a secret or a certificate, and there is none here; or it is no straitd");
    message_fini(&message);
    return status;
}

/* Writes and reads until the hello is there, or it is known that none will come. */
static void exchange(struct channel *channel, struct tls *tls, struct probe *probe, const struct node_options *options)
{
    const uint64_t end = uv_hrtime() + (uint64_t)options->peer_timeout_ms * 1000000;
    enum strait_status status = STRAIT_ERR_AGAIN, moved = STRAIT_OK;
    while (status == STRAIT_ERR_AGAIN && moved == STRAIT_OK) {
        const uint64_t now = uv_hrtime();
        moved = channel_flush(channel);
        struct pollfd ready = {.fd = channel_fd(channel),
                               .events = (short)(POLLIN | (channel_wants_write(channel) ? POLLOUT : 0))};
        if (now >= end || (moved == STRAIT_OK && !channel_pending(channel) &&
                           poll(&ready, 1, (int)((end - now) / 1000000) + 1) == 0)) {
            tell(probe, "no hello within %u ms", options->peer_timeout_ms);
            return;
        }
        if (moved == STRAIT_OK)
            moved = channel_read(channel);
        status = next_message(channel, tls != NULL, probe, options); /* what had come before the end, too */
    }
    if (status == STRAIT_ERR_AGAIN && tls != NULL && tls_why(tls)[0] != '\0')
        tell(probe, "%s", tls_why(tls));
    else if (status == STRAIT_ERR_AGAIN)
        tell(probe, "it closed the connection without a hello: %s",
             tls != NULL ? "it has no secret or certificate set, or is no straitd"
                         : "it demands a secret or a certificate, or is no straitd");
}

static void greet(int fd, const char *host, const char *list, struct credentials *credentials,
                  const struct node_options *options, struct probe *probe)
{
    struct channel *channel;
    if (channel_create(fd, HELLO_BODY_MAX, QUEUE_BYTES, &channel) != STRAIT_OK) {
        close(fd);
        tell(probe, "out of memory");
        return;
    }
    struct tls *tls = credentials != NULL ? tls_create(credentials, host, false) : NULL;
    const uint64_t began = uv_hrtime();
    if (tls != NULL)
        channel_use(channel, tls_layer(tls));
    if ((credentials != NULL && tls == NULL) || send_hello(channel, options, list) != STRAIT_OK)
        tell(probe, "out of memory");
    else
        exchange(channel, tls, probe, options);
    probe->hello_us = (uv_hrtime() - began) / 1000;
    channel_destroy(channel);
    tls_destroy(tls);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* The host as the list's item names it: a certificate is for that name. */
static void host_of_item(const char *list, uint32_t item, char host[ADDRESS_HOST_MAX])
{
    char text[ADDRESS_TEXT_MAX];
    unsigned port;
    host[0] = '\0';
    for (uint32_t i = 0; list != NULL && i <= item; i++)
        list = address_next(list, text);
    if (!address_split(text, host, &port))
        host[0] = '\0';
}

void probe_peer(const struct node_options *options, const char *list, struct probe *probe)
{
    struct credentials *credentials = NULL;
    struct address_list found;
    char host[ADDRESS_HOST_MAX];
    *probe = (struct probe){.reached = false};
    if (!address_list_ok(list)) {
        tell(probe, "is not host:port");
        return;
    }
    if (address_resolve(list, &found, probe->why, sizeof(probe->why)) != STRAIT_OK ||
        options_credentials(options, &credentials, probe->why, sizeof(probe->why)) != STRAIT_OK)
        return;
    int fd = -1;
    for (uint32_t i = 0; fd < 0 && i < found.count; i++) {
        fd = dial(&found.found[i].address, options->peer_timeout_ms, probe);
        host_of_item(list, found.found[i].item, host);
    }
    if (fd >= 0) {
        probe->why[0] = '\0';
        greet(fd, host, list, credentials, options, probe);
    }
    credentials_release(credentials);
}
