/*
 * strait/strait.h - move KV-cache pages between the workers of disaggregated LLM serving
 *
 * A serving framework registers its paged KV pool with the daemon of its node (straitd) and then names requests: the
 * sink (decode side) says which pages will receive a request, the source (prefill side) says which pages hold it, and
 * either of them starts the transfer. The daemons gather the pages, compress them losslessly when that makes the
 * transfer faster, move them, verify them and put them in place.
 *
 *     source                                              sink
 *     strait_pool_register(...)                           strait_pool_register(...)
 *     strait_pool_export(pool, blob)  --- any channel --> strait_peer_import(client, blob, size, &peer)
 *     strait_offer(pool, ...)                             strait_expect(pool, ...)
 *                                                         strait_start(transfer, peer, &start)
 *     strait_poll(...): STATE, DONE                       strait_poll(...): STATE, DONE
 *
 * Guarantees. Bytes land only in pages of a live expectation. DONE means: checked, decoded, in the final pages. Every
 * transfer gets its verdict, DONE or FAILED with a reason, within its deadline, whatever dies meanwhile. After
 * `drained` nothing touches the pages any more; until then they must not be reused. `drained` comes with DONE; after a
 * failure it comes with FAILED or in a later event. If the daemon itself hangs, the library gives the verdicts: TIMEOUT
 * after the deadline, LEASE_EXPIRED after the lease, without `drained`, which follows when the daemon goes on or its
 * end of the connection is closed.
 *
 * Calls never block, except strait_wait, and strait_client_open in embedded mode. A call's request goes to the daemon,
 * and its outcome comes back as an event. While the daemon is away, calls are accepted and everything that was in
 * flight fails with LOCAL; the library reconnects from strait_poll and registers its pools again.
 *
 * Threads: the library starts no threads and installs no signal handlers. Calls on one client, and on objects made from
 * it, must not overlap; different clients are independent. Another thread may poll the descriptor of strait_client_fd
 * meanwhile, but nothing else. After fork the child must not use the client.
 *
 * Errors: the return value reports bad arguments and ERR_NO_MEMORY; outputs are set on OK only.
 */
#ifndef STRAIT_STRAIT_H
#define STRAIT_STRAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/export.h>
#include <strait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRAIT_KEY_BYTES_MAX      128u /* of a request's key */
#define STRAIT_POOL_ID_BYTES      16u
#define STRAIT_AUX_BYTES_MAX      (1024u * 1024)     /* of the small payload that `last` may bring */
#define STRAIT_NOTE_BYTES_MAX     (64u * 1024)       /* of a notification */
#define STRAIT_REGIONS_MAX        4096u              /* of a pool */
#define STRAIT_DESCRIPTORS_MAX    64u                /* different descriptors that a pool's regions name */
#define STRAIT_GROUPS_MAX         64u                /* of a pool */
#define STRAIT_TRANSFER_PAGES_MAX (4u * 1024 * 1024) /* page ids of one expectation or offer */
#define STRAIT_FAILED_PAGES_MAX   (64u * 1024)       /* failed pages that a daemon reports for a transfer */
#define STRAIT_PARTS_MAX          64u                /* consumers of an offer, sources of an expectation */
#define STRAIT_COMPAT_BYTES_MAX   64u                /* of a pool's compatibility token */
#define STRAIT_CONSUMERS_ASKED    UINT32_MAX /* of an offer: the first that asks for it says how many there are */

/* Structs of parameters begin with their size, by which the library knows the fields that the program knows: it takes
 * those of earlier versions of a struct, and those of later ones if what it does not know is 0. Structs that come in
 * arrays, or are returned, have reserved fields for what will be added. */

struct strait_client;   /* a connection to the daemon */
struct strait_pool;     /* a registered KV pool */
struct strait_peer;     /* a pool of another worker, imported */
struct strait_transfer; /* one offer or one expectation */

/* ---- Connection -------------------------------------------------------------------------------------------------- */

struct strait_client_config {
    size_t size;          /* sizeof(struct strait_client_config) */
    const char *socket;   /* path of the daemon's socket; NULL: $STRAIT_SOCKET, else the user's own daemon at
                             $XDG_RUNTIME_DIR/strait/straitd.sock, if that exists (not for root; a socket that this user
                             or root owns), else /run/strait/straitd.sock */
    const char *embedded; /* not NULL: no socket; the daemon runs in a thread of this process, with these options, one
                             "name = value" per line ("" for none: straitd's defaults, with socket, listen and metrics
                             empty). Needs libstrait-node. Regions may be plain pointers in this mode only. The option
                             `workers` has no effect: jobs run in libuv's pool, whose size is the environment variable
                             UV_THREADPOOL_SIZE, 4 without it. */
};

/* Makes a client and begins to connect; succeeds even while the daemon is away. config NULL: all defaults. On OK the
 * caller owns *client. ERR_INVALID (also a path that no socket can have), ERR_NO_MEMORY, ERR_IO (no descriptors left).
 * In embedded mode it returns when the daemon runs and its arenas exist, or when it failed to start: ERR_INVALID (a bad
 * option), ERR_UNSUPPORTED (libstrait-node cannot be loaded), ERR_NO_MEMORY, ERR_IO (also when none of the transports
 * that the options name can be used); a line on stderr says more. */
STRAIT_API enum strait_status strait_client_open(const struct strait_client_config *config,
                                                 struct strait_client **client);

/* Closes the client and releases everything made from it; transfers in flight fail at their peers. Pages may still be
 * written until the daemon has noticed the end of the connection: before closing, call strait_poll until all transfers
 * are drained. NULL is allowed. */
STRAIT_API void strait_client_close(struct strait_client *client);

/* A descriptor that polls readable when strait_poll has something to do. Owned by the client, valid until the client is
 * closed, the same across reconnects. Any thread may poll it, none may read from it. */
STRAIT_API int strait_client_fd(const struct strait_client *client);

/* True while the daemon is connected and answers. */
STRAIT_API bool strait_client_connected(const struct strait_client *client);

/* Holds back what calls on this client would send, until as many calls of strait_uncork: many offers, expectations,
 * reads and appends then reach the daemon by one system call and wake it once. strait_poll and strait_wait send in any
 * case. Calls take effect, and fail, as they do otherwise. */
STRAIT_API void strait_cork(struct strait_client *client);
STRAIT_API void strait_uncork(struct strait_client *client);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Memory that a daemon can map: a memfd, sealed against resizing. */
struct strait_memory {
    int fd;     /* O_CLOEXEC */
    void *base; /* mapped shared, zeroed, page-aligned */
    size_t size;
};

/* Allocates at least `size` bytes (rounded up to whole memory pages). On OK the caller owns *memory. ERR_INVALID (0),
 * ERR_NO_MEMORY. Any thread. */
STRAIT_API enum strait_status strait_alloc(size_t size, struct strait_memory *memory);

/* Unmaps and closes the memory; pools registered on it keep their own mapping until they are removed. NULL is allowed.
 */
STRAIT_API void strait_free(struct strait_memory *memory);

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

/* How a region's memory is named to the daemon. GPU memory needs a daemon with the CUDA plugin; in embedded mode it is
 * named by its pointer. */
enum strait_handle {
    STRAIT_HANDLE_MEMFD = 1,    /* fd: a memfd sealed with at least F_SEAL_SHRINK */
    STRAIT_HANDLE_POINTER = 2,  /* pointer: embedded mode only; to memory of the host, or of `device` */
    STRAIT_HANDLE_CUDA_IPC = 3, /* ipc: a cudaIpcMemHandle_t. It stands for the whole allocation, whichever address in
                                   it the handle was made from: cuMemGetAddressRange tells where that begins */
    STRAIT_HANDLE_CUDA_VMM = 4, /* fd: an allocation that cuMemExportToShareableHandle exported as a descriptor */
};

/* Order of what is in a page of `tokens` tokens of `heads` KV heads. */
enum strait_layout {
    STRAIT_LAYOUT_NONE = 0, /* not declared: such pages fit only pages of the same rows, tokens and heads */
    STRAIT_LAYOUT_NHD = 1,  /* token by token, all heads of each */
    STRAIT_LAYOUT_HND = 2,  /* head by head, all tokens of each */
};

/* One layer's K or V (or both, or another tensor) of a paged pool. Bytes of a page = rows * row_bytes, at most 16 MiB;
 * page i begins at offset + i * page_stride. offset, strides, row_bytes and pointer are multiples of the element size.
 * Neither pages nor regions of one group overlap. Regions of two groups may be the same memory, as in a hybrid model's
 * cache: whoever expects pages keeps ids of both that mean the same bytes apart. */
struct strait_pool_region {
    enum strait_handle handle;
    int32_t device;       /* GPU of the memory, the same for all regions of a group; -1: host. See below */
    int fd;               /* MEMFD, VMM: borrowed for the call; regions may share it. A pool has at most
                             STRAIT_DESCRIPTORS_MAX different ones */
    void *pointer;        /* POINTER */
    uint8_t ipc[64];      /* CUDA_IPC */
    uint64_t offset;      /* bytes from the beginning of the memory to page 0 */
    uint64_t page_stride; /* bytes from one page to the next */
    uint64_t row_stride;  /* bytes from one row to the next; unused when rows is 1 */
    uint32_t page_count;  /* ids are below the smallest page_count of the group's regions */
    uint32_t rows;        /* 1 when pages are contiguous */
    uint32_t row_bytes;
    uint32_t element;     /* enum strait_element of codec.h; one per group */
    uint32_t role;        /* enum strait_role of codec.h */
    int32_t layer;        /* -1: belongs to no layer */
    uint32_t heads;       /* KV heads in a page, 0 when not applicable */
    uint32_t group;       /* 0, 1, ... without gaps, below STRAIT_GROUPS_MAX; regions of a group share page ids */
    uint32_t layout;      /* enum strait_layout. Declare it: two pools of one size and another order would exchange
                             permuted pages, if neither of them said so */
    uint32_t tokens;      /* in a page, 0 when not declared */
    uint32_t head_first;  /* the model's KV head that is the first in a page: with tensor parallelism, where this
                             rank's heads begin */
    uint32_t heads_total; /* KV heads of the model, 0 when not declared: such pages fit only pages with as many heads */
    uint64_t reserved[3]; /* 0 */
};

/* About layouts. The two pools of a transfer need not be alike: pages are rearranged on the way, in the same pass that
 * gathers and scatters them. They may differ in tokens per page (whose greatest common divisor is then what moves at a
 * time), in the order of tokens and heads, in the rows of pages, in whether K and V share a region (role KV: of each
 * token and head first all of K, then all of V), and in which of the model's KV heads and layers they hold, as with
 * tensor and pipeline parallelism. For that, regions declare layout, tokens and heads, and where heads differ
 * head_first and heads_total; regions meet by layer and role, and those of one group have
 * tokens per page in one ratio at both sides. Element types, bytes of a head and compatibility tokens
 * are equal; regions that declare none of this fit only regions of the same rows. strait_peer_check says RESHAPED for
 * such a pair, and strait_peer_explain names both descriptions where pools do not fit.
 *
 * A sink whose pages hold more than one source has, such as all heads of two ranks, expects that number of `sources`
 * and starts each. They may not bring the same bytes twice; DONE says that all bytes of all expected pages have come.
 * Logical indexes count pages of the own pool: token t of a request is in page t / tokens. Where the last page of the
 * sources ends inside one of the sink, the rest of that page is left as it was, and a layer that has such a page is
 * complete only when the sources have said `last`, unless the expectation says how many tokens there are. Pages that
 * are read (strait_read) have as many tokens at both sides. */

/* About devices. A GPU is named by its ordinal in the daemon's process, which is the client's own when both see the
 * same GPUs in the same order (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER). Groups of a pool may be on different devices,
 * and some of them on the host. A pointer or an exported allocation on another device than the region says is refused.
 * For an IPC handle the driver does not tell the device: the handle is opened on the GPU that the region names, and if
 * the memory is on another one, all its bytes cross the link between the two. */

struct strait_pool_params {
    size_t size;                              /* sizeof(struct strait_pool_params) */
    const struct strait_pool_region *regions; /* borrowed for the call */
    uint32_t region_count;                    /* 1..STRAIT_REGIONS_MAX */
    const char *compat;                       /* what else must be equal at both ends, such as "llama-8b@4f2 bf16": up
                                                 to STRAIT_COMPAT_BYTES_MAX printable ASCII characters; NULL: "" */
};

/* Registers a pool and draws its id, which stays the same across reconnects. The pool may be used at once; an event
 * POOL tells whether the daemon could map it, with a text when it could not: ERR_INVALID (memory that is too small, on
 * another device, or of two regions of a group), ERR_UNSUPPORTED (no GPU, or no plugin), ERR_DEVICE (the GPU has
 * failed), ERR_NO_MEMORY, ERR_IO. What uses a refused pool fails with LOCAL. The regions' descriptors are duplicated.
 * Memory of memfds that was never touched is touched here, which takes long, so that this process is charged for it,
 * not the daemon. Within a group, regions are sorted by layer, then role, then position here. On OK the client owns
 * *pool. ERR_INVALID (also a memfd that is not sealed, or smaller than its regions say), ERR_NO_MEMORY, ERR_IO (no
 * descriptors left). */
STRAIT_API enum strait_status strait_pool_register(struct strait_client *client,
                                                   const struct strait_pool_params *params, struct strait_pool **pool);

/* Removes a pool: its live transfers are aborted; when they have drained, the daemon unmaps the memory and an event
 * POOL_REMOVED follows, after which *pool no longer exists. */
STRAIT_API void strait_pool_remove(struct strait_pool *pool);

/* The pool's id: STRAIT_POOL_ID_BYTES bytes, borrowed. */
STRAIT_API const uint8_t *strait_pool_id(const struct strait_pool *pool);

/* Waits up to timeout_ms (-1: forever) until the daemon has taken the pool, without handing out events; the event POOL
 * comes as well. ERR_AGAIN: it has not answered yet, or is away. Otherwise what the event says: OK, or why the pool was
 * refused. *why (may be NULL) receives a text, "" if there is nothing to say, valid until the next call on the client.
 * Like strait_poll it invalidates the events that were handed out before. */
STRAIT_API enum strait_status strait_pool_wait(struct strait_pool *pool, int timeout_ms, const char **why);

/* Writes to dst what another worker needs to name this pool, and its length to *size (also with ERR_NO_SPACE; dst may
 * be NULL when dst_capacity is 0). Opaque bytes for the framework's own channel; they stay valid when daemons restart.
 * ERR_AGAIN until the daemon has answered once, as they contain its address. ERR_INVALID (NULL), ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_pool_export(const struct strait_pool *pool, void *dst, size_t dst_capacity,
                                                 size_t *size);

/* Reads what strait_pool_export wrote. On OK the client owns *peer. ERR_INVALID, ERR_TRUNCATED, ERR_CORRUPT,
 * ERR_UNSUPPORTED, ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_peer_import(struct strait_client *client, const void *src, size_t src_size,
                                                 struct strait_peer **peer);
STRAIT_API void strait_peer_remove(struct strait_peer *peer); /* running transfers go on; NULL is allowed */

/* Why two pools cannot exchange pages: bits of strait_peer_check. */
enum strait_mismatch {
    STRAIT_MISMATCH_PAGE_SIZE = 1,  /* bytes of a page differ */
    STRAIT_MISMATCH_DTYPE = 2,      /* element types differ */
    STRAIT_MISMATCH_LAYOUT = 4,     /* rows, heads, tokens, their order, roles or groups differ */
    STRAIT_MISMATCH_LAYERS = 8,     /* other layers */
    STRAIT_MISMATCH_CODEBOOK = 16,  /* another codebook set: works, without tables until the daemons have fetched it */
    STRAIT_MISMATCH_VERSION = 32,   /* protocol versions without overlap */
    STRAIT_MISMATCH_COMPAT = 64,    /* compatibility tokens differ */
    STRAIT_MISMATCH_RESHAPED = 128, /* other layouts, heads or layers: works, pages are rearranged on the way */
};
/* The bits that prevent a transfer. */
#define STRAIT_MISMATCH_FATAL                                                                              \
    (STRAIT_MISMATCH_PAGE_SIZE | STRAIT_MISMATCH_DTYPE | STRAIT_MISMATCH_LAYOUT | STRAIT_MISMATCH_LAYERS | \
     STRAIT_MISMATCH_VERSION | STRAIT_MISMATCH_COMPAT)

/* How the two pools differ: 0, or bits of enum strait_mismatch. */
STRAIT_API uint32_t strait_peer_check(const struct strait_pool *pool, const struct strait_peer *peer);

/* Writes a text for people: how the two pools differ, with the figures of both sides, each bit of strait_peer_check by
 * the first region that shows it ("group 0, layer 3, K: pages of 4096 bytes here, 8192 there"); "" without a
 * difference. Like snprintf it ends the text with NUL, cuts it to dst_capacity, and returns the length of all of it.
 * dst may be NULL when dst_capacity is 0. */
STRAIT_API size_t strait_peer_explain(const struct strait_pool *pool, const struct strait_peer *peer, char *dst,
                                      size_t dst_capacity);

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

/* About traces. `traceparent` is the header of that name as W3C Trace Context has it, such as
 * "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", borrowed for the call; one that is not is ERR_INVALID, and
 * strait_trace_check says why. If its flag "sampled" is set, the daemon of this client writes a line with msg=span to
 * its log when the request ends: a span of that trace, and child of the span that the text names. The peer is not told:
 * each side names the trace to its own daemon. A request that ends without a daemon has no span. */

/* What is wrong with a traceparent: static English text; NULL: nothing, or the text is NULL or "". Any thread. */
STRAIT_API const char *strait_trace_check(const char *traceparent);

/* Pages of one group: the page with logical index first + i is ids[i], or first_id + i when ids is NULL. Both sides
 * number a request's pages the same way; the pages that both of them list are moved. */
struct strait_page_list {
    uint32_t group;
    uint32_t first; /* logical index */
    uint32_t count;
    uint32_t first_id;
    const uint32_t *ids; /* borrowed for the call */
};

struct strait_expect_params {
    size_t size;     /* sizeof(struct strait_expect_params) */
    const void *key; /* the request's name at this pool, 1..STRAIT_KEY_BYTES_MAX bytes; one live expectation each */
    size_t key_size;
    const struct strait_page_list *lists; /* in any order, disjoint; none is legal: the transfer completes and releases
                                             the source */
    uint32_t list_count;
    uint32_t sources;        /* number of offers, each of which brings a disjoint part; 0 means 1 */
    uint32_t deadline_ms;    /* from now until the verdict; 1 .. 24 h */
    void *context;           /* comes back in events */
    const char *traceparent; /* the trace that the request belongs to, above; NULL or "": none */
    uint32_t tokens;         /* of the request, counted from logical index 0; 0: not said. Where pages are rearranged
                                and the last one is not full, its layer is then complete when these tokens have come,
                                and not only when the sources have said `last`; a source that brings further pages into
                                it fails the request */
    bool tell_pages;         /* events PAGES tell of each page that is in place */
    bool begins_within;      /* where pages are rearranged, the first page of each group may lack the tokens before the
                                sources' first page, as those of a sliding window: they are not missed when the sources
                                have said `last`, and what the page has in their place stays; 0 in the bytes behind it */
};

/* About keys. The key of a live expectation or a live offer is taken. The key of a request that was DONE may be reused
 * at once. The key of a request that failed is remembered for a minute, so that the other side, if it comes late, hears
 * of the failure instead of waiting: to try again, use a new key.
 *
 * Sink: these pages will receive this request. Until drained, they may be in no other live expectation and in no offer
 * (else FAILED, BUSY), and each is named once (else FAILED, GEOMETRY); the verdict's text names the page. On OK the
 * client owns *transfer. ERR_INVALID, ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_expect(struct strait_pool *pool, const struct strait_expect_params *params,
                                            struct strait_transfer **transfer);

struct strait_offer_params {
    size_t size; /* sizeof(struct strait_offer_params) */
    const void *key;
    size_t key_size;
    const struct strait_page_list *lists; /* the request's pages so far; none is legal when appends follow */
    uint32_t list_count;
    uint32_t consumers; /* number of expectations that will take it; 0 means 1. STRAIT_CONSUMERS_ASKED: the first of
                           them says it, in its strait_start; only sinks start such an offer */
    uint32_t lease_ms;  /* how long the pages stay offered while no consumer is alive, 1 .. 24 h; renewed by the
                           daemons */
    bool later;         /* the listed pages are not ready yet: strait_append marks them ready, layer by layer */
    bool last;          /* nothing will be appended: the lists are complete, and ready at once or after the event */
    void *ready;        /* GPU pools, not with later: the event after which the listed pages are ready, as for
                           strait_append; NULL: now */
    const void *aux;    /* with last: a small payload that arrives with DONE, borrowed for the call. Of several sources
                           only one should bring it: an expectation keeps the first that arrives and drops the others */
    size_t aux_size;
    void *context;
    const char *traceparent; /* the trace that the request belongs to, above; NULL or "": none */
};

/* Source: these pages hold this request. They may be in several offers, but in no live expectation. On OK the client
 * owns *transfer. ERR_INVALID, ERR_NO_MEMORY. ERR_UNSUPPORTED: `ready` is given, but all of the pool is in host memory.
 */
STRAIT_API enum strait_status strait_offer(struct strait_pool *pool, const struct strait_offer_params *params,
                                           struct strait_transfer **transfer);

struct strait_append_params {
    size_t size;                          /* sizeof(struct strait_append_params) */
    const struct strait_page_list *lists; /* these pages, which the offer has already or which are new; none: all pages
                                             that were listed as `later` and are not ready */
    uint32_t list_count;
    int32_t layer_first; /* their layers that are ready now; layer_count 0: all */
    uint32_t layer_count;
    void *ready; /* GPU pools: the event after which the pages are ready, below; NULL: now */
    bool last;
    const void *aux;
    size_t aux_size;
    bool later; /* the lists are new, and none of their pages is ready yet; not with layers, `ready` or `last` */
};

/* Source: more of the request is ready: pages, or layers of pages, in any order and any rectangles, such as layer by
 * layer of each chunk of a prefill. A page's layer is said to be ready once. A list is either of pages that the offer
 * has, with the same ids, or of new ones; new ones of which some layers are named are ready in these layers only.
 * Before or with `last` everything must have been said to be ready. What breaks these rules fails the offer with
 * GEOMETRY, and a text that names the page. After `last` nothing may be appended (ERR_INVALID).
 *
 * `ready` points to the cudaIpcEventHandle_t of an event made with cudaEventInterprocess; in embedded mode it is a
 * cudaEvent_t. The event must have been recorded before this call, and must be neither recorded again nor destroyed
 * before these pages have been announced: LAYER events of the sink, or the verdict, tell. A transfer that waits for a
 * slow event delays no other. An event that fails makes the offer fail, with LOCAL. ERR_UNSUPPORTED: `ready` is given,
 * but all of the pool is in host memory. ERR_NO_MEMORY: the offer is aborted. For an offer that has its verdict the
 * call returns OK and does nothing. */
STRAIT_API enum strait_status strait_append(struct strait_transfer *transfer,
                                            const struct strait_append_params *params);

enum strait_direction {
    STRAIT_AUTO = 0, /* whoever starts; the bytes flow from source to sink in any case */
    STRAIT_PUSH = 1, /* started by the source */
    STRAIT_PULL = 2, /* started by the sink */
};

struct strait_start_params {
    size_t size; /* sizeof(struct strait_start_params) */
    enum strait_direction direction;
    const void *peer_key; /* the request's name at the peer's pool; NULL: the same key */
    size_t peer_key_size;
    uint32_t consumers; /* sink: how many expectations, with this one, take the peer's offer, if that is one of
                           STRAIT_CONSUMERS_ASKED. What the first of them says counts; 0 means 1. If one gives up
                           before any has asked, the offer fails at once. 0 in the bytes behind it */
};

/* Pairs this transfer with one of the peer's pool; call it once per peer's part. The other side may come later: it is
 * awaited until the deadline (sink) or the lease (source) has passed. Both sides may start the same pair: it remains
 * one transfer. An offer that is started with more than STRAIT_PARTS_MAX fails. A transfer that has failed starts
 * nothing, but its daemon tells the other side not to wait; if an expectation ended while its own daemon was away, that
 * daemon's successor tells the source, if it is there within a minute. params NULL: all defaults. ERR_INVALID: the
 * pools do not match (strait_peer_check; strait_peer_explain says in what; strait_decline frees the source), the
 * direction is not this side's, or the offer is one of STRAIT_CONSUMERS_ASKED. ERR_AGAIN: it has failed, and too many
 * sources wait to be told. ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_start(struct strait_transfer *transfer, const struct strait_peer *peer,
                                           const struct strait_start_params *params);

/* Ends the transfer with FAILED, ABORTED, unless it already has its verdict. Idempotent. */
STRAIT_API void strait_abort(struct strait_transfer *transfer);

/* Sink: nothing of the request that is offered at the peer's pool as `peer_key` will be taken, so that its source need
 * not wait for the lease: its offer fails with PEER_ABORT as soon as its daemon can be told. There is no handle and no
 * event. The pools need not match. ERR_INVALID: arguments; ERR_AGAIN while the own daemon is away; ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_decline(struct strait_pool *pool, const struct strait_peer *peer,
                                             const void *peer_key, size_t peer_key_size);

/* Releases the handle: it gets no more events. A live transfer is aborted; the daemon keeps its pages in quarantine
 * until drained. NULL is allowed. */
STRAIT_API void strait_release(struct strait_transfer *transfer);

/* ---- Pages that peers read --------------------------------------------------------------------------------------- */

/* Instead of offering each request, the owner of a pool may serve pages of it: from then on whoever has imported the
 * pool (and is of the same tenant) may read them, without an action of the owner. Its daemon does all of it, also while
 * the owner's process is stopped. The contents of a served page must not change. Before its owner writes to it, a fence
 * takes it back:
 *
 *     owner                                               reader
 *     strait_pool_serve(pool, lists, n)
 *     strait_pool_export(pool, blob)   --- any channel --> strait_peer_import(client, blob, size, &peer)
 *                                                          strait_read(pool, peer, &read, &transfer)
 *     strait_pool_fence(pool, &fence)                      strait_poll(...): STATE, DONE
 *     strait_poll(...): FENCED
 *     the pages may be written, and served again */

/* Serves the listed pages, whose `first` means nothing; no lists: all pages of the pool. They stay served, on a daemon
 * that comes after this one too, until a fence takes them back or the pool is removed. Pages that are served already
 * remain so. ERR_INVALID (also when the lists name no page), ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_pool_serve(struct strait_pool *pool, const struct strait_page_list *lists,
                                                uint32_t list_count);

struct strait_fence_params {
    size_t size;                          /* sizeof(struct strait_fence_params) */
    const struct strait_page_list *lists; /* as for strait_pool_serve; none: all pages */
    uint32_t list_count;
    uint32_t grace_ms; /* how long reads of these pages that are under way may take until they fail; 0: they fail at
                          once; up to 24 h */
    void *context;     /* comes back in the event */
};

/* The listed pages are served no longer. An event FENCED follows when no read touches them any more: at once if none
 * does, else when those have ended, or shortly after grace_ms, when those that are left have failed with NOT_SERVED.
 * Offers of these pages are not concerned: their own verdicts tell when they are free. ERR_INVALID, ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_pool_fence(struct strait_pool *pool, const struct strait_fence_params *params);

struct strait_read_params {
    size_t size;                               /* sizeof(struct strait_read_params) */
    const struct strait_page_list *lists;      /* pages of the own pool that will receive the data, */
    uint32_t list_count;                       /* and */
    const struct strait_page_list *peer_lists; /* the peer's pages to be read: the same logical indexes */
    uint32_t peer_list_count;
    uint32_t deadline_ms;    /* from now until the verdict; 1 .. 24 h */
    void *context;           /* comes back in events */
    const char *traceparent; /* the trace that the request belongs to; NULL or "": none */
    bool tell_pages;         /* as for an expectation; 0 in the bytes behind it */
};

/* Reads pages that the peer serves into the own pool, as if they had been offered: the transfer is a sink's, with its
 * events, verdict and streams. It fails with NOT_SERVED when a page is not served, or no longer; with BUSY when one of
 * the peer's is just being written by a transfer; with PEER_DOWN when the peer's daemon or process is gone, the latter
 * after the daemon's option unreachable-timeout. On OK the client owns *transfer. ERR_INVALID: also when the pools do
 * not match, or the lists name different numbers of pages. ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_read(struct strait_pool *pool, const struct strait_peer *peer,
                                          const struct strait_read_params *params, struct strait_transfer **transfer);

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* The values are ordered, so that ranks can agree on a state by taking the minimum; a transfer's state only rises, or
 * becomes FAILED. */
enum strait_state {
    STRAIT_FAILED = 0,
    STRAIT_BOOTSTRAP = 1,    /* waiting for the peer */
    STRAIT_READY = 2,        /* both sides know each other */
    STRAIT_TRANSFERRING = 3, /* pages are moving */
    STRAIT_DONE = 4,
};

/* Why a transfer failed. name, pinned value, text */
#define STRAIT_REASON_MAP(X)                                       \
    X(NONE, 0, "none")                                             \
    X(TIMEOUT, 1, "deadline passed")                               \
    X(LEASE_EXPIRED, 2, "lease of the offer ran out")              \
    X(PEER_DOWN, 3, "peer died, hung or is unreachable")           \
    X(PEER_ABORT, 4, "peer gave up the request")                   \
    X(ABORTED, 5, "aborted here")                                  \
    X(GEOMETRY, 6, "pages of both sides do not fit together")      \
    X(CODEC, 7, "chunk could not be decoded")                      \
    X(INTEGRITY, 8, "checksum mismatch")                           \
    X(NO_MEMORY, 9, "no memory or quota exhausted")                \
    X(LOCAL, 10, "own daemon went away or refused the pool")       \
    X(BUSY, 11, "page or name is in use by another live transfer") \
    X(DENIED, 12, "the other side belongs to another tenant")      \
    X(NOT_SERVED, 13, "the peer does not serve these pages")
enum strait_reason {
#define X(name, value, text) STRAIT_REASON_##name = value,
    STRAIT_REASON_MAP(X)
#undef X
};

/* Short English text; never NULL, static. Any thread. */
STRAIT_API const char *strait_reason_string(int reason);
STRAIT_API const char *strait_state_string(int state);

enum strait_event_type {
    STRAIT_EVENT_STATE = 1,        /* transfer reached `state`; FAILED and DONE are verdicts, of which each transfer has
                                      one. READY and TRANSFERRING are left out where what follows has come as well */
    STRAIT_EVENT_DRAINED = 2,      /* the pages of a FAILED transfer are free now; those of a DONE one are at once */
    STRAIT_EVENT_LAYER = 3,        /* sink, TRANSFERRING: all expected pages of `layer` are in place */
    STRAIT_EVENT_POOL = 4,         /* the daemon has the pool, or refused it: `status`, `text` */
    STRAIT_EVENT_POOL_REMOVED = 5, /* `pool` no longer exists */
    STRAIT_EVENT_NOTE = 6,         /* a peer's strait_notify: `data` */
    STRAIT_EVENT_STATS = 7,        /* the answer to strait_stats: `data` is JSON */
    STRAIT_EVENT_CONNECTION = 8,   /* `connected` changed. With status ERR_AGAIN the daemon does not answer: it had 3 s
                                      for a sign of life while something was due from it. The connection is kept, and so
                                      are its transfers, until their deadlines. With ERR_NO_SPACE the daemon has no
                                      place for this client; `text` names the limit, and it is tried again */
    STRAIT_EVENT_NOTIFY_FAILED = 9, /* a strait_notify of this client is not known to have arrived: `key`, `text`;
                                       `data` is the id of the peer's pool */
    STRAIT_EVENT_FENCED = 10,       /* `pool`, `context`: no read touches the pages of that fence any more */
    STRAIT_EVENT_PAGES = 11,        /* sink, TRANSFERRING, with tell_pages: `landed` are in place, below */
};

/* About pages that are in place. An event PAGES names pages of which all regions (all layers, K and V) have been
 * received, checked and stored: they may be read from then on, and stay as they are, whatever becomes of the request.
 * Until it is drained they belong to it all the same. Each page is named once; with DONE all have been. Those that the
 * daemon's FAILED lists are exactly those that no event has named, but for a list that is incomplete. A verdict of the
 * library itself lists all pages, those in place too. A daemon of an earlier release sends no such events. */

/* A page that did not land. */
struct strait_failed_page {
    uint32_t group;
    uint32_t id; /* in the client's own pool */
};

struct strait_event {
    enum strait_event_type type;
    struct strait_transfer *transfer; /* STATE, DRAINED, LAYER, PAGES */
    struct strait_pool *pool;         /* POOL, POOL_REMOVED, NOTE, FENCED */
    void *context;                    /* the transfer's, or the fence's */
    enum strait_state state;
    enum strait_reason reason; /* with FAILED */
    bool drained;              /* STATE: the pages are free with this event */
    bool connected;
    int32_t layer;
    int32_t status;                          /* enum strait_status. POOL; CONNECTION: why there is none, OK: it ended */
    const char *text;                        /* POOL, STATE, CONNECTION, NOTIFY_FAILED: more about a failure, else "" */
    const struct strait_failed_page *failed; /* sink, FAILED: pages not in place, though some of their regions may be.
                                                With STRAIT_FAILED_PAGES_MAX entries or more the list may be incomplete:
                                                treat every page of the expectation as not in place. Empty when the
                                                request never came to life */
    uint32_t failed_count;
    const void *data; /* STATE DONE of a sink: the aux payload; NOTE, STATS, NOTIFY_FAILED */
    size_t data_size;
    const void *key; /* NOTE, NOTIFY_FAILED: what the notification is about */
    size_t key_size;
    /* STATE with a verdict: */
    uint64_t raw_bytes;  /* of pages that have moved; of an offer to all its consumers together, */
    uint64_t wire_bytes; /* as they travelled; 0 under one daemon, which copies them, */
    const char *peer; /* and the address of the other side's daemon, the first of several; "": the own one, or none */
    const struct strait_page_list *landed; /* PAGES: in the order of their groups and indexes */
    uint64_t landed_count;                 /* lists */
    uint64_t reserved[2];
};

/* Does what is due (reads, writes, reconnects) and returns up to `capacity` events, oldest first, and their number.
 * What an event points to is valid until the next call of strait_poll, strait_wait or strait_client_close. */
STRAIT_API uint32_t strait_poll(struct strait_client *client, struct strait_event *events, uint32_t capacity);

/* Like strait_poll, but waits up to timeout_ms (-1: forever) for the first event; returns 0 when none came in time. */
STRAIT_API uint32_t strait_wait(struct strait_client *client, struct strait_event *events, uint32_t capacity,
                                int timeout_ms);

/* State of a transfer as of the last poll. */
struct strait_progress {
    enum strait_state state;
    enum strait_reason reason;
    bool drained;
    uint32_t layers_landed; /* sink: layers completely in place */
    uint32_t pages_landed;  /* sink, with tell_pages: pages that events PAGES have named */
    uint32_t reserved[3];
};
STRAIT_API struct strait_progress strait_transfer_progress(const struct strait_transfer *transfer);

/* GPU pools, sink: makes a CUDA stream wait, without the host. Work queued on it after this call runs once all expected
 * pages of `layer` are in place; with layer -1, all pages of the expectation. It also runs when the transfer has
 * failed, was aborted or was released: no stream waits beyond the deadline. What the work then reads is undefined, so
 * before using its results, check that the transfer was DONE or that the layer's event came.
 *
 * `stream` is a CUstream or cudaStream_t, on any device; the numeric handles of the legacy default stream are allowed.
 * The stream waits (cuStreamWaitValue32) for a word in memory that library, daemon and GPUs share. The daemon raises
 * the word at the moment when it would send LAYER, DONE or FAILED, so the client need not be polled for that. When the
 * daemon has died or hangs, the library gives the verdict and raises the word, in strait_poll or strait_wait. So the
 * only thread that polls should not wait on the host for such a stream, not even inside a CUDA call that does so
 * implicitly (cudaDeviceSynchronize, cudaFree, the first launch of a kernel). CUDA may queue other streams of this
 * process behind one that waits (CUDA_DEVICE_MAX_CONNECTIONS): the transfer must not depend on them.
 *
 * ERR_INVALID: an offer, a layer that the pool lacks, a stream that is being captured. ERR_UNSUPPORTED: all of the pool
 * is in host memory; this process has no CUDA driver; embedded mode, where the daemon's own streams could be queued
 * behind the one that waits for them: queue the work after the event LAYER or STATE instead. ERR_DEVICE: CUDA refused.
 * ERR_NO_MEMORY: also when 16384 streams wait at once. With an error the stream does not wait. */
STRAIT_API enum strait_status strait_wait_stream(struct strait_transfer *transfer, int32_t layer, void *stream);

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

/* Sends a small message about `key` (1..STRAIT_KEY_BYTES_MAX bytes; data: up to STRAIT_NOTE_BYTES_MAX) to the client
 * that registered the peer's pool. Notifications of one client to one pool arrive in the order of these calls, each of
 * them at most once. Arrived means that that client's daemon has written it to that client's socket. Whatever is not
 * known to have arrived is reported by an event NOTIFY_FAILED: that client or its daemon went, could not be reached or
 * did not read for 9 s (three times the daemon's option peer-timeout), or the own daemon went. After a lost connection
 * it may have arrived all the same. What the other client has not read when it ends is lost with it.
 *
 * ERR_AGAIN: too many are under way to this peer (256, or 1 MiB of keys and data), or to all peers together (1024, or
 * 4 MiB). They are acknowledged inside strait_poll and strait_wait: call one of them, and try again. While the daemon
 * is away they wait for it. ERR_INVALID, ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_notify(struct strait_peer *peer, const void *key, size_t key_size,
                                            const void *data, size_t data_size);

/* Asks the daemon for its statistics; an event STATS follows. ERR_INVALID (NULL), ERR_AGAIN while the daemon is away,
 * ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_stats(struct strait_client *client);

/* How a pool's pages are coded when this side is the source; AUTO until strait_set_policy chooses another. Types of
 * values have it in the nearest form: TIERED and SPLIT are one and the same, and stand for TOP16 where values are FP16
 * or FP32; where the other daemon does not know the codebook set of this one, BASE, which needs none, takes the place
 * of the three, and that of PARTS where values are BF16, in GPU memory, or for a daemon of an earlier release. What is
 * not BF16, FP16 or FP32 is RAW whatever is chosen. */
enum strait_coding {
    STRAIT_CODING_AUTO = 0, /* whatever is fastest over the link */
    STRAIT_CODING_RAW = 1,
    STRAIT_CODING_TOP16 = 2,
    STRAIT_CODING_TIERED = 3,
    STRAIT_CODING_BASE = 4,
    STRAIT_CODING_SPLIT = 5,
    STRAIT_CODING_PARTS = 6,
};
/* Applies from the next chunk on, also to live transfers, and takes precedence over the daemon's option `coding`. Pages
 * are copied when both pools are of one daemon. ERR_INVALID: no such coding, or the pool is being removed.
 * ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_set_policy(struct strait_pool *pool, enum strait_coding coding);

#ifdef __cplusplus
}
#endif
#endif
