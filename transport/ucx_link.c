#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "transport/ucx_internal.h"

static struct ucx *ucx_of(const struct ucx_link *link)
{
    return (struct ucx *)link->core.core;
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */

struct ucx_op *ucx_op_begin(struct ucx_link *link, enum event_kind kind, uint64_t cookie)
{
    struct ucx_op *op = malloc(sizeof(*op));
    if (op == NULL)
        return NULL;
    op->orphaned = false;
    event_begin(&op->event, &link->core, kind, cookie);
    LIST_INSERT_HEAD(&ucx_of(link)->ops, op, entry);
    return op;
}

void ucx_op_end(struct ucx_op *op, ucs_status_t status)
{
    LIST_REMOVE(op, entry);
    if (op->orphaned)
        free(op);
    else
        event_due(&op->event, status == UCS_OK ? STRAIT_OK : STRAIT_ERR_IO);
}

static void on_sent(void *request, ucs_status_t status, void *op)
{
    ucx_op_end(op, status);
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, size_t size, void *op)
{
    (void)size;
    ucx_op_end(op, status);
    ucp_request_free(request);
}

void ucx_op_send(struct ucx_link *link, struct ucx_op *op, unsigned id, size_t header_size, const void *data,
                 size_t size, ucp_mem_h handle)
{
    const struct ucx *ucx = (const struct ucx *)link->core.base.transport;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                        (handle != NULL ? UCP_OP_ATTR_FIELD_MEMH : 0) | (size > 0 ? UCP_OP_ATTR_FIELD_MEMORY_TYPE : 0),
        .memory_type = ucx->memory,
        .flags = UCP_AM_SEND_FLAG_REPLY | (size < ucx->eager_bytes ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV),
        .cb.send = on_sent,
        .user_data = op,
        .memh = handle,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(link->ep, id, op->header, header_size, data, size, &param);
    if (!UCS_PTR_IS_PTR(request))
        ucx_op_end(op, UCS_PTR_STATUS(request));
}

enum strait_status ucx_link_send(struct link *base, const void *header, size_t header_size, const void *data,
                                 size_t size, void *handle, uint64_t cookie)
{
    struct ucx_link *link = (struct ucx_link *)base;
    if (header_size > TRANSPORT_HEADER_MAX || (data == NULL && size > 0))
        return STRAIT_ERR_INVALID;
    if (link->core.state != LINK_CONNECTED)
        return STRAIT_ERR_IO;
    struct ucx_op *op = ucx_op_begin(link, EVENT_SENT, cookie);
    if (op == NULL)
        return STRAIT_ERR_NO_MEMORY;
    store_le64(op->header, link->peer_token);
    if (header_size > 0)
        memcpy(op->header + UCX_TOKEN_BYTES, header, header_size);
    ucx_op_send(link, op, UCX_AM_CHUNK, UCX_TOKEN_BYTES + header_size, data, size, handle);
    return STRAIT_OK;
}

/* ---- Chunks that arrive ---------------------------------------------------------------------------------------- */

/* The link that a chunk is for: the one whose token it carries, provided that the chunk came through that link's
 * endpoint. */
static struct ucx_link *addressee(struct ucx *ucx, const uint8_t *header, size_t size, const ucp_am_recv_param_t *param)
{
    if (!ucx->progressing || size < UCX_TOKEN_BYTES || size > UCX_TOKEN_BYTES + TRANSPORT_HEADER_MAX ||
        !(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP))
        return NULL;
    uint64_t token = load_le64(header);
    for (struct core_link *at = ucx->core.links; at != NULL; at = at->next) {
        struct ucx_link *link = (struct ucx_link *)at;
        if (link->token == token && link->ep == param->reply_ep && at->state == LINK_CONNECTED)
            return link;
    }
    return NULL;
}

/* The arena's registration is valid only for memory inside the arena. */
static ucp_mem_h handle_for(const struct ucx *ucx, const void *address, size_t size)
{
    uintptr_t start = (uintptr_t)ucx->arena.base, at = (uintptr_t)address;
    bool inside = at >= start && at - start <= ucx->arena.size && size <= ucx->arena.size - (at - start);
    return inside ? ucx->arena_handle : NULL;
}

static void begin_fetch(struct ucx *ucx, struct ucx_op *op)
{
    ucp_mem_h handle = handle_for(ucx, op->fetch.address, op->fetch.size);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        (handle != NULL ? UCP_OP_ATTR_FIELD_MEMH : 0),
        .memory_type = ucx->memory,
        .cb.recv_am = on_received,
        .user_data = op,
        .memh = handle,
    };
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(ucx->worker, op->fetch.descriptor, op->fetch.address, op->fetch.size, &param);
    if (!UCS_PTR_IS_PTR(request))
        ucx_op_end(op, UCS_PTR_STATUS(request));
}

/* Not called from the callback that brought the chunk. Fetching sends; if the peer has died meanwhile, a send that
 * fails while UCX 1.13.1 still reads what that peer had sent can make UCX meet an acknowledgement that it no longer
 * expects, and abort. */
bool ucx_begin_fetches(struct ucx *ucx)
{
    struct ucx_op *op, *first = NULL;
    while ((op = ucx->fetches) != NULL) { /* reverses the list to the order of arrival */
        ucx->fetches = op->fetch.next;
        op->fetch.next = first;
        first = op;
    }
    bool any = first != NULL;
    while ((op = first) != NULL) {
        first = op->fetch.next;
        if (!op->orphaned && op->event.link->state == LINK_CONNECTED) {
            begin_fetch(ucx, op);
        } else {
            ucp_am_data_release(ucx->worker, op->fetch.descriptor);
            ucx_op_end(op, UCS_ERR_CANCELED);
        }
    }
    return any;
}

static ucs_status_t fetch_later(struct ucx *ucx, struct ucx_op *op, void *descriptor, void *address, size_t size)
{
    op->fetch.descriptor = descriptor;
    op->fetch.address = address;
    op->fetch.size = size;
    op->fetch.next = ucx->fetches;
    ucx->fetches = op;
    return UCS_INPROGRESS; /* the descriptor is ours now */
}

static struct landing ask(struct ucx_link *link, const uint8_t *header, size_t header_size, size_t size)
{
    const struct transport *transport = link->core.base.transport;
    return transport->events.arriving(transport->owner, &link->core.base, header + UCX_TOKEN_BYTES,
                                      header_size - UCX_TOKEN_BYTES, size);
}

ucs_status_t ucx_on_chunk(void *arg, const void *header, size_t header_size, void *data, size_t size,
                          const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = arg;
    struct ucx_link *link = addressee(ucx, header, header_size, param);
    const bool eager = !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
    if (link != NULL && eager && size > 0 && ucx->arena.memory == TRANSPORT_CUDA) {
        core_link_break(&link->core, "a chunk for a GPU came to the host");
        return UCS_OK;
    }
    /* Allocated before asking: an accepted chunk must get its callback. */
    struct ucx_op *op = link != NULL ? ucx_op_begin(link, EVENT_NONE, 0) : NULL;
    if (op == NULL)
        return UCS_OK;
    struct landing landing = ask(link, header, header_size, size);
    if (landing.address == NULL) {
        ucx_op_end(op, UCS_OK);
        return UCS_OK;
    }
    op->event.kind = EVENT_ARRIVED;
    op->event.cookie = landing.cookie;
    if (!eager)
        return fetch_later(ucx, op, data, landing.address, size);
    if (size > 0)
        memcpy(landing.address, data, size);
    ucx_op_end(op, UCS_OK);
    return UCS_OK;
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

static bool draw_token(uint64_t *token)
{
    do
        if (getrandom(token, sizeof(*token), 0) != sizeof(*token))
            return false;
    while (*token == 0);
    return true;
}

enum strait_status ucx_link_open(struct transport *transport, int fd, enum link_side side, void *link_owner,
                                 struct link **out)
{
    struct ucx *ucx = (struct ucx *)transport;
    if (fd >= 0)
        close(fd);
    if (fd >= 0 || (side != LINK_ACCEPTED && side != LINK_DIALLED))
        return STRAIT_ERR_INVALID;
    struct ucx_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (!draw_token(&link->token)) {
        free(link);
        return STRAIT_ERR_IO;
    }
    link->side = side;
    core_link_add(&ucx->core, &link->core, link_owner);
    *out = &link->core.base;
    return STRAIT_OK;
}

size_t ucx_link_address(struct link *base, void *dst, size_t capacity)
{
    struct ucx_link *link = (struct ucx_link *)base;
    struct ucx_address address = ucx_of(link)->address;
    address.token = link->token;
    if (capacity >= UCX_ADDRESS_BYTES)
        ucx_address_write(dst, &address);
    return UCX_ADDRESS_BYTES;
}

enum strait_status ucx_link_connect(struct link *base, const void *src, size_t size)
{
    struct ucx_link *link = (struct ucx_link *)base;
    struct ucx_address address;
    if (link->core.state != LINK_OPEN)
        return STRAIT_ERR_INVALID;
    enum strait_status status = ucx_address_read(src, size, &address);
    if (status != STRAIT_OK)
        return status;
    link->peer_token = address.token;
    if (link->side == LINK_DIALLED)
        return ucx_peer_dial(link, &address);
    link->core.state = LINK_CONNECTING;
    ucx_peer_greet(link);
    return STRAIT_OK;
}

/* ---- The end --------------------------------------------------------------------------------------------------- */

/* The endpoint itself is closed in progress, because this may be called from within a UCX callback about that very
 * endpoint. */
void ucx_link_close(struct link *base)
{
    core_link_close(&((struct ucx_link *)base)->core);
}

/* UCX may never let go of a chunk whose GPU has failed. So its callback comes now, and what UCX still reports about it
 * is ignored. */
void ucx_link_abandon(struct link *base)
{
    struct ucx_link *link = (struct ucx_link *)base;
    struct ucx_op *op;
    if (link->core.state != LINK_CLOSING)
        return;
    LIST_FOREACH(op, &ucx_of(link)->ops, entry)
    {
        struct event *event = op->event.link == &link->core && !op->orphaned ? malloc(sizeof(*event)) : NULL;
        if (event == NULL)
            continue;
        *event = op->event;
        op->orphaned = true;
        event_due(event, STRAIT_ERR_IO);
    }
}

static bool close_is_due(const struct ucx_link *link)
{
    return link->core.state == LINK_CLOSING && !link->ep_closed;
}

/* Sends end with the endpoint, receives within the rounds after it. */
static void close_endpoint(struct ucx_link *link)
{
    if (link->ep != NULL)
        ucx_ep_close(link->ep);
    link->ep_closed = true;
    link->closed_at = link->ep != NULL ? ucx_of(link)->rounds : 0;
    link->ep = NULL;
}

bool ucx_close_endpoints(struct ucx *ucx)
{
    bool any = false;
    for (struct core_link *link = ucx->core.closing > 0 ? ucx->core.links : NULL; link != NULL; link = link->next)
        if (close_is_due((struct ucx_link *)link)) {
            close_endpoint((struct ucx_link *)link);
            any = true;
        }
    return any;
}

/* Also true during the rounds after closing: no event would wake us for them. */
bool ucx_close_is_due(const struct ucx *ucx)
{
    for (struct core_link *at = ucx->core.closing > 0 ? ucx->core.links : NULL; at != NULL; at = at->next) {
        const struct ucx_link *link = (const struct ucx_link *)at;
        if (close_is_due(link) ||
            (link->ep_closed && link->closed_at != 0 && ucx->rounds - link->closed_at < UCX_ROUNDS_TO_REST))
            return true;
    }
    return false;
}

bool ucx_link_quiet(struct core_link *base)
{
    const struct ucx_link *link = (const struct ucx_link *)base;
    return link->ep_closed && (link->closed_at == 0 || ucx_of(link)->rounds - link->closed_at >= UCX_ROUNDS_TO_REST);
}

void ucx_link_release(struct core_link *link)
{
    free(link);
}
