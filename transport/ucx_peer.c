#include <stdlib.h>
#include <string.h>

#include "internal/bytes.h"
#include "transport/ucx_internal.h"

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
    for (uint32_t i = 0; i < ucx->stranger_count; i++)
        ucx->strangers[i].failed |= ucx->strangers[i].ep == ep;
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

static void stranger_remove(struct ucx *ucx, uint32_t index)
{
    ucx->stranger_count--;
    memmove(&ucx->strangers[index], &ucx->strangers[index + 1],
            (ucx->stranger_count - index) * sizeof(ucx->strangers[0]));
}

static bool stranger_take(struct ucx *ucx, ucp_ep_h ep)
{
    for (uint32_t i = 0; i < ucx->stranger_count; i++)
        if (ucx->strangers[i].ep == ep && !ucx->strangers[i].failed) {
            stranger_remove(ucx, i);
            return true;
        }
    return false;
}

bool ucx_drop_failed_strangers(struct ucx *ucx)
{
    bool any = false;
    for (uint32_t i = ucx->stranger_count; i-- > 0;)
        if (ucx->strangers[i].failed) {
            ucx_ep_close(ucx->strangers[i].ep);
            stranger_remove(ucx, i);
            any = true;
        }
    return any;
}

static void stranger_add(struct ucx *ucx, ucp_ep_h ep)
{
    ucx->strangers[ucx->stranger_count++] = (struct ucx_stranger){.ep = ep};
    if (ucx->stranger_count > UCX_STRANGERS_MAX)
        ucx->strangers[ucx->stranger_count - 1 - UCX_STRANGERS_MAX].failed = true;
}

static void on_conn_request(ucp_conn_request_h request, void *arg)
{
    struct ucx *ucx = arg;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    ucp_ep_h ep;
    if (ucx->stranger_count == UCX_STRANGERS_ROOM)
        ucp_listener_reject(ucx->listener, request);
    else if (make_ep(ucx, &params, &ep) == STRAIT_OK)
        stranger_add(ucx, ep);
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
void ucx_peer_greet(struct ucx_link *link)
{
    if (link->core.state != LINK_CONNECTING || !link->greeted)
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
    if (link->greeted || link->core.state > LINK_CONNECTING)
        return false;
    if (link->side == LINK_DIALLED)
        return link->ep == ep;
    if (link->ep != NULL || !stranger_take(ucx, ep))
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
    link->greeted = true;
    ucx_peer_greet(link);
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

enum strait_status ucx_listen(struct ucx *ucx, const struct sockaddr_storage *address, socklen_t size)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(const struct sockaddr *)address, size},
        .conn_handler = {on_conn_request, ucx},
    };
    if (ucp_listener_create(ucx->worker, &params, &ucx->listener) != UCS_OK)
        return STRAIT_ERR_IO;
    enum strait_status status = learn_address(ucx);
    if (status != STRAIT_OK)
        ucp_listener_destroy(ucx->listener);
    return status;
}

void ucx_unlisten(struct ucx *ucx)
{
    ucp_listener_destroy(ucx->listener);
    for (uint32_t i = 0; i < ucx->stranger_count; i++)
        ucx->strangers[i].failed = true;
    ucx_drop_failed_strangers(ucx);
}
