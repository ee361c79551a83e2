/* Foreign bytes as what clients and peers send: messages, channels, exported pools, ends of NCCL links, trace
 * contexts. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <xxhash.h>

#include "internal/bytes.h"
#include "proto/blob.h"
#include "proto/channel.h"
#include "tests/fuzz/fuzz.h"
#include "tests/proto/frames.h"
#include "transport/nccl_wire.h"

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/* Every byte is read: sanitizers see one too many. */
static void check_view(struct view view, size_t most)
{
    require(view.size <= most);
    uint8_t *copy = malloc(view.size + 1);
    require(copy != NULL);
    if (view.size > 0)
        memcpy(copy, view.data, view.size);
    free(copy);
}

static void check_lists(const struct wire_page_list *lists, uint32_t count)
{
    uint64_t pages = 0, ids = 0;
    require(count <= MESSAGE_LIST_MAX);
    for (uint32_t i = 0; i < count; i++) {
        pages += lists[i].count;
        ids += lists[i].ids != NULL ? lists[i].count : 0;
        require(lists[i].group < STRAIT_GROUPS_MAX && lists[i].first <= UINT32_MAX - lists[i].count);
        if (lists[i].ids != NULL)
            check_view(view_of(lists[i].ids, sizeof(uint32_t) * (size_t)lists[i].count), MESSAGE_BYTES_MAX);
    }
    require(pages <= STRAIT_TRANSFER_PAGES_MAX && ids <= MESSAGE_IDS_MAX);
}

static void check_segments(const struct message_segments *segments)
{
    uint64_t units = segments->before;
    for (uint32_t i = 0; i < segments->segment_count; i++) {
        const struct segment *segment = &segments->segments[i];
        units += (uint64_t)segment->region_count * segment->count;
        require(segment->region_first + segment->region_count <= STRAIT_REGIONS_MAX);
        require(segment->count > 0 && segment->first <= UINT32_MAX - segment->count);
    }
    require(units <= UINT32_MAX && segments->epoch.incarnation != 0);
    check_view(segments->aux, STRAIT_AUX_BYTES_MAX);
}

static void check_trace(struct view trace)
{
    require(trace.size == 0 || (trace.size == TRACE_BYTES && trace_is_valid(trace.data)));
    check_view(trace, TRACE_BYTES);
}

static void check_limits(const struct message *message)
{
    switch (message->type) {
    case MESSAGE_EXPECT:
        check_lists(message->expect.lists, message->expect.list_count);
        check_view(message->expect.key, STRAIT_KEY_BYTES_MAX);
        check_trace(message->expect.trace);
        break;
    case MESSAGE_OFFER:
        check_lists(message->offer.lists, message->offer.list_count);
        check_view(message->offer.aux, STRAIT_AUX_BYTES_MAX);
        check_trace(message->offer.trace);
        break;
    case MESSAGE_STATE:
        check_lists(message->state.failed, message->state.failed_count);
        check_view(message->state.text, MESSAGE_TEXT_MAX);
        require(message->state.state <= STRAIT_DONE);
        break;
    case MESSAGE_PAGES:
        check_lists(message->pages.lists, message->pages.list_count);
        break;
    case MESSAGE_SEGMENTS:
        check_segments(&message->segments);
        break;
    case MESSAGE_PEER_HELLO:
        require(message->peer_hello.nonce.size == NONCE_BYTES);
        check_view(message->peer_hello.address, MESSAGE_ADDRESS_MAX);
        break;
    default:
        break;
    }
}

static void check_again(const struct message *message)
{
    uint8_t *frame, *again;
    size_t size, again_size;
    struct message back;
    enum strait_status status = message_pack(message, &frame, &size);
    if (status == STRAIT_ERR_NO_SPACE) /* numbers may be longer than they need be, and lengths shorter */
        return;
    require(status == STRAIT_OK && load_le32(frame) == size - 4);
    require(message_unpack(frame + 4, size - 4, &back) == STRAIT_OK);
    require_same_message(message, &back);
    require(message_pack(&back, &again, &again_size) == STRAIT_OK);
    require(again_size == size && memcmp(frame, again, size) == 0);
    message_fini(&back);
    free(again);
    free(frame);
}

/* The body of a frame: what is read is within the limits, can be written, and reads the same again. */
void fuzz_message(const uint8_t *data, size_t size)
{
    struct message message;
    if (message_unpack(data, size, &message) == STRAIT_OK) {
        check_limits(&message);
        check_again(&message);
    } else {
        require(message.owner == NULL);
    }
    message_fini(&message);
}

/* ---- Channels -------------------------------------------------------------------------------------------------- */

#define BODY_MAX 4096u

static const uint32_t fd_counts[] = {0, 1, 2, CHANNEL_FDS_MAX + 1};

static bool send_piece(int fd, const uint8_t *bytes, size_t size, uint32_t fd_count)
{
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE((CHANNEL_FDS_MAX + 1) * sizeof(int))];
    } control;
    int fds[CHANNEL_FDS_MAX + 1];
    for (uint32_t i = 0; i < CHANNEL_FDS_MAX + 1; i++)
        fds[i] = fd;
    struct iovec piece = {.iov_base = (void *)bytes, .iov_len = size};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (fd_count > 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        *CMSG_FIRSTHDR(&header) = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), fds, fd_count * sizeof(int));
    }
    return sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

/* What is handed out can be sent on, with its descriptors. */
static void send_on(struct channel *to, const struct message *message, int *fds, uint32_t fd_count)
{
    enum strait_status status = channel_send(to, message, fds, fd_count);
    require(status == STRAIT_OK || status == STRAIT_ERR_NO_SPACE);
    for (uint32_t i = 0; i < fd_count; i++)
        close(fds[i]);
}

/* False when the peer broke the protocol, and then for ever. */
static bool take(struct channel *from, struct channel *to)
{
    struct message message, again;
    int fds[CHANNEL_FDS_MAX];
    uint32_t fd_count;
    enum strait_status status;
    while ((status = channel_next(from, &message, fds, &fd_count)) == STRAIT_OK) {
        require(fd_count == channel_fds_of(&message));
        send_on(to, &message, fds, fd_count);
        message_fini(&message);
    }
    if (status != STRAIT_ERR_AGAIN)
        require(channel_next(from, &again, fds, &fd_count) == status);
    return status == STRAIT_ERR_AGAIN;
}

static void feed(int raw, struct channel *from, struct channel *to, const uint8_t *data, size_t size)
{
    while (size > 0) {
        uint32_t fd_count = fd_counts[data[0] >> 6];
        size_t piece = data[0] & 63;
        data++;
        size--;
        piece = piece == 63 || piece > size ? size : piece;
        if (piece == 0)
            continue;
        if (!send_piece(raw, data, piece, fd_count))
            return;
        require(channel_read(from) == STRAIT_OK);
        if (!take(from, to))
            return;
        data += piece;
        size -= piece;
    }
}

/* Bytes through a socket, cut into writes, some of them with descriptors. The input is a list of writes: a byte that
 * says how many bytes (low 6 bits; 63: all the rest) and descriptors (0, 1, 2 or 65) go, then these bytes. */
void fuzz_channel(const uint8_t *data, size_t size)
{
    int in[2], out[2];
    struct channel *from, *to;
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, in) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, out) == 0);
    require(channel_create(in[1], BODY_MAX, 0, &from) == STRAIT_OK);
    require(channel_create(out[0], BODY_MAX, 65536, &to) == STRAIT_OK);
    feed(in[0], from, to, data, size);
    require(channel_flush(to) == STRAIT_OK);
    close(in[0]);
    channel_read(from);
    take(from, to);
    channel_destroy(from);
    channel_destroy(to);
    close(out[1]);
    /* Nothing leaks: the lowest descriptor that is free is where it was. */
    int lowest = socket(AF_UNIX, SOCK_STREAM, 0);
    require(lowest == in[0]);
    close(lowest);
}

/* ---- Exported pools -------------------------------------------------------------------------------------------- */

/* Equal pools have nothing to tell; against one without regions the text is as long as it says. */
static void check_words(const struct pool_blob *blob, const struct pool_blob *same)
{
    char text[1024], cut[40];
    const struct pool_blob none = {.region_count = 0};
    require(blob_explain(blob, same, UINT32_MAX, text, sizeof(text)) == 0 && text[0] == '\0');
    const size_t length = blob_explain(blob, &none, UINT32_MAX, text, sizeof(text));
    require(length > sizeof(cut) && length == strlen(text));
    require(blob_explain(blob, &none, UINT32_MAX, cut, sizeof(cut)) == length);
    require(strlen(cut) == sizeof(cut) - 1 && memcmp(cut, text, sizeof(cut) - 1) == 0);
}

static uint64_t geometry_of(const struct pool_blob *blob)
{
    return blob_geometry(blob->regions, blob->region_count, view_of(blob->compat, strlen(blob->compat)));
}

static void check_blob(const struct pool_blob *blob)
{
    size_t size, written;
    struct pool_blob back;
    require(blob->region_count >= 1 && blob->region_count <= STRAIT_REGIONS_MAX);
    require(strlen(blob->address) <= MESSAGE_ADDRESS_MAX);
    require(blob_pack(blob, NULL, 0, &size) == STRAIT_ERR_NO_SPACE);
    uint8_t *bytes = malloc(size);
    require(bytes != NULL && blob_pack(blob, bytes, size, &written) == STRAIT_OK && written == size);
    require(blob_unpack(bytes, size, &back) == STRAIT_OK);
    require(blob_mismatch(blob, &back) == 0);
    check_words(blob, &back);
    require(geometry_of(blob) == geometry_of(&back));
    blob_fini(&back);
    free(bytes);
}

static void unpack_blob(const uint8_t *data, size_t size)
{
    struct pool_blob blob;
    if (blob_unpack(data, size, &blob) != STRAIT_OK)
        return;
    check_blob(&blob);
    blob_fini(&blob);
}

/* The sum would stop nearly every change of the body. */
static void unpack_repaired_blob(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data, size);
    store_le32(copy + 12, (uint32_t)(size - BLOB_HEADER_BYTES));
    store_le64(copy + 16, XXH3_64bits(copy + BLOB_HEADER_BYTES, size - BLOB_HEADER_BYTES));
    unpack_blob(copy, size);
    free(copy);
}

/* An exported pool, as it is and behind a header that fits it. */
void fuzz_blob(const uint8_t *data, size_t size)
{
    unpack_blob(data, size);
    if (size >= BLOB_HEADER_BYTES)
        unpack_repaired_blob(data, size);
}

/* ---- Ends of NCCL links ---------------------------------------------------------------------------------------- */

static void check_address(const uint8_t *data, size_t size)
{
    struct nccl_address address;
    uint8_t back[LINK_ADDRESS_MAX];
    if (nccl_address_read(data, size, &address) != STRAIT_OK)
        return;
    require(address.carrier_size <= NCCL_ADDRESS_CARRIER && size == NCCL_ADDRESS_FIXED + address.carrier_size);
    require(address.carrier + address.carrier_size <= data + size);
    nccl_address_write(back, &address);
    require(memcmp(back, data, size) == 0);
}

static uint64_t sum_of(const uint8_t *src, size_t size)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ src[i]) * 0x100000001b3u;
    return sum;
}

/* The sum would stop nearly every change. */
static void check_repaired_address(const uint8_t *data, size_t size)
{
    if (size < NCCL_ADDRESS_FIXED || size > LINK_ADDRESS_MAX)
        return;
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data, size);
    store_le16(copy + 40, (uint16_t)(size - NCCL_ADDRESS_FIXED));
    store_le64(copy + size - 8, sum_of(copy, size - 8));
    check_address(copy, size);
    free(copy);
}

static void check_message(const uint8_t *data, size_t size, size_t payload)
{
    struct nccl_message message;
    uint8_t back[NCCL_MESSAGE_BYTES];
    if (nccl_message_read(data, size, payload, &message) != STRAIT_OK)
        return;
    require(size == NCCL_MESSAGE_BYTES && payload <= NCCL_MESSAGE_PAYLOAD);
    require(message.type >= NCCL_HELLO && message.type <= NCCL_REFUSED);
    nccl_message_write(back, &message);
    require(memcmp(back, data, size) == 0);
}

/* What the ends of an NCCL link tell each other: an address, as it is and with size and sum that fit, and a message,
 * whose first byte is the size of its payload. */
void fuzz_nccl(const uint8_t *data, size_t size)
{
    check_address(data, size);
    check_repaired_address(data, size);
    if (size > 0)
        check_message(data + 1, size - 1, data[0]);
}

/* ---- Trace contexts --------------------------------------------------------------------------------------------- */

/* What an HTTP request's header may hold: what is read is valid, and is what the text begins with. */
void fuzz_trace(const uint8_t *data, size_t size)
{
    uint8_t context[TRACE_BYTES];
    char *text = malloc(size + 1), digits[2 * TRACE_BYTES + 1];
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    const char *why = trace_parse(text, context);
    require(why == strait_trace_check(text) || text[0] == '\0');
    if (why == NULL) {
        for (size_t i = 0; i < TRACE_BYTES; i++)
            snprintf(digits + 2 * i, 3, "%02x", context[i]);
        require(trace_is_valid(context) && strlen(text) >= 55 && (memcmp(text, "00", 2) != 0 || strlen(text) == 55));
        require(memcmp(text + 3, digits, 32) == 0 && memcmp(text + 36, digits + 32, 16) == 0 &&
                memcmp(text + 53, digits + 48, 2) == 0);
    }
    free(text);
}
