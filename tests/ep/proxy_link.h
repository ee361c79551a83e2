/* Link of a proxy (ep/proxy.h) to nobody: the test says what arrives and sees what is sent. */
#ifndef STRAIT_TESTS_EP_PROXY_LINK_H
#define STRAIT_TESTS_EP_PROXY_LINK_H

#include <string.h>

#include "ep/proxy.h"
#include "internal/bytes.h"
#include "tests/support.h"

enum { SENT_MAX = 64 };

/* Of the one link that there is. */
static struct sent_frame {
    uint32_t type, small;
    uint64_t a;
    const void *bytes;
    size_t size;
} sent_frames[SENT_MAX];
static uint32_t sent_count;
static bool link_refuses;

static enum strait_status link_keeps(struct link *link, const void *header, size_t header_size, const void *data,
                                     size_t size, void *handle, uint64_t cookie)
{
    const uint8_t *frame = header;
    (void)link, (void)handle, (void)cookie;
    require(header_size == EP_FRAME_BYTES && (data != NULL) == (size > 0));
    if (link_refuses)
        return STRAIT_ERR_INVALID;
    if (sent_count < SENT_MAX)
        sent_frames[sent_count++] =
            (struct sent_frame){load_le32(frame), load_le32(frame + 4), load_le64(frame + 8), data, size};
    return STRAIT_OK;
}

static void link_ends(struct link *link)
{
    (void)link;
}

static const struct transport_ops link_ops = {.name = "kept", .send = link_keeps, .close = link_ends};
static struct transport link_transport = {.ops = &link_ops};
static struct link kept_link = {.transport = &link_transport};

/* A peer of rank 1 to rank 0, whose view this is. */
static void link_begin(struct ep_proxy_peer *peer, const struct ep_group_view *view)
{
    *peer = (struct ep_proxy_peer){.view = view, .rank = 1, .link = &kept_link, .connected = true};
    kept_link.owner = peer;
    sent_count = 0;
    link_refuses = false;
}

/* Where the bytes go that come behind this frame; NULL: nowhere. */
static void *arrive(uint32_t type, uint32_t small, uint64_t a, size_t size)
{
    uint8_t frame[EP_FRAME_BYTES] = {0};
    store_le32(frame, type);
    store_le32(frame + 4, small);
    store_le64(frame + 8, a);
    return ep_proxy_events.arriving(NULL, &kept_link, frame, sizeof(frame), size).address;
}

#endif
