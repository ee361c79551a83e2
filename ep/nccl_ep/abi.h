/* ABI of NCCL EP, struct version 2, library version 0.2.0: what programs that were built with its header pass to
 * libnccl_ep.so.0. Enums are ints here. Structs begin with their size and a magic number and only ever grow; each name
 * _V1 below is the least size that a caller may have. */
#ifndef STRAIT_EP_NCCL_EP_ABI_H
#define STRAIT_EP_NCCL_EP_ABI_H

#include <stddef.h>
#include <stdint.h>

#define NEP_VERSION      200 /* 0.2.0: major * 10000 + minor * 100 + patch */
#define NEP_MAGIC        0xC00FFFEEu
#define NEP_TENSOR_MAGIC 0xCAFECAFEu
#define NEP_TENSOR_OWNED 0xCAFE0B0Bu /* of descriptors that ncclEpTensorAlloc made */

typedef struct ncclComm *nep_comm;
typedef struct CUstream_st *nep_stream;
typedef struct ncclWindow_vidmem *nep_window;
typedef struct ncclEpGroup *nep_group;
typedef struct ncclEpHandle *nep_handle;
typedef int nep_result;

/* Results, as NCCL numbers them. */
enum {
    NEP_SUCCESS = 0,
    NEP_CUDA_ERROR = 1,
    NEP_SYSTEM_ERROR = 2,
    NEP_INTERNAL_ERROR = 3,
    NEP_INVALID_ARGUMENT = 4,
    NEP_INVALID_USAGE = 5,
    NEP_REMOTE_ERROR = 6,
};

/* Value types, as NCCL numbers them; FP4_PAIR is the number that it keeps for two values in a byte. */
enum nep_type {
    NEP_INT8 = 0,
    NEP_UINT8 = 1,
    NEP_INT32 = 2,
    NEP_INT64 = 4,
    NEP_FP16 = 6,
    NEP_FP32 = 7,
    NEP_BF16 = 9,
    NEP_E4M3 = 10,
    NEP_E5M2 = 11,
    NEP_FP4_PAIR = 12,
};

enum { NEP_LOW_LATENCY = 0, NEP_HIGH_THROUGHPUT = 1 };
enum { NEP_OVERFLOW_AUTO = 0, NEP_OVERFLOW_TRAP = 1, NEP_OVERFLOW_DROP = 2 };
enum { NEP_EXPERT_MAJOR = 1, NEP_RANK_MAJOR = 2, NEP_FLAT = 3 };
enum { NEP_FORWARD = 0, NEP_BACKWARD = 1 };
enum { NEP_ZERO_COPY_AUTO = 0, NEP_ZERO_COPY_OFF = 1, NEP_ZERO_COPY_ON = 2 };
enum { NEP_IDS_AUTO = 0, NEP_IDS_LOCAL = 1, NEP_IDS_GLOBAL = 2 };
enum { NEP_QUANT_NONE = 0, NEP_QUANT_FORWARD = 1, NEP_QUANT_E4M3 = 2 };
enum { NEP_COMBINE_QUANT_NONE = 0, NEP_COMBINE_QUANT_NVFP4 = 1 };

struct nep_head {
    unsigned size, magic;
};

struct nep_tensor {
    struct nep_head head;
    unsigned dims;
    int type;
    void *data;
    nep_window window;
    uint64_t window_offset;
    size_t *sizes; /* [dims], the caller's */
};
#define NEP_TENSOR_V1 48u

struct nep_allocator {
    int (*alloc)(void **memory, size_t size, void *context);
    int (*free)(void *memory, void *context);
    void *context;
};

struct nep_group_config {
    struct nep_head head;
    unsigned version;
    int algorithm;
    unsigned experts, tokens_max, receive_max, token_bytes_max;
    unsigned long rdma_bytes;
    unsigned qps, channels, sms;
    struct nep_allocator allocator;
    unsigned mask;
    uint64_t timeout_ns;
    int zero_copy, overflow; /* from here on: version 2 */
    unsigned topk_max;
    unsigned char padding[4];
};
#define NEP_GROUP_CONFIG_V1 96u

struct nep_layout_info {
    struct nep_head head;
    struct nep_tensor *expert_counts, *rank_counts, *expert_offsets, *total;
    int ids; /* from here on: version 2 */
    unsigned char padding[4];
};
#define NEP_LAYOUT_INFO_V1 40u

struct nep_dispatch_in {
    struct nep_head head;
    struct nep_tensor *tokens, *weights, *scales;
};
#define NEP_DISPATCH_IN_V1 32u

struct nep_dispatch_out {
    struct nep_head head;
    struct nep_tensor *tokens, *weights, *scales, *topk;
};
#define NEP_DISPATCH_OUT_V1 40u

struct nep_combine_in {
    struct nep_head head;
    struct nep_tensor *tokens, *weights;
    struct nep_tensor *scales; /* version 2 */
};
#define NEP_COMBINE_IN_V1 24u

struct nep_combine_out {
    struct nep_head head;
    struct nep_tensor *tokens, *weights;
};
#define NEP_COMBINE_OUT_V1 24u

struct nep_handle_config {
    struct nep_head head;
    size_t alignment; /* of an expert's zone, in rows: a power of two; 0 and 1: none */
};
#define NEP_HANDLE_CONFIG_V1 16u

struct nep_dispatch_config {
    struct nep_head head;
    unsigned send_only, round_scales;
    int pass;
    int recipe; /* version 2 */
};
#define NEP_DISPATCH_CONFIG_V1 20u

struct nep_combine_config {
    struct nep_head head;
    unsigned send_only;
    int pass;
    int recipe; /* version 2 */
};
#define NEP_COMBINE_CONFIG_V1 16u

/* Of ncclEpComplete and ncclEpTensorAlloc: nothing but the head. */
struct nep_empty_config {
    struct nep_head head;
};
#define NEP_EMPTY_CONFIG_V1 8u

#define NEP_EXPORT __attribute__((visibility("default")))

NEP_EXPORT nep_result ncclEpGetVersion(int *version);
NEP_EXPORT nep_result ncclEpTensorAlloc(struct nep_tensor **tensor, unsigned dims, int type, const size_t *sizes,
                                        const struct nep_empty_config *config);
NEP_EXPORT nep_result ncclEpTensorDestroy(struct nep_tensor *tensor);
NEP_EXPORT nep_result ncclEpCreateGroup(nep_group *group, nep_comm comm, const struct nep_group_config *config);
NEP_EXPORT nep_result ncclEpGroupDestroy(nep_group group);
NEP_EXPORT nep_result ncclEpHandleMemSize(nep_group group, int layout, const struct nep_handle_config *config,
                                          size_t *size, int topk);
NEP_EXPORT nep_result ncclEpInitHandle(nep_handle *handle, nep_group group, int layout,
                                       const struct nep_handle_config *config, int topk,
                                       const struct nep_tensor *memory);
NEP_EXPORT nep_result ncclEpUpdateHandle(nep_handle handle, const struct nep_tensor *topk,
                                         const struct nep_layout_info *info, nep_stream stream);
NEP_EXPORT nep_result ncclEpCreateHandle(nep_handle *handle, nep_group group, int layout, const struct nep_tensor *topk,
                                         const struct nep_layout_info *info, const struct nep_handle_config *config,
                                         nep_stream stream);
NEP_EXPORT nep_result ncclEpHandleDestroy(nep_handle handle);
NEP_EXPORT nep_result ncclEpDispatch(nep_handle handle, const struct nep_dispatch_in *in,
                                     const struct nep_dispatch_out *out, const struct nep_layout_info *info,
                                     const struct nep_dispatch_config *config, nep_stream stream);
NEP_EXPORT nep_result ncclEpCombine(nep_handle handle, const struct nep_combine_in *in,
                                    const struct nep_combine_out *out, const struct nep_combine_config *config,
                                    nep_stream stream);
NEP_EXPORT nep_result ncclEpComplete(nep_handle handle, const struct nep_empty_config *config, nep_stream stream);
NEP_EXPORT nep_result ncclEpMaskQuery(nep_group group, int *mask, nep_stream stream);
NEP_EXPORT nep_result ncclEpMaskUpdate(nep_group group, const int *mask, nep_stream stream);
NEP_EXPORT nep_result ncclEpMaskClean(nep_group group, nep_stream stream);
NEP_EXPORT nep_result ncclEpGetAsyncError(nep_group group, int *error);
NEP_EXPORT nep_result ncclEpErrorClear(nep_group group);

#endif
