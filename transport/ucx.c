#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal/bytes.h"
#include "transport/core.h"
#include "transport/ucx.h"
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
    (void)fd;
    struct ucx_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (!draw_token(&link->token) || ucx_listen(ucx) != STRAIT_OK) {
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
    ucx_peer_send_hello(link);
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

/* Hello: 0 4 "HELO" | 4 4 version | 8 8 token of the link it is for. */
#define HELLO_BYTES   16u
#define HELLO_VERSION 1u

static const uint8_t hello_magic[4] = {'H', 'E', 'L', 'O'};

/* ---- Endpoints ------------------------------------------------------------------------------------------------- */

void ucx_ep_close(ucp_ep_h ep)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
}

static struct ucx_link *link_of(struct ucx *ucx, ucp_ep_h ep)
{
    struct core_link *link = ucx->core.links;
    while (link != NULL && ((struct ucx_link *)link)->ep != ep)
        link = link->next;
    return (struct ucx_link *)link;
}

/* The link is looked up, not passed as the handler's argument, so that link and endpoint need not outlive each other.
 */
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct ucx *ucx = arg;
    struct ucx_link *link = link_of(ucx, ep);
    if (link != NULL)
        core_link_break(&link->core, ucs_status_string(status));
    for (uint32_t i = 0; i < ucx->pending_count; i++)
        ucx->pending[i].failed |= ucx->pending[i].ep == ep;
}

/* The caller's `params` say whom to connect to. */
static enum strait_status make_ep(struct ucx *ucx, ucp_ep_params_t *params, ucp_ep_h *ep)
{
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_error;
    params->err_handler.arg = ucx;
    ucs_status_t status = ucp_ep_create(ucx->worker, params, ep);
    if (status != UCS_OK)
        *ep = NULL;
    return status == UCS_OK ? STRAIT_OK : status == UCS_ERR_NO_MEMORY ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO;
}

/* ---- Strangers ------------------------------------------------------------------------------------------------- */

static void pending_remove(struct ucx *ucx, uint32_t index)
{
    ucx->pending_count--;
    memmove(&ucx->pending[index], &ucx->pending[index + 1], (ucx->pending_count - index) * sizeof(ucx->pending[0]));
}

static bool pending_take(struct ucx *ucx, ucp_ep_h ep)
{
    for (uint32_t i = 0; i < ucx->pending_count; i++)
        if (ucx->pending[i].ep == ep && !ucx->pending[i].failed) {
            pending_remove(ucx, i);
            return true;
        }
    return false;
}

bool ucx_drop_failed_pending(struct ucx *ucx)
{
    bool any = false;
    for (uint32_t i = ucx->pending_count; i-- > 0;)
        if (ucx->pending[i].failed) {
            ucx_ep_close(ucx->pending[i].ep);
            pending_remove(ucx, i);
            any = true;
        }
    return any;
}

static void pending_add(struct ucx *ucx, ucp_ep_h ep)
{
    ucx->pending[ucx->pending_count++] = (struct ucx_pending){.ep = ep};
    if (ucx->pending_count > UCX_PENDING_MAX)
        ucx->pending[ucx->pending_count - 1 - UCX_PENDING_MAX].failed = true;
}

static void on_conn_request(ucp_conn_request_h request, void *arg)
{
    struct ucx *ucx = arg;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    ucp_ep_h ep;
    if (ucx->pending_count == UCX_PENDING_ROOM)
        ucp_listener_reject(ucx->listener, request);
    else if (make_ep(ucx, &params, &ep) == STRAIT_OK)
        pending_add(ucx, ep);
}

/* ---- Hellos ---------------------------------------------------------------------------------------------------- */

/* Sends the hello. Without memory the link breaks, because the peer would wait for ever. */
static void send_hello(struct ucx_link *link)
{
    struct ucx_op *op = ucx_op_begin(link, EVENT_NONE, 0);
    if (op == NULL) {
        core_link_break(&link->core, "out of memory");
        return;
    }
    memcpy(op->header, hello_magic, sizeof(hello_magic));
    store_le32(op->header + 4, HELLO_VERSION);
    store_le64(op->header + 8, link->peer_token);
    ucx_op_send(link, op, UCX_AM_HELLO, HELLO_BYTES, NULL, 0, NULL);
}

/* The accepted side answers once it has been told to connect and has heard from the peer, in either order. */
void ucx_peer_send_hello(struct ucx_link *link)
{
    if (link->core.state != LINK_CONNECTING || !link->received_hello)
        return;
    if (link->side == LINK_ACCEPTED)
        send_hello(link);
    if (link->core.state == LINK_CONNECTING)
        core_link_connected(&link->core);
}

static struct ucx_link *link_by_token(struct ucx *ucx, uint64_t token)
{
    struct core_link *link = ucx->core.links;
    while (link != NULL && ((struct ucx_link *)link)->token != token)
        link = link->next;
    return (struct ucx_link *)link;
}

/* Whether a hello for this link from `ep` is acceptable. A token admits one endpoint, once. */
static bool admits(struct ucx *ucx, struct ucx_link *link, ucp_ep_h ep)
{
    if (link->received_hello || link->core.state > LINK_CONNECTING)
        return false;
    if (link->side == LINK_DIALLED)
        return link->ep == ep;
    if (link->ep != NULL || !pending_take(ucx, ep))
        return false;
    link->ep = ep;
    return true;
}

static bool is_hello(const uint8_t *header, size_t size, const ucp_am_recv_param_t *param)
{
    return size == HELLO_BYTES && memcmp(header, hello_magic, sizeof(hello_magic)) == 0 &&
           load_le32(header + 4) == HELLO_VERSION && (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP);
}

ucs_status_t ucx_on_hello(void *arg, const void *header, size_t header_size, void *data, size_t size,
                          const ucp_am_recv_param_t *param)
{
    struct ucx *ucx = arg;
    (void)data, (void)size;
    if (!is_hello(header, header_size, param))
        return UCS_OK;
    struct ucx_link *link = link_by_token(ucx, load_le64((const uint8_t *)header + 8));
    if (link == NULL || !admits(ucx, link, param->reply_ep))
        return UCS_OK;
    link->received_hello = true;
    ucx_peer_send_hello(link);
    if (ucx->progressing)
        core_deliver(&ucx->core); /* `connected` must precede chunks that may follow at once */
    return UCS_OK;
}

/* ---- Both ends ------------------------------------------------------------------------------------------------- */

enum strait_status ucx_peer_dial(struct ucx_link *link, const struct ucx_address *address)
{
    struct ucx *ucx = (struct ucx *)link->core.core;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS,
                              .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                              .sockaddr = {(const struct sockaddr *)&address->at, address->at_size}};
    enum strait_status status = make_ep(ucx, &params, &link->ep);
    if (status == STRAIT_OK) {
        link->core.state = LINK_CONNECTING;
        send_hello(link);
    }
    return status;
}

/* Fills in the address that peers are told, with the port that the system chose. */
static enum strait_status learn_address(struct ucx *ucx)
{
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    if (ucp_listener_query(ucx->listener, &attr) != UCS_OK)
        return STRAIT_ERR_IO;
    ucx->address.at = attr.sockaddr;
    return STRAIT_OK;
}

enum strait_status ucx_listen(struct ucx *ucx)
{
    if (ucx->listener != NULL)
        return STRAIT_OK;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)&ucx->listen, ucx->listen_size},
        .conn_handler = {on_conn_request, ucx},
    };
    if (ucp_listener_create(ucx->worker, &params, &ucx->listener) != UCS_OK) {
        ucx->listener = NULL;
        return STRAIT_ERR_IO;
    }
    enum strait_status status = learn_address(ucx);
    if (status != STRAIT_OK)
        ucx_unlisten(ucx);
    return status;
}

void ucx_unlisten(struct ucx *ucx)
{
    if (ucx->listener == NULL)
        return;
    ucp_listener_destroy(ucx->listener);
    ucx->listener = NULL;
    for (uint32_t i = 0; i < ucx->pending_count; i++)
        ucx->pending[i].failed = true;
    ucx_drop_failed_pending(ucx);
}

/* Limits of one call of progress, which otherwise runs until there is nothing left to do. */
#define ROUNDS_MAX  16
#define NANOSECONDS 200000

/* Rounds in destroy, for what UCX still has to do about closed endpoints. */
#define LAST_ROUNDS 64

#define UNLISTEN_NS 1000000000LL /* without a link */

/* ---- Creation -------------------------------------------------------------------------------------------------- */

static ucs_status_t set_handler(struct ucx *ucx, unsigned id, ucp_am_recv_callback_t handler)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = handler,
        .arg = ucx,
    };
    return ucp_worker_set_am_recv_handler(ucx->worker, &param);
}

static enum strait_status set_up_worker(struct ucx *ucx)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs_status_t status = ucp_worker_query(ucx->worker, &attr);
    if (status == UCS_OK && attr.max_am_header < UCX_TOKEN_BYTES + TRANSPORT_HEADER_MAX)
        status = UCS_ERR_UNSUPPORTED;
    if (status == UCS_OK)
        status = set_handler(ucx, UCX_AM_HELLO, ucx_on_hello);
    if (status == UCS_OK)
        status = set_handler(ucx, UCX_AM_CHUNK, ucx_on_chunk);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(ucx->worker, &ucx->fd);
    return ucx_status(status);
}

static enum strait_status map_memory(struct ucx *ucx, void *base, size_t size, ucp_mem_h *handle)
{
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                 UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                   .address = base,
                                   .length = size,
                                   .memory_type = ucx->memory};
    return ucx_status(ucp_mem_map(ucx->context, &params, handle));
}

/* Sets up the worker and everything after it; undoes that on failure. */
static enum strait_status start(struct ucx *ucx, const struct ucx_options *options)
{
    enum strait_status status = set_up_worker(ucx);
    if (status != STRAIT_OK)
        return status;
    status = map_memory(ucx, ucx->arena.base, ucx->arena.size, &ucx->arena_handle);
    if (status != STRAIT_OK)
        return status;
    ucx->listen = options->listen;
    ucx->listen_size = options->listen_size;
    status = ucx_listen(ucx);
    if (status == STRAIT_OK)
        ucx_unlisten(ucx); /* that it can was to be seen */
    else
        ucp_mem_unmap(ucx->context, ucx->arena_handle);
    return status;
}

static enum strait_status build(struct ucx *ucx, const struct ucx_options *options)
{
    ucx_cuda_enter(ucx->cuda_context);
    enum strait_status status = ucx_make_worker(ucx, options->config);
    if (status != STRAIT_OK)
        return status;
    status = start(ucx, options);
    if (status != STRAIT_OK)
        ucx_destroy_worker(ucx);
    return status;
}

static struct ucx *ucx_new(const struct transport_arena *arena, const struct transport_events *events, void *owner,
                           size_t eager_bytes)
{
    struct ucx *ucx = calloc(1, sizeof(*ucx));
    if (ucx == NULL)
        return NULL;
    core_init(&ucx->core, &transport_ucx, events, owner);
    ucx->core.quiet = ucx_link_quiet;
    ucx->core.release = ucx_link_release;
    ucx->arena = *arena;
    ucx->memory = ucx_memory_type(arena);
    ucx->cuda_context = ucx_cuda_context(arena);
    ucx->eager_bytes = arena->memory == TRANSPORT_CUDA ? 1 : eager_bytes; /* the CPU cannot copy there */
    ucx->rounds = 1;                                                      /* 0 means: never */
    return ucx;
}

/* UCX 1.13 overruns its heap when it is dialled over IPv6. */
static bool bears_address(const struct ucx_options *options)
{
    char version[32];
    return options->listen.ss_family != AF_INET6 || ucx_is_sound_over_tcp(version, sizeof(version));
}

/* ERR_IO with EAFNOSUPPORT: this version of UCX is not to listen at such an address. */
static enum strait_status ucx_create(const struct transport_arena *arena, const struct transport_events *events,
                                     void *owner, const char *text, struct transport **transport)
{
    struct ucx_options options;
    if (arena->base == NULL || arena->size == 0 || (arena->memory != TRANSPORT_HOST && arena->memory != TRANSPORT_CUDA))
        return STRAIT_ERR_INVALID;
    enum strait_status status = ucx_options_read(text, &options);
    if (status != STRAIT_OK)
        return status;
    if (!bears_address(&options)) {
        ucp_config_release(options.config);
        errno = EAFNOSUPPORT;
        return STRAIT_ERR_IO;
    }
    struct ucx *ucx = ucx_new(arena, events, owner, options.eager_bytes);
    status = ucx == NULL ? STRAIT_ERR_NO_MEMORY : build(ucx, &options);
    ucp_config_release(options.config);
    if (status != STRAIT_OK)
        free(ucx);
    else
        *transport = &ucx->core.base;
    return status;
}

static void ucx_destroy(struct transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;
    ucx_cuda_enter(ucx->cuda_context);
    for (int i = 0; i < LAST_ROUNDS; i++)
        ucp_worker_progress(ucx->worker);
    ucp_mem_unmap(ucx->context, ucx->arena_handle);
    ucx_unlisten(ucx); /* immediately before what closes the connections that it has accepted */
    ucx_destroy_worker(ucx);
    free(ucx);
}

/* ---- Progress -------------------------------------------------------------------------------------------------- */

static int ucx_fd(const struct transport *transport)
{
    return ((const struct ucx *)transport)->fd;
}

/* UCX's callbacks run in here. They only fill the queue, except for `arriving`, which needs its answer at once. */
static bool one_round(struct ucx *ucx)
{
    bool any = ucx_close_endpoints(ucx);
    ucx->progressing = true;
    any |= ucp_worker_progress(ucx->worker) > 0;
    ucx->progressing = false;
    any |= ucx_begin_fetches(ucx);
    ucx->rounds++;
    any |= ucx_drop_failed_pending(ucx);
    any |= core_deliver(&ucx->core);
    return any | ucx_close_is_due(ucx);
}

/* Who connects without a link is a stranger. UCX 1.13 ends the process where a connection that it has accepted brings
 * its request after the listener has gone: those of peers whose links have just ended have time to. */
static void unlisten_when_idle(struct ucx *ucx)
{
    if (ucx->core.links != NULL || ucx->listener == NULL)
        ucx->idle_since = 0;
    else if (ucx->idle_since == 0)
        ucx->idle_since = nanoseconds();
    else if (nanoseconds() - ucx->idle_since > UNLISTEN_NS)
        ucx_unlisten(ucx);
}

static bool ucx_progress(struct transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;
    ucx_cuda_enter(ucx->cuda_context);
    int64_t start_at = nanoseconds();
    bool any = core_deliver(&ucx->core), more = true;
    for (int i = 0; i < ROUNDS_MAX && more && nanoseconds() - start_at < NANOSECONDS; i++) {
        more = one_round(ucx);
        any |= more;
    }
    any |= core_reap(&ucx->core);
    unlisten_when_idle(ucx);
    return any;
}

static enum strait_status ucx_arm(struct transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;
    if (core_is_due(&ucx->core) || ucx_close_is_due(ucx))
        return STRAIT_ERR_AGAIN;
    ucx_cuda_enter(ucx->cuda_context);
    ucs_status_t status = ucp_worker_arm(ucx->worker);
    return status == UCS_OK ? STRAIT_OK : status == UCS_ERR_BUSY ? STRAIT_ERR_AGAIN : STRAIT_ERR_IO;
}

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

static enum strait_status ucx_memory(struct transport *transport, void *base, size_t size, void **handle)
{
    ucp_mem_h mapped;
    enum strait_status status = map_memory((struct ucx *)transport, base, size, &mapped);
    if (status == STRAIT_OK)
        *handle = mapped;
    return status;
}

static void ucx_memory_release(struct transport *transport, void *handle)
{
    if (handle != NULL)
        ucp_mem_unmap(((struct ucx *)transport)->context, handle);
}

const struct transport_ops transport_ucx = {
    .name = "ucx",
    .send_memory = TRANSPORT_HOST | TRANSPORT_CUDA,
    .receive_memory = TRANSPORT_HOST | TRANSPORT_CUDA,
    .direct = false,
    .missing = ucx_missing,
    .check = ucx_check,
    .create = ucx_create,
    .destroy = ucx_destroy,
    .fd = ucx_fd,
    .progress = ucx_progress,
    .arm = ucx_arm,
    .memory = ucx_memory,
    .memory_release = ucx_memory_release,
    .open = ucx_link_open,
    .address = ucx_link_address,
    .connect = ucx_link_connect,
    .close = ucx_link_close,
    .abandon = ucx_link_abandon,
    .send = ucx_link_send,
};
