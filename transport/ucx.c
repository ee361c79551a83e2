#include "transport/ucx.h"

#include <stdlib.h>

#include "transport/clock.h"
#include "transport/ucx_internal.h"

/* Limits of one call of progress, which otherwise runs until there is nothing left to do. */
#define ROUNDS_MAX  16
#define NANOSECONDS 200000

#define FEATURES (UCP_FEATURE_AM | UCP_FEATURE_WAKEUP)

/* Rounds in destroy, for what UCX still has to do about closed endpoints. */
#define LAST_ROUNDS 64

/* ---- Creation -------------------------------------------------------------------------------------------------- */

static enum strait_status status_of(ucs_status_t status)
{
    return status == UCS_OK ? STRAIT_OK : status == UCS_ERR_NO_MEMORY ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_IO;
}

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
    return status_of(status);
}

static enum strait_status make_worker(struct ucx *ucx, const ucp_config_t *config)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = FEATURES};
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t status = ucp_init(&params, config, &ucx->context);
    if (status != UCS_OK)
        return status_of(status);
    if (ucx->memory == UCS_MEMORY_TYPE_CUDA && !ucx_cuda_is_there(ucx->context)) {
        ucp_cleanup(ucx->context);
        return STRAIT_ERR_UNSUPPORTED;
    }
    status = ucp_worker_create(ucx->context, &worker_params, &ucx->worker);
    if (status != UCS_OK) {
        ucp_cleanup(ucx->context);
        return status_of(status);
    }
    return STRAIT_OK;
}

static void destroy_worker(struct ucx *ucx)
{
    ucp_worker_destroy(ucx->worker);
    ucp_cleanup(ucx->context);
}

static enum strait_status map_memory(struct ucx *ucx, void *base, size_t size, ucp_mem_h *handle)
{
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                 UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                   .address = base,
                                   .length = size,
                                   .memory_type = ucx->memory};
    return status_of(ucp_mem_map(ucx->context, &params, handle));
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
    status = ucx_listen(ucx, &options->listen, options->listen_size);
    if (status != STRAIT_OK)
        ucp_mem_unmap(ucx->context, ucx->arena_handle);
    return status;
}

static enum strait_status build(struct ucx *ucx, const struct ucx_options *options)
{
    ucx_cuda_enter(ucx->cuda_context);
    enum strait_status status = make_worker(ucx, options->config);
    if (status != STRAIT_OK)
        return status;
    status = start(ucx, options);
    if (status != STRAIT_OK)
        destroy_worker(ucx);
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

static enum strait_status ucx_create(const struct transport_arena *arena, const struct transport_events *events,
                                     void *owner, const char *text, struct transport **transport)
{
    struct ucx_options options;
    if (arena->base == NULL || arena->size == 0 || (arena->memory != TRANSPORT_HOST && arena->memory != TRANSPORT_CUDA))
        return STRAIT_ERR_INVALID;
    enum strait_status status = ucx_options_read(text, &options);
    if (status != STRAIT_OK)
        return status;
    struct ucx *ucx = ucx_new(arena, events, owner, options.eager_bytes);
    status = ucx == NULL ? STRAIT_ERR_NO_MEMORY : build(ucx, &options);
    ucp_config_release(options.config);
    if (status != STRAIT_OK)
        free(ucx);
    else
        *transport = &ucx->core.base;
    return status;
}

/* What this loads stays loaded. */
void ucx_prepare(const struct transport_arena *arena)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = FEATURES};
    ucp_context_h context;
    ucp_config_t *config;
    if (ucp_config_read(NULL, NULL, &config) != UCS_OK)
        return;
    ucx_cuda_enter(ucx_cuda_context(arena));
    if (ucp_init(&params, config, &context) == UCS_OK)
        ucp_cleanup(context);
    ucp_config_release(config);
}

static enum strait_status ucx_check(const char *text)
{
    struct ucx_options options;
    enum strait_status status = ucx_options_read(text, &options);
    if (status == STRAIT_OK)
        ucp_config_release(options.config);
    return status;
}

static void ucx_destroy(struct transport *transport)
{
    struct ucx *ucx = (struct ucx *)transport;
    ucx_cuda_enter(ucx->cuda_context);
    ucx_unlisten(ucx);
    for (int i = 0; i < LAST_ROUNDS; i++)
        ucp_worker_progress(ucx->worker);
    ucp_mem_unmap(ucx->context, ucx->arena_handle);
    destroy_worker(ucx);
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
    any |= ucx_drop_failed_strangers(ucx);
    any |= core_deliver(&ucx->core);
    return any | ucx_close_is_due(ucx);
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
    return core_reap(&ucx->core) || any;
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

static void *ucx_map(struct link *link, size_t offset, size_t size)
{
    (void)link, (void)offset, (void)size;
    return NULL;
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
    .map = ucx_map,
    .send = ucx_link_send,
};
