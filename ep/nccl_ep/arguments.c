#include "ep/nccl_ep/arguments.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- What is said ------------------------------------------------------------------------------------------------ */

static bool speaks(void)
{
    static const char *const levels[] = {"WARN", "INFO", "ABORT", "TRACE"};
    const char *level = getenv("NCCL_DEBUG");
    for (size_t i = 0; level != NULL && i < sizeof(levels) / sizeof(levels[0]); i++)
        if (strcasecmp(level, levels[i]) == 0)
            return true;
    return false;
}

static void say(const char *format, va_list args)
{
    char text[512];
    if (!speaks())
        return;
    vsnprintf(text, sizeof(text), format, args);
    fprintf(stderr, "strait, in place of NCCL EP: %s\n", text);
}

nep_result nep_refuse(nep_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return result;
}

void nep_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

nep_result nep_result_of(enum strait_status status, const char *function, const char *text)
{
    nep_result result = NEP_INTERNAL_ERROR;
    switch (status) {
    case STRAIT_OK:
        return NEP_SUCCESS;
    case STRAIT_ERR_INVALID:
        result = NEP_INVALID_ARGUMENT;
        break;
    case STRAIT_ERR_UNSUPPORTED:
        result = NEP_INVALID_USAGE;
        break;
    case STRAIT_ERR_NO_MEMORY:
        result = NEP_SYSTEM_ERROR;
        break;
    case STRAIT_ERR_DEVICE:
        result = NEP_CUDA_ERROR;
        break;
    case STRAIT_ERR_IO:
    case STRAIT_ERR_TIMEOUT:
        result = NEP_REMOTE_ERROR;
        break;
    default:
        break;
    }
    return nep_refuse(result, "%s: %s%s%s", function, strait_status_string(status), text[0] != '\0' ? ": " : "", text);
}

/* ---- Structs ----------------------------------------------------------------------------------------------------- */

nep_result nep_take(void *to, size_t to_size, const void *from, size_t least, bool optional, const char *name)
{
    struct nep_head head;
    memset(to, 0, to_size);
    if (from == NULL)
        return optional ? NEP_SUCCESS : nep_refuse(NEP_INVALID_ARGUMENT, "%s is NULL", name);
    memcpy(&head, from, sizeof(head));
    if (head.magic != NEP_MAGIC)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has no magic number: it was not initialised", name);
    if (head.size < least)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has %u bytes, fewer than the %zu of its first version", name,
                          head.size, least);
    memcpy(to, from, head.size < to_size ? head.size : to_size);
    return NEP_SUCCESS;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* What libstrait-ep takes the values for; BYTES are moved, but not summed. */
static const struct {
    uint8_t bytes;
    enum strait_element element;
} types[] = {
    [NEP_INT8] = {1, STRAIT_ELEMENT_BYTES},
    [NEP_UINT8] = {1, STRAIT_ELEMENT_BYTES},
    [NEP_INT32] = {4, STRAIT_ELEMENT_BYTES},
    [3] = {4, STRAIT_ELEMENT_BYTES},
    [NEP_INT64] = {8, STRAIT_ELEMENT_BYTES},
    [5] = {8, STRAIT_ELEMENT_BYTES},
    [NEP_FP16] = {2, STRAIT_ELEMENT_FP16},
    [NEP_FP32] = {4, STRAIT_ELEMENT_FP32},
    [8] = {8, STRAIT_ELEMENT_BYTES},
    [NEP_BF16] = {2, STRAIT_ELEMENT_BF16},
    [NEP_E4M3] = {1, STRAIT_ELEMENT_FP8_E4M3},
    [NEP_E5M2] = {1, STRAIT_ELEMENT_FP8_E5M2},
    [NEP_FP4_PAIR] = {1, STRAIT_ELEMENT_BYTES},
};

size_t nep_type_bytes(int type)
{
    return type >= 0 && (size_t)type < sizeof(types) / sizeof(types[0]) ? types[type].bytes : 0;
}

struct strait_ep_tensor nep_rows(const struct nep_view *view)
{
    return (struct strait_ep_tensor){
        .data = view->data,
        .row_bytes = (uint32_t)view->row_bytes,
        .type = types[view->type].element,
    };
}

/* Where the values are: at `data`, or in a window of NCCL's. */
static nep_result find_data(struct nep_view *view, const struct nep_tensor *tensor, nep_comm comm, const char *name)
{
    const struct nep_nccl *nccl = nep_nccl();
    void *base = NULL;
    view->data = tensor->data;
    if (tensor->data != NULL || tensor->window == NULL)
        return NEP_SUCCESS;
    if (nccl == NULL || nccl->WinGetUserPtr == NULL)
        return nep_refuse(NEP_INVALID_USAGE, "%s is in a window, which NCCL before 2.29.7 does not tell the place of",
                          name);
    nep_result result = nccl->WinGetUserPtr(comm, tensor->window, &base);
    if (result != NEP_SUCCESS || base == NULL)
        return nep_refuse(result != NEP_SUCCESS ? result : NEP_INVALID_ARGUMENT,
                          "%s: NCCL does not know the window, or its memory is not in reach", name);
    view->data = (uint8_t *)base + tensor->window_offset;
    view->window = tensor->window;
    view->window_offset = tensor->window_offset;
    return NEP_SUCCESS;
}

bool nep_peers(const struct nep_view *view, uint32_t rank_count, void *peers[STRAIT_EP_RANKS_MAX])
{
    const struct nep_nccl *nccl = nep_nccl();

    if (view->window == NULL || nccl == NULL || nccl->GetPeerDevicePointer == NULL)
        return false;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        peers[rank] = NULL;
        if (nccl->GetPeerDevicePointer(view->window, view->window_offset, (int)rank, &peers[rank]) != NEP_SUCCESS ||
            peers[rank] == NULL)
            return false;
    }
    return true;
}

static nep_result find_shape(struct nep_view *view, const struct nep_tensor *tensor, const char *name)
{
    const size_t bytes = nep_type_bytes(tensor->type);
    if (tensor->dims < 1 || tensor->dims > 3 || tensor->sizes == NULL)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has %u dimensions, or no sizes", name, tensor->dims);
    if (bytes == 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has values of type %d, which is unknown", name, tensor->type);
    view->rows = tensor->sizes[0];
    view->values = tensor->dims == 1 ? 1 : tensor->sizes[tensor->dims - 1];
    if (tensor->dims == 3 && __builtin_mul_overflow(tensor->sizes[0], tensor->sizes[1], &view->rows))
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s is too large", name);
    if (view->values > UINT32_MAX / bytes || view->rows > UINT32_MAX)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s is too large", name);
    view->row_bytes = view->values * bytes;
    return NEP_SUCCESS;
}

nep_result nep_view(struct nep_view *view, const struct nep_tensor *tensor, nep_comm comm, bool optional,
                    const char *name)
{
    *view = (struct nep_view){0};
    if (tensor == NULL)
        return optional ? NEP_SUCCESS : nep_refuse(NEP_INVALID_ARGUMENT, "%s is required", name);
    if ((tensor->head.magic != NEP_TENSOR_MAGIC && tensor->head.magic != NEP_TENSOR_OWNED) ||
        tensor->head.size < NEP_TENSOR_V1)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s was not initialised", name);
    view->dims = tensor->dims;
    view->type = tensor->type;
    nep_result result = find_shape(view, tensor, name);
    if (result == NEP_SUCCESS)
        result = find_data(view, tensor, comm, name);
    if (result == NEP_SUCCESS && view->data == NULL && view->rows > 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "%s has neither data nor a window", name);
    return result;
}

/* ---- Descriptors on the heap ------------------------------------------------------------------------------------- */

struct owned {
    struct nep_tensor tensor;
    size_t sizes[];
};

nep_result ncclEpTensorAlloc(struct nep_tensor **tensor, unsigned dims, int type, const size_t *sizes,
                             const struct nep_empty_config *config)
{
    struct nep_empty_config taken;
    nep_result result = NEP_TAKE(taken, config, NEP_EMPTY_CONFIG_V1, true);
    if (result != NEP_SUCCESS)
        return result;
    if (tensor == NULL || sizes == NULL || dims == 0 || dims > 8 || nep_type_bytes(type) == 0)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpTensorAlloc: %u dimensions of type %d", dims, type);
    struct owned *made = calloc(1, sizeof(*made) + dims * sizeof(made->sizes[0]));
    if (made == NULL)
        return nep_refuse(NEP_SYSTEM_ERROR, "ncclEpTensorAlloc: out of memory");
    memcpy(made->sizes, sizes, dims * sizeof(made->sizes[0]));
    made->tensor = (struct nep_tensor){
        .head = {sizeof(struct nep_tensor), NEP_TENSOR_OWNED},
        .dims = dims,
        .type = type,
        .sizes = made->sizes,
    };
    *tensor = &made->tensor;
    return NEP_SUCCESS;
}

nep_result ncclEpTensorDestroy(struct nep_tensor *tensor)
{
    if (tensor == NULL)
        return NEP_SUCCESS;
    if (tensor->head.magic != NEP_TENSOR_OWNED)
        return nep_refuse(NEP_INVALID_ARGUMENT, "ncclEpTensorDestroy: the descriptor is not of ncclEpTensorAlloc");
    tensor->head.magic = 0;
    free(tensor);
    return NEP_SUCCESS;
}
