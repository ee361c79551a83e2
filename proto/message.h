/* The control messages as plain structs: between a client and its daemon (unix socket) and between daemons (TCP).
 *
 * On the wire a message is a frame: a 4-byte little-endian length of the body, then the body, a protobuf Envelope
 * (proto/strait.proto) of at most MESSAGE_BYTES_MAX bytes. Lists that would not fit are split by the sender into
 * several messages. Unknown fields are kept with the unpacked message and written again when it is packed; an unknown
 * message type or enum value is ERR_UNSUPPORTED.
 *
 * Everything is checked on unpacking, so the reader can rely on the counts, lengths and ranges below. In addition to
 * what the fields say: groups are below STRAIT_GROUPS_MAX and layers at least -1; lists have at most MESSAGE_LIST_MAX
 * entries and name at most STRAIT_TRANSFER_PAGES_MAX pages; first + count fits 32 bits; spans, segments and grants are
 * not empty; a leg's units fit 32 bits; aux comes only with last; names and texts have no NUL. Texts are cut to
 * MESSAGE_TEXT_MAX on both sides, except for STATS_TEXT. Sizes and strides of regions are left to the daemon to check.
 *
 * Ids. Between a client and its daemon, `transfer` is a number that the client chooses, unique on its connection.
 * Between daemons, `leg` is chosen by the sink's daemon and unique in its incarnation; it stands for one pair of offer
 * and expectation. */
#ifndef STRAIT_PROTO_MESSAGE_H
#define STRAIT_PROTO_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <strait/strait.h>

#include "proto/trace.h"

#define MESSAGE_BYTES_MAX        (8u * 1024 * 1024) /* of a frame's body */
#define MESSAGE_LIST_MAX         4096u              /* page lists, segments, spans in one message */
#define MESSAGE_IDS_MAX          (1024u * 1024)     /* page ids in one message */
#define MESSAGE_OPEN_MAX         8u                 /* open grants of a REQUEST */
#define MESSAGE_TEXT_MAX         1024u              /* of a text for people */
#define MESSAGE_SOFTWARE_MAX     32u                /* of PEER_HELLO */
#define MESSAGE_ADDRESS_MAX      256u               /* "host:port", and the host and shm_path of PEER_LINKS */
#define MESSAGE_LINK_ADDRESS_MAX (64u * 1024)       /* address of PEER_LINKS */
#define PROTOCOL_VERSION         3u
#define PROTOCOL_VERSION_MIN     3u /* oldest version still spoken */
#define NONCE_BYTES              32u
#define MESSAGE_PAGES_MAX        2u
#define CODEBOOK_ID_BYTES        16u            /* of a set, as codec.h names it */
#define MESSAGE_SET_PART_MAX     (256u * 1024)  /* bytes of a set in one CODEBOOK_PART: the last one has fewer */
#define MESSAGE_SET_BYTES_MAX    (1280u * 1024) /* of a set that a peer fetches: 4096 tables and more */
#define MESSAGE_DEVICES_MAX      64u            /* GPUs of a node */
#define MESSAGE_GPU_ID           16u            /* bytes of a cudaUUID_t */
#define MESSAGE_MEMORY_IPC       64u            /* bytes of a cudaIpcMemHandle_t */
#define MESSAGE_EVENT_IPC        64u            /* bytes of a cudaIpcEventHandle_t */
#define MESSAGE_EVENT_POINTER    8u             /* bytes of a cudaEvent_t, in host byte order */
#define MESSAGE_WORDS_MAX        16384u
#define MESSAGE_TENANT_MAX       32u                 /* bytes of a tenant's name */
#define MESSAGE_BLOB_MAX         (1024u * 1024 + 24) /* bytes of an exported pool */
#define MESSAGE_SAMPLE_BYTES_MAX (64ull * 1024 * 1024 * 1024)
#define MESSAGE_SAMPLE_MS_MAX    600000u
#define MESSAGE_NOTES_MAX        1024u              /* notes of a client that are not answered, */
#define MESSAGE_NOTES_BYTES_MAX  (4u * 1024 * 1024) /* and their keys and data */

enum message_type {
    MESSAGE_NONE = 0,
    /* Client to daemon. */
    MESSAGE_HELLO = 1,
    MESSAGE_POOL_REGISTER = 2, /* its memfds travel with the frame, in the order of wire_region.fd */
    MESSAGE_POOL_REMOVE = 3,
    MESSAGE_EXPECT = 4,
    MESSAGE_OFFER = 5,
    MESSAGE_APPEND = 6,
    MESSAGE_START = 7,
    MESSAGE_ABORT = 8,
    MESSAGE_RELEASE = 9,
    MESSAGE_NOTIFY = 10,
    MESSAGE_STATS = 11,
    MESSAGE_POLICY = 12,
    MESSAGE_WORDS = 13, /* their memfd travels with the frame */
    MESSAGE_WAIT = 14,
    MESSAGE_PING = 15,   /* answered by PONG */
    MESSAGE_READ = 16,   /* in place of START */
    MESSAGE_SERVE = 17,  /* with a fence, answered by FENCED */
    MESSAGE_SAMPLE = 18, /* to a daemon whose WELCOME has `samples`; answered by SAMPLED */
    MESSAGE_RINGS = 19,  /* to one whose WELCOME has `rings`: their memfd travels with the frame, and the sender's next
                            message comes by its ring; answered by RING */
    /* Daemon to client. */
    MESSAGE_WELCOME = 20,
    MESSAGE_POOL_STATUS = 21,
    MESSAGE_STATE = 22,
    MESSAGE_DRAINED = 23,
    MESSAGE_LAYERS = 24,
    MESSAGE_NOTE = 25,
    MESSAGE_STATS_TEXT = 26,
    MESSAGE_PONG = 27,
    MESSAGE_REFUSED = 28, /* in place of WELCOME */
    MESSAGE_NOTED = 29,   /* answers NOTIFY */
    MESSAGE_FENCED = 30,
    MESSAGE_SAMPLED = 31,
    MESSAGE_PAGES = 32, /* of an EXPECT with `pages` */
    /* Daemon to daemon. */
    MESSAGE_PEER_HELLO = 40,
    MESSAGE_PEER_LINKS = 42,
    MESSAGE_HEARTBEAT = 43,
    MESSAGE_ANNOUNCE = 44,
    MESSAGE_REQUEST = 45,
    MESSAGE_SEGMENTS = 46,
    MESSAGE_GRANT = 47,
    MESSAGE_REVOKE = 48,
    MESSAGE_RELEASED = 49,
    MESSAGE_END = 50,
    MESSAGE_PEER_NOTE = 51,
    MESSAGE_ARENA = 52,
    MESSAGE_REACH = 53,
    MESSAGE_GPU_LINK = 54,
    MESSAGE_WITHDRAW = 55,
    MESSAGE_PEER_NOTED = 56, /* answers PEER_NOTE */
    /* On the unix socket between two daemons of one host. */
    MESSAGE_SHM_HELLO = 60, /* the only message; after it the socket belongs to the shm transport */
    /* On the unix socket between a daemon and the one that takes its place. */
    MESSAGE_HANDOVER = 62,
    /* Daemon to client, and daemon to daemon. */
    MESSAGE_CODEBOOK = 70,
    MESSAGE_GOAWAY =
        71, /* another daemon listens now: new requests go by a new connection, this one ends with its last */
    /* Daemon to daemon, to those whose PEER_LINKS have `codebooks`. */
    MESSAGE_CODEBOOK_ASK = 72,  /* answered by CODEBOOK_PART */
    MESSAGE_CODEBOOK_PART = 73, /* one for each CODEBOOK_ASK */
    MESSAGE_CODEBOOK_KNOWN = 74,
    /* Daemon to daemon, to those whose PEER_LINKS have `reshapes`. */
    MESSAGE_POOL_ASK = 75, /* answered by POOL_DESCRIPTION, if there is such a pool */
    MESSAGE_POOL_DESCRIPTION = 76,
    /* The sender's next message comes by the ring that both ends have: daemon to daemon, and to clients as the answer
     * to RINGS. */
    MESSAGE_RING = 77,
};

/* Names and ids. */
struct pool_id {
    uint8_t bytes[STRAIT_POOL_ID_BYTES];
};
struct epoch {
    uint64_t incarnation; /* of the sink's daemon: random, never 0 */
    uint64_t counter;
};
/* Bytes owned by the message that contains the view. */
struct view {
    const uint8_t *data;
    size_t size;
};

/* ---- Client and daemon ------------------------------------------------------------------------------------------- */

struct message_hello {
    uint32_t version, version_min; /* newest and oldest protocol version spoken */
    uint32_t pid;
    struct view library; /* version of the library, text */
};

struct message_welcome {
    uint32_t version; /* the version to speak */
    uint64_t incarnation;
    struct view address;     /* "host:port" where other daemons reach this one; host may be a name */
    struct view codebook_id; /* CODEBOOK_ID_BYTES, or empty */
    struct view daemon;      /* its version, text */
    uint64_t node;           /* random id of the daemon's start, for logs */
    bool samples;            /* it answers SAMPLE; earlier releases do not say so */
    bool rings;              /* it takes RINGS; earlier releases do not say so */
};

#define MESSAGE_RING_BYTES_MIN 4096u
#define MESSAGE_RING_BYTES_MAX (1024u * 1024)

struct message_rings {
    uint32_t bytes; /* of the ring each way (internal/ring.h), a power of two; the sender has made their file */
};

struct wire_region {
    uint32_t handle; /* enum strait_handle */
    int32_t device;
    uint32_t fd;      /* index among the message's descriptors */
    uint64_t pointer; /* handle POINTER only */
    struct view ipc;  /* empty or 64 bytes */
    uint64_t offset, page_stride, row_stride;
    uint32_t page_count, rows, row_bytes;
    uint32_t element, role;
    int32_t layer;
    uint32_t heads, group;
    uint32_t layout, tokens;
    uint32_t head_first, heads_total;
};

/* Whether heads [first, first + heads) are some of a model's `total`; a total of 0 is not declared. */
static inline bool heads_are_valid(uint32_t first, uint32_t heads, uint32_t total)
{
    return total == 0 ? first == 0 : heads > 0 && heads <= total && first <= total - heads;
}

struct message_pool_register {
    struct pool_id pool;
    uint32_t fd_count;
    uint32_t coding;       /* enum strait_coding */
    uint32_t region_count; /* 1..STRAIT_REGIONS_MAX */
    const struct wire_region *regions;
    struct view compat;
};

struct message_pool_remove {
    struct pool_id pool;
};

struct message_pool_status {
    struct pool_id pool;
    int32_t status; /* enum strait_status; OK: mapped */
    bool removed;   /* the answer to POOL_REMOVE */
    struct view text;
};

struct wire_page_list {
    uint32_t group, first, count;
    uint32_t first_id;   /* page ids are consecutive from here, when ids is NULL */
    const uint32_t *ids; /* count of them, or NULL */
};

struct message_expect {
    uint64_t transfer;
    struct pool_id pool;
    struct view key; /* 1..STRAIT_KEY_BYTES_MAX bytes */
    uint32_t sources;
    uint32_t deadline_ms; /* time left */
    bool more;            /* another EXPECT of the same transfer continues the lists */
    uint32_t list_count;
    const struct wire_page_list *lists;
    struct view trace; /* a valid context of TRACE_BYTES, or none; that of a READ which follows is here, too */
    uint32_t tokens;   /* of the request, from logical index 0 on; 0: not said */
    bool within;       /* the first page of each group may lack tokens at its beginning */
    bool pages;        /* the client is told of each page that has landed */
};

struct message_offer {
    uint64_t transfer;
    struct pool_id pool;
    struct view key;
    uint32_t consumers;
    uint32_t lease_ms;
    bool later, last, more;
    uint32_t list_count;
    const struct wire_page_list *lists;
    struct view aux;   /* with last */
    struct view ready; /* the event after which the pages are ready, as in APPEND; not with later */
    struct view trace; /* as in EXPECT */
    bool asked;        /* the first REQUEST says how many consumers there are; `consumers` is 1, for earlier releases */
};

struct message_append {
    uint64_t transfer;
    int32_t layer_first;
    uint32_t layer_count; /* 0: all */
    bool last, more;
    bool later;          /* the listed pages are not ready yet; not with last or ready */
    uint32_t list_count; /* 0: the pages that were listed as `later` */
    const struct wire_page_list *lists;
    struct view aux;
    struct view ready; /* ready after this event: MESSAGE_EVENT_IPC or (embedded) MESSAGE_EVENT_POINTER bytes */
};

struct message_start {
    uint64_t transfer;
    struct pool_id peer_pool;
    struct view peer_address;
    struct view peer_key; /* empty: the same key */
    uint32_t direction;   /* enum strait_direction */
    uint32_t mismatch;    /* bits of strait_peer_check: a codebook mismatch means that raw is wanted */
    uint32_t consumers;   /* of a sink: how many expectations take the peer's offer; 0: not said */
};

/* Starts an expectation that no offer answers: its pages are read from these of the peer's pool, which has to serve
 * them. Both sides list the same logical indexes. */
struct message_read {
    uint64_t transfer;
    struct pool_id peer_pool;
    struct view peer_address;
    bool more; /* another READ of the same transfer continues the lists */
    uint32_t list_count;
    const struct wire_page_list *lists; /* of the peer's pool */
};

/* Pages that peers may read from now on, or (with a fence) no longer. */
struct message_serve {
    struct pool_id pool;
    uint64_t fence;    /* a number that the client chooses, unique among its fences; 0: none */
    uint32_t grace_ms; /* of a fence: how long reads that are under way may take until they are ended */
    bool more;         /* another SERVE of the same fence continues the lists */
    uint32_t list_count;
    const struct wire_page_list *lists; /* `first` means nothing */
};

struct message_fenced { /* no read touches the pages of the fence any more */
    uint64_t fence;
};

/* Asks for the exponents of values in pages that are ready to be sent or read, counted by class. Pages of all pools are
 * looked at for root and the daemon's own user, and those of its own pools for anybody else. */
struct message_sample {
    uint64_t bytes;        /* to look at, at most: 1..MESSAGE_SAMPLE_BYTES_MAX */
    uint32_t milliseconds; /* until the answer, at most: 1..MESSAGE_SAMPLE_MS_MAX */
    uint32_t elements;     /* types of values to count: bit e for enum strait_element e; others are passed over */
};

struct message_sampled {
    int32_t status;        /* enum strait_status. ERR_AGAIN: there may be a sample later */
    struct view text;      /* why there is none */
    struct view counts;    /* a partial file (codebook.proto); empty: nothing was ready */
    uint64_t bytes;        /* looked at */
    uint64_t ready_bytes;  /* that could be looked at: what was offered and served while the sample was taken */
    uint32_t pools;        /* with such pages */
    uint64_t device_bytes; /* ready, but passed over: in memory of GPUs, */
    uint64_t other_bytes;  /* or of other types */
    uint32_t milliseconds; /* that it took */
};

struct message_transfer { /* ABORT, RELEASE, DRAINED */
    uint64_t transfer;
};

struct message_notify {
    uint32_t note; /* below MESSAGE_NOTES_MAX; chosen by the client, unique among its notes that are not answered */
    struct pool_id peer_pool;
    struct view peer_address;
    struct view key, data;
};

struct message_note {   /* NOTE, PEER_NOTE */
    struct view tenant; /* PEER_NOTE: the sender's tenant; empty: "default" */
    uint32_t note;      /* PEER_NOTE: chosen by its sender, unique among its notes that are not answered */
    struct pool_id pool;
    struct view key, data;
};

/* NOTED, PEER_NOTED: what has become of some notes. Without `failed` they were written to their receiver's socket. */
struct message_noted {
    uint32_t note_count;
    const uint32_t *notes;
    bool failed;
    struct view text; /* with failed: why */
};

struct message_policy {
    struct pool_id pool;
    uint32_t coding;
};

/* Memory that the daemon shares with its client and with the client's GPUs: once per connection, before the first WAIT.
 * It holds 32-bit words. A word is only ever raised, by whichever side comes first: (int32_t)(new - old) > 0. */
struct message_words {
    uint32_t count; /* 1..MESSAGE_WORDS_MAX */
};

/* Raise word `word` to `value` when all expected pages of a layer are in place or the transfer has its verdict. */
struct message_wait {
    uint64_t transfer;
    int32_t layer; /* -1: all layers */
    uint32_t word;
    uint32_t value;
};

struct message_state {
    uint64_t transfer;
    uint32_t state;  /* enum strait_state */
    uint32_t reason; /* enum strait_reason */
    bool drained;
    bool more;        /* another STATE follows with more of the failed pages */
    struct view text; /* describes a failure */
    struct view aux;  /* with DONE at a sink */
    uint32_t failed_count;
    const struct wire_page_list *failed; /* by page id: first_id or ids; `first` is the logical index */
    uint64_t raw_bytes, wire_bytes;      /* of pages that have moved, before coding, and as they travelled */
    struct view peer; /* address of the other side's daemon, the first of several; empty: unknown, or this one */
};

struct message_layers {
    uint64_t transfer;
    uint32_t layer_count;
    const int32_t *layers; /* newly complete */
};

struct message_pages {
    uint64_t transfer;
    uint32_t list_count;
    const struct wire_page_list *lists; /* in place, each page once; as the failed ones of STATE */
};

/* The daemon serves this connection no further, and closes it. */
struct message_refused {
    int32_t status; /* enum strait_status, not OK. ERR_NO_SPACE: there may be a place later */
    struct view text;
};

struct message_text { /* STATS_TEXT */
    struct view text;
};

/* ---- Daemon and daemon ------------------------------------------------------------------------------------------- */

/* The first message of either side, and the only one that is parsed before the other has said who it is. */
struct message_peer_hello {
    uint32_t version, version_min;
    uint64_t node; /* random id of this daemon's start */
    uint64_t incarnation;
    struct view nonce;   /* NONCE_BYTES */
    struct view address; /* "host:port" where the sender listens */
    struct view dialled; /* the dialling side: the address it dialled; else empty */
    uint32_t pages;      /* how the sender encrypts page data: 0 not at all, 1 ChaCha20-Poly1305, 2 AES-256-GCM */
    /* For people: nothing is decided by these, and earlier releases do not send them. */
    struct view software; /* version of the sender's software; "": not told */
    uint64_t clock_ns;    /* the sender's clock when it sent this, since 1970; 0: not told */
};

/* Bits of block_modes: which modes GPUs are told of apart, and how far above the bits of host memory. */
#define BLOCKS_TOLD_BY_GPUS 0xf800u
#define BLOCKS_BY_GPUS      16

/* How the other side can reach this one's receive arena. Both sides send it once after the hellos, without an address,
 * with `transport` naming all kinds that the sender offers ("shm,tcp"). Then, unless it uses shm, the dialling side
 * names one kind and gives the address of its link; the answer names the same kind with the address of the other link,
 * or without one if it refuses. */
struct message_peer_links {
    uint64_t token;        /* random; part of every data header and SHM_HELLO to this side */
    struct view host;      /* equal on one host: boot id and namespace */
    struct view shm_path;  /* unix socket for SHM_HELLO; empty: no shm */
    struct view transport; /* a kind, or a list of them, separated by commas */
    struct view address;   /* of the sender's link, of any transport except shm; or empty */
    struct view codebook_id;
    uint32_t slot_bytes; /* of the receive arena */
    uint32_t slot_count;
    bool codebooks;       /* the sender takes CODEBOOK_ASK, CODEBOOK_PART and CODEBOOK_KNOWN; earlier releases do not */
    uint32_t block_modes; /* of chunks that the sender decodes: bit m is mode m of FORMAT.md, section 3; of mode 11 and
                           * later ones in host memory, and in GPU memory if bit m + 16 is set too;
                             0: an earlier release, which decodes modes 0 to 4 */
    bool reshapes; /* the sender takes POOL_ASK and POOL_DESCRIPTION, and SEGMENTS of tiles; earlier releases do not */
};

/* The sender has reloaded its codebook set. It goes on decoding what was encoded by the two sets before. */
struct message_codebook {
    struct view id; /* CODEBOOK_ID_BYTES, or empty: there is none now */
};

/* The part of the receiver's set in force that begins at `offset` is asked for. A daemon asks for the next part when it
 * has the one before. */
struct message_codebook_ask {
    struct view id; /* CODEBOOK_ID_BYTES */
    uint32_t offset;
};

/* A part of a set as strait_codebook_serialize writes it: MESSAGE_SET_PART_MAX bytes, or all that are left. No
 * bytes: `size` is above MESSAGE_SET_BYTES_MAX, or 0, and then the sender has no such set in force any more, or
 * has sent it too often. */
struct message_codebook_part {
    struct view id;  /* CODEBOOK_ID_BYTES */
    uint32_t size;   /* of the set */
    uint32_t offset; /* offset + bytes.size <= size */
    struct view bytes;
};

/* The sender decodes chunks in host memory by the receiver's set of this id, and will as long as the set is among the
 * three latest that the receiver has announced on this connection. */
/* The receiver is asked how one of its pools is laid out. */
struct message_pool_ask {
    struct pool_id pool;
    struct view tenant; /* whose pool it is; empty: "default" */
};

/* How a pool of the sender is laid out: when it is asked, and before SEGMENTS of tiles of it. It replaces what was told
 * of the pool before. */
struct message_pool_description {
    struct view tenant;
    struct view blob; /* blob_pack */
};

struct message_codebook_known {
    struct view id; /* CODEBOOK_ID_BYTES */
};

/* The new daemon asks for the listening sockets, gets an answer with them and with the lock, and says `ready` when it
 * accepts. The other one says `draining` when it accepts nothing any more, and keeps the connection until it ends.
 * Descriptors travel with the frame. */
struct message_handover {
    bool ready;        /* of the second message of the new daemon */
    uint32_t fd_count; /* of the answer: the lock first */
    bool draining;     /* of the second message of the other one */
};

struct message_heartbeat {
    uint64_t sequence;
    uint64_t echo; /* the latest sequence seen from the other side */
};

/* Sink to source: slots in the memory of one of the sender's GPUs, for chunks that GPUs encode. Slot numbers continue
 * from those in host memory, and no two arenas share a number. The same arena may be announced again with more ways to
 * reach it. */
struct message_arena {
    uint32_t device;                             /* the sender's number of the GPU, below MESSAGE_DEVICES_MAX */
    uint32_t first_slot, slot_bytes, slot_count; /* the last slot's number fits 32 bits */
    struct view ipc; /* MESSAGE_MEMORY_IPC bytes: the arena's start, over a link whose end either side sees
                        (link_sees_end); or none: peers must not store to it */
    bool nccl, ucx;  /* whether GPU_LINKs of these kinds can be made to it */
    /* With ipc: bytes from the arena's start to its flags, behind all slots, a multiple of 8; 0: it has none. A flag is
     * the 8 bytes of a slot that say which chunk is whole there (chunk_flag). */
    uint64_t flags_at;
    struct view gpu; /* MESSAGE_GPU_ID bytes that name the GPU, the same in every process; or none */
};

/* The transports that can make a link between two GPUs. */
enum message_link_by {
    LINK_BY_NCCL,
    LINK_BY_UCX, /* with CUDA's memory */
    LINK_BY_COUNT,
};

/* A link between one GPU of each side, in addition to the connection's own link, for chunks into either GPU's arena.
 * The dialling side begins with the address of its end; the answer has the other end's address, or says why not. The
 * accepting side asks for a link with neither, and is told why if there will be none. For the same two GPUs this is
 * repeated whenever the link ends. */
struct message_gpu_link {
    uint32_t device, peer_device; /* the sender's and the receiver's */
    struct view address;          /* link_address, or none */
    struct view why;              /* why there will be no link now, for people */
    uint32_t by;                  /* enum message_link_by; unknown values are refused */
};

/* Source to sink: GPUs that hold the pool can send chunks into the arenas of these devices. Replaces what was said of
 * the pool before; no devices: the pool is gone, or they cannot any more. */
struct message_reach {
    struct pool_id pool;
    uint64_t devices;   /* bit n: of device n */
    struct view tenant; /* whose pool it is; empty: "default" */
    uint64_t flagged;   /* of these devices, those whose flags are set by whatever stores the pool's chunks there */
};

/* Source to sink: an offer is looking for its expectation. */
struct message_announce {
    struct pool_id source_pool, sink_pool;
    struct view source_key, sink_key;
    struct view tenant; /* to which both must belong; empty: "default" */
    uint32_t lease_ms;
};

/* One side of a pair has ended before the two met: the other need not wait for it. */
struct message_withdraw {
    struct pool_id source_pool, sink_pool;
    struct view source_key, sink_key;
    struct view tenant; /* empty: "default" */
    bool from_sink;     /* the expectation has ended; otherwise the offer */
    uint32_t reason;    /* enum strait_reason, as seen by the sender; NONE: the two have met by another connection */
};

/* Pages that the sink wants, by logical index. */
struct wire_span {
    uint32_t group, first, count;
};

/* Sink to source: an expectation wants an offer. */
struct message_request {
    uint64_t leg;
    struct epoch epoch;
    struct pool_id source_pool, sink_pool;
    struct view source_key, sink_key;
    struct view tenant;   /* to which both must belong; empty: "default" */
    uint64_t geometry;    /* hash of the sink pool's page sizes, layers and layout: blob_geometry */
    uint32_t deadline_ms; /* time left */
    bool more;            /* another REQUEST of this leg follows with more spans */
    bool rest;            /* this REQUEST continues the spans of the one before */
    uint32_t span_count;
    const struct wire_span *spans;
    bool read; /* it wants no offer, but pages that the pool serves: `lists` of its page ids, in place of spans.
                  source_key is then the sink's */
    uint32_t list_count;
    const struct wire_page_list *lists;
    /* Open grants, for whatever is ready at once: SEGMENTS, or RELEASED, answer each of them. */
    uint64_t grant;      /* the first; the others follow without gaps. 0: none; with more */
    uint32_t slot_count; /* of the grants, one each; 0 only without a grant */
    const uint32_t *slots;
    bool
        on_gpu; /* pages of the sink's pool are in a GPU's memory: chunks are decoded by the sink's set in force only */
    uint32_t consumers; /* of the offer, if that is one which does not know them; 0: not said */
};

/* Pages that are ready at the source and wanted by the sink: regions x pages. A unit is one page of one region. Units
 * are numbered row by row, and continue across the segments of a leg. */
struct segment {
    uint32_t group;
    uint32_t region_first, region_count; /* in the group's order */
    uint32_t first, count;               /* logical indexes */
};

/* Whether these bytes may be a compatibility token: printable ASCII, at most STRAIT_COMPAT_BYTES_MAX. */
bool compat_is_valid(const char *text, size_t size);

/* Source to sink: more units are ready. The first SEGMENTS of a leg binds the leg. */
struct message_segments {
    uint64_t leg;
    struct epoch epoch;
    uint32_t before; /* units announced before these */
    bool last;       /* no more SEGMENTS will follow */
    uint32_t segment_count;
    const struct segment *segments;
    struct view aux;  /* with last */
    uint64_t aux_sum; /* XXH3-64 of aux */
    uint64_t grant; /* the first of the REQUEST's open grants if any are used, for the leg's first units; otherwise 0 */
    uint32_t granted_count;  /* so many of them are used, in order; 0 only without a grant */
    const uint32_t *granted; /* the units of each, one after another */
    uint64_t reshaped; /* units are tiles (proto/reshape.h): the geometry of the source's pool, which a POOL_DESCRIPTION
                          has told before; 0: they are pages. The same in all SEGMENTS of a leg */
};

/* Sink to source: permits writing units [first, first + count), in order, to a slot as one chunk. */
struct message_grant {
    uint64_t leg;
    struct epoch epoch;
    uint64_t grant; /* increasing in a leg */
    uint32_t first, count;
    uint32_t slot;
};

struct message_grant_id { /* REVOKE: sink to source. RELEASED: returned, nothing more will be written to its slot */
    uint64_t leg;
    struct epoch epoch;
    uint64_t grant;
};

/* The verdict. The sink decides; the source can only report FAILED. */
struct message_end {
    uint64_t leg;
    struct epoch epoch;
    bool from_sink;
    uint32_t state;  /* STRAIT_DONE or STRAIT_FAILED */
    uint32_t reason; /* enum strait_reason, as seen by the sender */
};

struct message_shm_hello {
    uint64_t token; /* that of the receiver's PEER_LINKS */
    uint64_t node;  /* the sender's */
    uint32_t slot_bytes, slot_count;
    bool rings; /* the sender takes rings of the link, and RING; earlier releases do not */
};

/* ---- All of them ------------------------------------------------------------------------------------------------- */

struct message {
    enum message_type type;
    union {
        struct message_hello hello;
        struct message_welcome welcome;
        struct message_refused refused;
        struct message_rings rings;
        struct message_pool_register pool_register;
        struct message_pool_remove pool_remove;
        struct message_pool_status pool_status;
        struct message_expect expect;
        struct message_offer offer;
        struct message_append append;
        struct message_start start;
        struct message_read read;
        struct message_serve serve;
        struct message_fenced fenced;
        struct message_sample sample;
        struct message_sampled sampled;
        struct message_transfer transfer; /* ABORT, RELEASE, DRAINED */
        struct message_notify notify;
        struct message_note note;   /* NOTE, PEER_NOTE */
        struct message_noted noted; /* NOTED, PEER_NOTED */
        struct message_policy policy;
        struct message_words words;
        struct message_wait wait;
        struct message_state state;
        struct message_layers layers;
        struct message_pages pages;
        struct message_text text; /* STATS_TEXT; STATS, PING and PONG have no fields */
        struct message_peer_hello peer_hello;
        struct message_peer_links peer_links;
        struct message_heartbeat heartbeat;
        struct message_codebook codebook; /* GOAWAY and RING have no fields */
        struct message_codebook_ask codebook_ask;
        struct message_codebook_part codebook_part;
        struct message_codebook_known codebook_known;
        struct message_pool_ask pool_ask;
        struct message_pool_description pool_description;
        struct message_handover handover;
        struct message_arena arena;
        struct message_reach reach;
        struct message_gpu_link gpu_link;
        struct message_announce announce;
        struct message_withdraw withdraw;
        struct message_request request;
        struct message_segments segments;
        struct message_grant grant;
        struct message_grant_id grant_id; /* REVOKE, RELEASED */
        struct message_end end;
        struct message_shm_hello shm_hello;
    };
    void *owner; /* what views and lists of an unpacked message point into; NULL if the caller filled it */
};

/* Unpacks one frame body. On OK *message owns its memory until message_fini. ERR_CORRUPT (no Envelope, or values
 * outside the ranges above), ERR_UNSUPPORTED (unknown type or enum value), ERR_NO_SPACE (size > MESSAGE_BYTES_MAX),
 * ERR_NO_MEMORY. */
enum strait_status message_unpack(const void *body, size_t size, struct message *message);

/* Releases what message_unpack allocated; safe on a zeroed message or a failed one. */
void message_fini(struct message *message);

/* Packs a whole frame, length first, into malloc'ed memory that the caller frees. ERR_INVALID (outside the limits),
 * ERR_NO_SPACE (body > MESSAGE_BYTES_MAX), ERR_NO_MEMORY. */
enum strait_status message_pack(const struct message *message, uint8_t **frame, size_t *size);

/* For logs: "grant", "peer-hello". Never NULL. */
const char *message_name(enum message_type type);

static inline struct view view_of(const void *data, size_t size)
{
    return (struct view){.data = (const uint8_t *)data, .size = size};
}

#endif
