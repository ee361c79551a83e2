/*
 * strait/strait.h - move KV-cache pages between the workers of disaggregated LLM serving
 *
 * A serving framework registers its paged KV pool with the daemon of its node (straitd) and then names requests: the
 * sink (decode side) says which pages will receive a request, the source (prefill side) which pages hold it, and either
 * of them starts the transfer. The daemons gather the pages, compress them losslessly when the link makes that pay,
 * move them, check them and put them in place.
 *
 *     source                                              sink
 *     strait_pool_register(...)                           strait_pool_register(...)
 *     strait_pool_export(pool, blob)  --- any channel --> strait_peer_import(client, blob, size, &peer)
 *     strait_offer(pool, ...)                             strait_expect(pool, ...)
 *                                                         strait_start(transfer, peer, &start)
 *     strait_poll(...): STATE, DONE                       strait_poll(...): STATE, DONE
 *
 * What is promised. Bytes land only in pages of a live expectation. DONE means: checked, decoded, in the final pages.
 * Every transfer gets its verdict, DONE or FAILED with a reason, within its deadline, whatever dies meanwhile. After
 * `drained` nothing touches the pages any more; until then they must not be reused. It comes with DONE, and with FAILED
 * at once or in a later event.
 *
 * Calls never block, except strait_wait, and strait_client_open in embedded mode. What a call asks for travels to the
 * daemon and its outcome comes back as an event. While the daemon is away, calls are accepted and everything that was
 * in flight fails with LOCAL; the library reconnects from strait_poll and registers its pools again.
 *
 * Threads: none are started, no signal handler is installed. Calls on one client, and on what was made from it, must
 * not overlap; different clients are independent. Only strait_client_fd's descriptor may be polled elsewhere meanwhile.
 * After fork the child must not use the client.
 *
 * Errors: the return value tells bad arguments, and ERR_NO_MEMORY; outputs are set on OK only.
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

#define STRAIT_KEY_BYTES_MAX      128u /* of the name of a request */
#define STRAIT_POOL_ID_BYTES      16u
#define STRAIT_AUX_BYTES_MAX      (1024u * 1024)     /* of the small payload that `last` may bring */
#define STRAIT_NOTE_BYTES_MAX     (64u * 1024)       /* of a notification */
#define STRAIT_REGIONS_MAX        4096u              /* of a pool */
#define STRAIT_DESCRIPTORS_MAX    64u                /* different memories that a pool names by descriptors */
#define STRAIT_GROUPS_MAX         64u                /* of a pool */
#define STRAIT_TRANSFER_PAGES_MAX (4u * 1024 * 1024) /* page ids of one expectation or offer */
#define STRAIT_FAILED_PAGES_MAX   (64u * 1024)       /* pages that a daemon names as failed */
#define STRAIT_PARTS_MAX          64u                /* consumers of an offer, sources of an expectation */

struct strait_client;   /* a connection to the daemon */
struct strait_pool;     /* a registered KV pool */
struct strait_peer;     /* a pool of another worker, imported */
struct strait_transfer; /* one offer or one expectation */

/* ---- Connection -------------------------------------------------------------------------------------------------- */

struct strait_client_config {
    size_t size;        /* sizeof(struct strait_client_config) */
    const char *socket; /* path of the daemon's socket; NULL: $STRAIT_SOCKET, else that of a daemon of this user's own,
                           $XDG_RUNTIME_DIR/strait/straitd.sock (not for root; a socket of this user or root), if
                           it is there, else /run/strait/straitd.sock */
    const char *embedded; /* not NULL: no socket; the daemon runs in a thread of this process, with these options, one
                             "name = value" per line ("" for none: straitd's defaults, with socket, listen and metrics
                             empty). Needs libstrait-node. Only here may regions be plain pointers. The option workers
                             does nothing here: jobs run in libuv's pool, whose size is UV_THREADPOOL_SIZE in the
                             environment, 4 without it. */
};

/* Makes a client and begins to connect; it succeeds also while the daemon is away. config NULL: all defaults. On OK the
 * caller owns *client. ERR_INVALID (also a path that no socket can have), ERR_NO_MEMORY, ERR_IO (no descriptors left).
 * Embedded, it returns when the daemon runs, and its arenas are there, or did not start: ERR_INVALID (an option is
 * wrong), ERR_UNSUPPORTED (libstrait-node cannot be loaded), ERR_NO_MEMORY, ERR_IO (also none of the transports that
 * the options name can be used); a line on stderr says more. */
STRAIT_API enum strait_status strait_client_open(const struct strait_client_config *config,
                                                 struct strait_client **client);

/* Closes the client and releases everything made from it; transfers in flight fail at their peers. The pages may still
 * be written until the daemon has seen the end of the connection: call strait_poll until all transfers are drained
 * first. NULL is allowed. */
STRAIT_API void strait_client_close(struct strait_client *client);

/* A descriptor that polls readable when strait_poll has something to do. Owned by the client, valid until closed; it
 * stays the same across reconnects. Any thread may poll it, none may read it. */
STRAIT_API int strait_client_fd(const struct strait_client *client);

/* True while the daemon has answered and is connected. */
STRAIT_API bool strait_client_connected(const struct strait_client *client);

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

/* Unmaps and closes; pools registered on it keep their own mapping until they are removed. NULL is allowed. */
STRAIT_API void strait_free(struct strait_memory *memory);

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

/* How a region's memory is named to the daemon. Memory of GPUs needs a daemon with the plugin for them; in embedded
 * mode it is named by its pointer. */
enum strait_handle {
    STRAIT_HANDLE_MEMFD = 1,    /* fd: a memfd sealed with at least F_SEAL_SHRINK */
    STRAIT_HANDLE_POINTER = 2,  /* pointer: embedded mode only; of the host, or of `device` */
    STRAIT_HANDLE_CUDA_IPC = 3, /* ipc: a cudaIpcMemHandle_t. It stands for the whole allocation, whatever address in it
                                   it was made of: cuMemGetAddressRange tells where that begins */
    STRAIT_HANDLE_CUDA_VMM = 4, /* fd: an allocation that cuMemExportToShareableHandle exported as a descriptor */
};

/* One layer's K or V (or another tensor) of a paged pool. Bytes of a page = rows * row_bytes, at most 16 MiB; page i
 * begins at offset + i * page_stride. offset, strides, row_bytes and pointer are multiples of the element's size; pages
 * do not overlap, nor do regions. */
struct strait_pool_region {
    enum strait_handle handle;
    int32_t device;       /* GPU of the memory, the same in a group; -1: host. See below */
    int fd;               /* MEMFD, VMM: borrowed for the call, may be shared by regions: no more than
                             STRAIT_DESCRIPTORS_MAX different ones in a pool */
    void *pointer;        /* POINTER */
    uint8_t ipc[64];      /* CUDA_IPC */
    uint64_t offset;      /* bytes from the beginning of the memory to page 0 */
    uint64_t page_stride; /* bytes from one page to the next */
    uint64_t row_stride;  /* bytes from one row to the next; unused when rows is 1 */
    uint32_t page_count;  /* ids are below this, and below that of every region of the group */
    uint32_t rows;        /* 1 when pages are contiguous */
    uint32_t row_bytes;
    uint32_t element; /* enum strait_element of codec.h; one per group */
    uint32_t role;    /* enum strait_role of codec.h */
    int32_t layer;    /* -1: of no layer */
    uint32_t heads;   /* KV heads in a page, 0 when that means nothing */
    uint32_t group;   /* 0, 1, ... without gaps, below STRAIT_GROUPS_MAX; regions of a group share page ids */
};

/* About devices. A GPU is named by its ordinal in the daemon's process, which is the client's own when both see the
 * same GPUs in the same order (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER). Groups of a pool may be on different devices,
 * and some of them on the host. A pointer or an exported allocation on another device than the region says is refused.
 * Of an IPC handle the driver does not tell: it is opened on the GPU that is named, and where it lies on another one,
 * all its bytes cross the link between the two. */

struct strait_pool_params {
    size_t size;                              /* sizeof(struct strait_pool_params) */
    const struct strait_pool_region *regions; /* borrowed for the call */
    uint32_t region_count;                    /* 1..STRAIT_REGIONS_MAX */
};

/* Registers a pool. Its id is drawn here and kept over reconnects. It may be used at once; whether the daemon could map
 * it comes as an event POOL, with a text when it could not: ERR_INVALID (memory that is too small, on another device,
 * or of two regions), ERR_UNSUPPORTED (no GPU, or no plugin), ERR_DEVICE (the GPU has failed), ERR_NO_MEMORY, ERR_IO. A
 * pool that the daemon refused fails what uses it with LOCAL. The regions' descriptors are duplicated. Within a group,
 * regions are known in the order of layer, then role, then position here. On OK the client owns *pool. ERR_INVALID
 * (also a memfd that is not sealed, or smaller than its regions say), ERR_NO_MEMORY, ERR_IO (no descriptors left). */
STRAIT_API enum strait_status strait_pool_register(struct strait_client *client,
                                                   const struct strait_pool_params *params, struct strait_pool **pool);

/* Removes a pool: its live transfers are aborted, and when they have drained the daemon lets go of the memory and an
 * event POOL_REMOVED follows, after which *pool no longer exists. */
STRAIT_API void strait_pool_remove(struct strait_pool *pool);

/* 16 bytes, borrowed. */
STRAIT_API const uint8_t *strait_pool_id(const struct strait_pool *pool);

/* Writes what another worker needs to name this pool to dst, and its length to *size (also with ERR_NO_SPACE; dst may
 * be NULL when dst_capacity is 0). Opaque bytes for the framework's own channel; they stay valid when daemons restart.
 * ERR_AGAIN until the daemon has answered once: its address is part of it. ERR_INVALID (NULL), ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_pool_export(const struct strait_pool *pool, void *dst, size_t dst_capacity,
                                                 size_t *size);

/* Reads such bytes. On OK the client owns *peer. ERR_INVALID, ERR_TRUNCATED, ERR_CORRUPT, ERR_UNSUPPORTED,
 * ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_peer_import(struct strait_client *client, const void *src, size_t src_size,
                                                 struct strait_peer **peer);
STRAIT_API void strait_peer_remove(struct strait_peer *peer); /* running transfers go on; NULL is allowed */

/* Why two pools cannot exchange pages: bits of strait_peer_check. */
enum strait_mismatch {
    STRAIT_MISMATCH_PAGE_SIZE = 1, /* bytes of a page differ */
    STRAIT_MISMATCH_DTYPE = 2,     /* element types differ */
    STRAIT_MISMATCH_LAYOUT = 4,    /* rows, heads, roles or groups differ */
    STRAIT_MISMATCH_LAYERS = 8,    /* other layers */
    STRAIT_MISMATCH_CODEBOOK = 16, /* another codebook set: works, uncompressed */
    STRAIT_MISMATCH_VERSION = 32,  /* protocol versions without overlap */
};
/* The bits that prevent a transfer. */
#define STRAIT_MISMATCH_FATAL                                                                              \
    (STRAIT_MISMATCH_PAGE_SIZE | STRAIT_MISMATCH_DTYPE | STRAIT_MISMATCH_LAYOUT | STRAIT_MISMATCH_LAYERS | \
     STRAIT_MISMATCH_VERSION)

/* Which differences there are: 0, or bits of enum strait_mismatch. */
STRAIT_API uint32_t strait_peer_check(const struct strait_pool *pool, const struct strait_peer *peer);

/* ---- Transfers --------------------------------------------------------------------------------------------------- */

/* Pages of one group: the page with logical index first + i is ids[i], or first_id + i when ids is NULL. Both sides
 * number a request's pages alike; what both of them name is moved. */
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
    const struct strait_page_list *lists; /* in any order, disjoint; none is legal: it completes, and so releases the
                                             source */
    uint32_t list_count;
    uint32_t sources;     /* offers that bring disjoint parts; 0 means 1 */
    uint32_t deadline_ms; /* from now until the verdict; 1 .. 24 h */
    void *context;        /* comes back in events */
};

/* About keys. A live expectation and a live offer have their names for themselves. The name of a request that was DONE
 * may be used again at once. That of one that failed is remembered for a minute, so that a late other side hears of the
 * failure instead of waiting: to try again, use a new key.
 *
 * Sink: these pages will receive this request. They may be in no other live expectation and in no offer until drained
 * (else FAILED, BUSY). On OK the client owns *transfer. ERR_INVALID, ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_expect(struct strait_pool *pool, const struct strait_expect_params *params,
                                            struct strait_transfer **transfer);

struct strait_offer_params {
    size_t size; /* sizeof(struct strait_offer_params) */
    const void *key;
    size_t key_size;
    const struct strait_page_list *lists; /* the request's pages so far; none is legal when appends follow */
    uint32_t list_count;
    uint32_t consumers; /* expectations that will take it; 0 means 1 */
    uint32_t lease_ms;  /* how long the pages stay offered while no consumer is alive, 1 .. 24 h; renewed by the
                           daemons */
    bool later;         /* the listed pages are not ready yet: strait_append makes them so, layer by layer */
    bool last;          /* nothing will be appended: the lists are complete, and ready at once or after the event */
    void *ready;        /* GPU pools, not with later: the event after which the listed pages are ready, as for
                           strait_append; NULL: now */
    const void *aux;    /* with last: a small payload that arrives with DONE, borrowed for the call. Of several sources
                           one should bring it: an expectation keeps the first that comes, and drops the others' */
    size_t aux_size;
    void *context;
};

/* Source: these pages hold this request. They may be in several offers, in no live expectation. On OK the client owns
 * *transfer. ERR_INVALID, ERR_NO_MEMORY. ERR_UNSUPPORTED: an event, and all of the pool is in host memory. */
STRAIT_API enum strait_status strait_offer(struct strait_pool *pool, const struct strait_offer_params *params,
                                           struct strait_transfer **transfer);

struct strait_append_params {
    size_t size; /* sizeof(struct strait_append_params) */
    const struct strait_page_list
        *lists; /* more pages, ready now; none: the pages that the offer announced as `later` */
    uint32_t list_count;
    int32_t layer_first; /* the layers that are ready; layer_count 0: all */
    uint32_t layer_count;
    void *ready; /* GPU pools: the event after which the pages are ready, below; NULL: now */
    bool last;
    const void *aux;
    size_t aux_size;
};

/* Source: more of the request is ready. After `last` nothing may be appended (ERR_INVALID).
 *
 * `ready` points to a cudaIpcEventHandle_t, of an event made with cudaEventInterprocess; in embedded mode it is a
 * cudaEvent_t. The event has been recorded before this call, and is neither recorded again nor destroyed before these
 * pages have been announced: LAYER events of the sink, or the verdict, tell. Whoever waits for a slow event holds up
 * nobody else. One that fails fails the offer, LOCAL. ERR_UNSUPPORTED: all of the pool is in host memory.
 * ERR_NO_MEMORY: the offer is aborted. Of an offer that has its verdict: OK, and nothing happens. */
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
};

/* Pairs this transfer with one of the peer's pool; once per peer part. The other side may come later: it is waited for
 * until the deadline (sink) or the lease (source) has passed. Both sides may start one pair: it is one transfer. params
 * NULL: all defaults. ERR_INVALID: the pools do not match (strait_peer_check), or the direction is not this side's.
 * ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_start(struct strait_transfer *transfer, const struct strait_peer *peer,
                                           const struct strait_start_params *params);

/* Ends the transfer with FAILED, ABORTED unless it has its verdict. Idempotent. */
STRAIT_API void strait_abort(struct strait_transfer *transfer);

/* Lets go of the handle: no more events for it. A live transfer is aborted; its pages stay in quarantine in the daemon
 * until drained. NULL is allowed. */
STRAIT_API void strait_release(struct strait_transfer *transfer);

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* Ordered, so that ranks can agree by the minimum; a transfer only moves up, or to FAILED. */
enum strait_state {
    STRAIT_FAILED = 0,
    STRAIT_BOOTSTRAP = 1,    /* waiting for the peer */
    STRAIT_READY = 2,        /* both sides know each other */
    STRAIT_TRANSFERRING = 3, /* pages are moving */
    STRAIT_DONE = 4,
};

/* Why a transfer failed. name, pinned value, text */
#define STRAIT_REASON_MAP(X)                                  \
    X(NONE, 0, "none")                                        \
    X(TIMEOUT, 1, "deadline passed")                          \
    X(LEASE_EXPIRED, 2, "lease of the offer ran out")         \
    X(PEER_DOWN, 3, "peer died, hung or is unreachable")      \
    X(PEER_ABORT, 4, "peer gave up the request")              \
    X(ABORTED, 5, "aborted here")                             \
    X(GEOMETRY, 6, "pages of both sides do not fit together") \
    X(CODEC, 7, "chunk could not be decoded")                 \
    X(INTEGRITY, 8, "checksum mismatch")                      \
    X(NO_MEMORY, 9, "no memory or quota exhausted")           \
    X(LOCAL, 10, "own daemon went away or refused the pool")  \
    X(BUSY, 11, "page or name is in use by another live transfer")
enum strait_reason {
#define X(name, value, text) STRAIT_REASON_##name = value,
    STRAIT_REASON_MAP(X)
#undef X
};

/* Short English text; never NULL, static. Any thread. */
STRAIT_API const char *strait_reason_string(int reason);
STRAIT_API const char *strait_state_string(int state);

enum strait_event_type {
    STRAIT_EVENT_STATE = 1,        /* transfer reached `state`; with FAILED or DONE the verdict */
    STRAIT_EVENT_DRAINED = 2,      /* the pages of a FAILED transfer are free now; with DONE they are at once */
    STRAIT_EVENT_LAYER = 3,        /* sink: all expected pages of `layer` are in place */
    STRAIT_EVENT_POOL = 4,         /* the daemon has the pool, or refused it: `status`, `text` */
    STRAIT_EVENT_POOL_REMOVED = 5, /* `pool` no longer exists */
    STRAIT_EVENT_NOTE = 6,         /* a peer's strait_notify: `data` */
    STRAIT_EVENT_STATS = 7,        /* the answer to strait_stats: `data` is JSON */
    STRAIT_EVENT_CONNECTION = 8,   /* `connected` changed */
};

/* A page that did not land. */
struct strait_failed_page {
    uint32_t group;
    uint32_t id; /* of the own pool */
};

struct strait_event {
    enum strait_event_type type;
    struct strait_transfer *transfer; /* STATE, DRAINED, LAYER */
    struct strait_pool *pool;         /* POOL, POOL_REMOVED, NOTE */
    void *context;                    /* the transfer's */
    enum strait_state state;
    enum strait_reason reason; /* with FAILED */
    bool drained;              /* STATE: the pages are free with this event */
    bool connected;
    int32_t layer;
    int32_t status;                          /* enum strait_status. POOL; CONNECTION: why there is none, OK: it ended */
    const char *text;                        /* POOL, STATE, CONNECTION: more about a failure, else "" */
    const struct strait_failed_page *failed; /* sink, FAILED: pages not in place; any region of them may be. With
                                                STRAIT_FAILED_PAGES_MAX of them or more there may be others: take every
                                                page of the expectation as not in place. None when the request never
                                                came to life */
    uint32_t failed_count;
    const void *data; /* STATE DONE of a sink: the aux payload; NOTE, STATS */
    size_t data_size;
    const void *key; /* NOTE: what the notification is about */
    size_t key_size;
};

/* Does what is due (reads, writes, reconnects) and hands out up to `capacity` events, oldest first; returns how many.
 * What an event points to is valid until the next call of strait_poll, strait_wait or strait_client_close. */
STRAIT_API uint32_t strait_poll(struct strait_client *client, struct strait_event *events, uint32_t capacity);

/* Like strait_poll, but waits up to timeout_ms (-1: for ever) for the first event; 0: none came in that time. */
STRAIT_API uint32_t strait_wait(struct strait_client *client, struct strait_event *events, uint32_t capacity,
                                int timeout_ms);

/* What is known of a transfer as of the last poll. */
struct strait_progress {
    enum strait_state state;
    enum strait_reason reason;
    bool drained;
    uint32_t layers_landed; /* sink: layers completely in place */
};
STRAIT_API struct strait_progress strait_transfer_progress(const struct strait_transfer *transfer);

/* GPU pools, sink: makes a CUDA stream wait, without the host. Work that is queued on it after this call runs when all
 * expected pages of `layer` are in place, those of the whole expectation with layer -1. It runs as well when the
 * transfer has failed, is aborted or released: no stream waits beyond the deadline. What it then reads is undefined, so
 * whoever uses what it computed looks first whether the transfer was DONE, or the layer's event came.
 *
 * `stream` is a CUstream or cudaStream_t, with the legacy default stream by its numbers too; its device may be any. The
 * stream waits (cuStreamWaitValue32) for a word in memory that library, daemon and GPUs share. The daemon raises it the
 * moment it would tell LAYER, DONE or FAILED, so the client need not be polled for that. When the daemon has died or
 * hangs, it is the library that gives the verdict, and that raises the word, in strait_poll or strait_wait: a thread
 * that waits on the host for such a stream, be it in a call of CUDA's that does so unasked (cudaDeviceSynchronize,
 * cudaFree, the first launch of a kernel), should not be the only one that polls. CUDA may put other streams of this
 * process behind one that waits (CUDA_DEVICE_MAX_CONNECTIONS): do not let the transfer depend on them.
 *
 * ERR_INVALID: an offer, a layer that the pool lacks, a stream that is being captured. ERR_UNSUPPORTED: all of the pool
 * is in host memory; this process has no CUDA driver; embedded mode, where the daemon's own streams could come to stand
 * behind the one that waits for them: there, queue the work when the event LAYER or STATE has come. ERR_DEVICE: CUDA
 * refused. ERR_NO_MEMORY: also 16384 streams that wait at once. With an error the stream does not wait. */
STRAIT_API enum strait_status strait_wait_stream(struct strait_transfer *transfer, int32_t layer, void *stream);

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

/* Sends a small message about `key` (1..STRAIT_KEY_BYTES_MAX bytes; data: up to STRAIT_NOTE_BYTES_MAX) to whoever
 * registered the peer's pool; it may be lost with a connection. ERR_INVALID, ERR_NO_MEMORY; ERR_AGAIN: many wait for a
 * daemon that is away. */
STRAIT_API enum strait_status strait_notify(const struct strait_peer *peer, const void *key, size_t key_size,
                                            const void *data, size_t data_size);

/* Asks the daemon for its statistics: an event STATS follows. ERR_INVALID (NULL), ERR_AGAIN while it is away,
 * ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_stats(struct strait_client *client);

/* How a pool's pages are coded on the way, from this side as the source; AUTO until strait_set_policy has said another
 * one. */
enum strait_coding {
    STRAIT_CODING_AUTO = 0, /* what the link makes worth while */
    STRAIT_CODING_RAW = 1,
    STRAIT_CODING_TOP16 = 2,
    STRAIT_CODING_TIERED = 3,
};
/* From the next chunk on, also of live transfers, and before the daemon's option `coding`. Without a codebook set that
 * both daemons have pages travel raw all the same, and under one daemon they are copied. ERR_INVALID: no such coding,
 * or the pool is being removed. ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_set_policy(struct strait_pool *pool, enum strait_coding coding);

#ifdef __cplusplus
}
#endif
#endif
