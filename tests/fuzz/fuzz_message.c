/* Foreign bytes as the body of a frame: what is read is within the limits, can be written, and reads the same again. */
#include <string.h>

#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tests/proto/frames.h"

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

static void check_limits(const struct message *message)
{
    switch (message->type) {
    case MESSAGE_EXPECT:
        check_lists(message->expect.lists, message->expect.list_count);
        check_view(message->expect.key, STRAIT_KEY_BYTES_MAX);
        break;
    case MESSAGE_OFFER:
        check_lists(message->offer.lists, message->offer.list_count);
        check_view(message->offer.aux, STRAIT_AUX_BYTES_MAX);
        break;
    case MESSAGE_STATE:
        check_lists(message->state.failed, message->state.failed_count);
        check_view(message->state.text, MESSAGE_TEXT_MAX);
        require(message->state.state <= STRAIT_DONE);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct message message;
    if (message_unpack(data, size, &message) == STRAIT_OK) {
        check_limits(&message);
        check_again(&message);
    } else {
        require(message.owner == NULL);
    }
    message_fini(&message);
    return 0;
}
