/* make_corpus FOLDER: writes the seeds that follow the protocols to FOLDER/TARGET/: the same bytes on every machine.
 * Seeds of the other targets are files as they are: their formats do not change. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "collective/engine/proxy.h"
#include "collective/rendezvous.h"
#include "internal/bytes.h"
#include "proto/blob.h"
#include "proto/channel.h"
#include "tests/checkpoint/builder.h"
#include "tests/fragment.h"
#include "tests/proto/frames.h"
#include "tests/support.h"
#include "transport/nccl_wire.h"
#include "transport/tcp.h"

static const char *folder;

static void write_seed(const char *target, const char *name, const void *bytes, size_t size)
{
    char path[4096];
    require(snprintf(path, sizeof(path), "%s/%s", folder, target) < (int)sizeof(path));
    require(mkdir(path, 0777) == 0 || errno == EEXIST);
    require(snprintf(path, sizeof(path), "%s/%s/%s", folder, target, name) < (int)sizeof(path));
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* ---- Rendezvous ------------------------------------------------------------------------------------------------ */

enum { HANG_UP = 4, SECRET = 8, HALF = 16, RECORDS_MAX = 32 }; /* as in fuzz_collective.c */

static uint8_t script[RECORDS_MAX * (1 + RDV_FRAME_BYTES)];
static size_t script_size;

static uint8_t *add(unsigned how)
{
    script[script_size] = (uint8_t)how;
    uint8_t *frame = script + script_size + 1;
    script_size += 1 + RDV_FRAME_BYTES;
    require(script_size <= sizeof(script));
    return frame;
}

static void come(unsigned how, uint32_t rank, uint32_t ranks)
{
    const struct rdv_hello hello = {.words = {1, 2}, .rank = rank, .ranks = ranks};
    rdv_hello_write(add(how | SECRET), &hello);
}

static void ask(unsigned how, enum rdv_action action, enum coll_vote_phase round, uint32_t able)
{
    const struct rdv_request request = {action, round, {.able = able, .blocks = 1, .index = action == RDV_NOTE_RAW}};
    rdv_request_write(add(how), &request);
}

static void write_script(const char *name)
{
    write_seed("rendezvous", name, script, script_size);
    script_size = 0;
}

static void both_come(void)
{
    come(0, 0, 2);
    come(1, 1, 2);
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(1, RDV_VOTE, COLL_PHASE_PRESENT, 1);
}

static void make_rendezvous(void)
{
    both_come();
    for (unsigned round = COLL_PHASE_REACHED; round < COLL_VOTE_PHASES; round++)
        for (unsigned who = 0; who < 2; who++)
            ask(who, RDV_VOTE, (enum coll_vote_phase)round, 1);
    ask(0, RDV_POLL, COLL_PHASE_ABLE, 0);
    ask(0, RDV_LEAVE, COLL_PHASE_PRESENT, 0);
    write_script("two-go");
    both_come();
    ask(1, RDV_VOTE, COLL_PHASE_ABLE, 0);
    ask(0, RDV_VOTE, COLL_PHASE_ABLE, 1);
    write_script("one-is-not-able");
    come(0, 0, 3);
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(0 | HANG_UP, RDV_ABORT, COLL_PHASE_PRESENT, 0);
    come(1, 1, 3);
    ask(1, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    write_script("one-comes-late");
    both_come();
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    write_script("a-second-word");
    come(0, 0, 2);
    come(1, 0, 2);
    come(2, 1, 3);
    come(3, 64, 64);
    write_script("seats-that-are-taken");
    come(0 | HALF, 0, 2);
    come(1, 1, 2);
    ask(1 | HALF, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(1 | HANG_UP, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    write_script("halves");
    both_come();
    ask(0, (enum rdv_action)7, COLL_PHASE_PRESENT, 1);
    ask(1, RDV_POLL, (enum coll_vote_phase)3, 1);
    write_script("requests-unknown");
    both_come();
    ask(1, RDV_NOTE_RAW, COLL_PHASE_REACHED, 1);
    ask(0, RDV_VOTE, COLL_PHASE_REACHED, 1);
    write_script("one-passes");
}

/* ---- Overflows by TCP ------------------------------------------------------------------------------------------ */

enum { STRANGER, PROVED, DIALLED, ADDRESS }; /* the first byte of an input */

static void write_tcp(const char *name, uint8_t stage, const void *bytes, size_t size)
{
    static uint8_t input[4096];
    input[0] = stage;
    memcpy(input + 1, bytes, size);
    write_seed("tcp", name, input, size + 1);
}

/* Frames, each with the values of its slot behind it, of which the last `missing` bytes are cut off. */
static void write_frames(const char *name, const struct frame *frames, unsigned count, size_t missing)
{
    static uint8_t bytes[4000];
    size_t size = 0;
    for (unsigned i = 0; i < count; i++) {
        uint8_t header[FRAME_BYTES];
        const size_t values = frames[i].type == FRAME_SLOT && frames[i].small <= 64 ? frames[i].small : 0;
        frame_put(header, &frames[i]);
        size += chunk_write(bytes + size, i, header, FRAME_BYTES, values);
        memset(bytes + size, 'v', values);
        size += values;
    }
    write_tcp(name, PROVED, bytes, size - missing);
}

/* A slot in two fragments, the second one first; and then two that its chunk has no room for. */
static void write_fragments(void)
{
    static const struct frame slot = {FRAME_SLOT, 64, 0, 0, 0};
    struct fragment fragments[] = {{.chunk_size = 64, .offset = 24, .size = 40},
                                   {.chunk_size = 64, .offset = 0, .size = 24},
                                   {.number = 1, .chunk_size = 64, .offset = 1, .size = 40},
                                   {.number = 1, .chunk_size = 64, .offset = 0, .size = 25}};
    uint8_t bytes[1024] = {0}, header[FRAME_BYTES];
    size_t size = 0;
    frame_put(header, &slot);
    for (unsigned i = 0; i < sizeof(fragments) / sizeof(fragments[0]); i++) {
        fragments[i].header_size = FRAME_BYTES;
        size += fragment_write(bytes + size, &fragments[i], header) + fragments[i].size;
        if (i == 1)
            write_tcp("fragments", PROVED, bytes, size);
    }
    write_tcp("fragments-too-much", PROVED, bytes, size);
}

static void make_tcp(void)
{
    const struct frame slots[] = {{FRAME_SLOT, 64, 0, 0, 0}, {FRAME_SLOT, 16, 1, 0, 0}, {FRAME_SLOT, 64, 64, 0, 0}};
    const struct frame again[] = {{FRAME_SLOT, 64, 1, 0, 0}, {FRAME_SLOT, 64, 65, 0, 0}}; /* 1 has not been taken */
    const struct frame records[] = {{FRAME_RECORD, 0, 0, 7, 0}, {FRAME_RECORD, 1, 3, UINT64_MAX, 0}};
    const struct frame steps[] = {{FRAME_ASK, 0, 0, 0, 0}, {FRAME_PROMISE, 1, 16, 0, 0}, {FRAME_STEP, 2, 16, 90, 3}};
    const struct frame leaves[] = {{FRAME_LEAVE, 0, 0, 0, 0}, {FRAME_TAKEN, 0, 1, 0, 0}};
    const struct frame flushes[] = {{FRAME_FLUSH, 0, 0, 0, 0}, {FRAME_FLUSHED, 0, 0, 0, 0}};
    const struct frame large[] = {{FRAME_SLOT, 65, 0, 0, 0}}, unknown[] = {{FRAME_TYPES, 0, 0, 0, 0}};
    uint8_t head[FRAGMENT_MAX] = {0}, preamble[32] = "STRDATA1", address[TCP_ADDRESS_BYTES(1)] = "TCP2\4";
    write_frames("slots", slots, 3, 0);
    write_frames("slot-cut", slots, 3, 40);
    write_frames("head-cut", slots, 1, 64 + 8);
    write_frames("slot-twice", again, 2, 0);
    write_frames("slot-too-large", large, 1, 0);
    write_frames("records", records, 2, 0);
    write_frames("steps", steps, 3, 0);
    write_frames("leaves-then-nonsense", leaves, 2, 0);
    write_frames("flushes", flushes, 2, 0);
    write_frames("type-unknown", unknown, 1, 0);
    write_tcp("bytes-refused", PROVED, head, chunk_write(head, 0, "", 0, UINT32_MAX));
    write_tcp("header-longest", PROVED, head, chunk_write(head, 0, address, sizeof(address), 0));
    head[4] = TRANSPORT_HEADER_MAX + 1;
    write_tcp("header-too-long", PROVED, head, sizeof(head));
    write_fragments();
    write_tcp("call", STRANGER, preamble, sizeof(preamble));
    write_tcp("call-cut", STRANGER, preamble, 10);
    memcpy(preamble, "STRANSW3", 8);
    write_tcp("answer", DIALLED, preamble, sizeof(preamble));
    write_tcp("answer-cut", DIALLED, preamble, 10);
    write_tcp("address", ADDRESS, address, sizeof(address));
    write_tcp("address-cut", ADDRESS, address, sizeof(address) - 1);
    address[4] = 5;
    write_tcp("address-version", ADDRESS, address, sizeof(address));
}

/* ---- Ends of NCCL links ---------------------------------------------------------------------------------------- */

static void write_address(const char *name, size_t carrier_size)
{
    uint8_t carrier[64] = "where the carrier listens", bytes[LINK_ADDRESS_MAX];
    struct nccl_address address = {.library = 22809,
                                   .process = {1, 2, 3},
                                   .identity = {4, 5, 6},
                                   .carrier = carrier,
                                   .carrier_size = carrier_size};
    nccl_address_write(bytes, &address);
    write_seed("nccl", name, bytes, NCCL_ADDRESS_FIXED + carrier_size);
}

static void write_message(const char *name, uint32_t type, uint64_t id, uint64_t value, uint8_t payload)
{
    uint8_t bytes[1 + NCCL_MESSAGE_BYTES] = {payload};
    struct nccl_message message = {.type = type, .id = id, .value = value};
    nccl_message_write(bytes + 1, &message);
    write_seed("nccl", name, bytes, sizeof(bytes));
}

static void make_addresses(void)
{
    write_address("address", 48);
    write_address("address-empty", 0);
    write_message("hello", NCCL_HELLO, 0, NCCL_VERSION, NCCL_ID_BYTES);
    write_message("ready", NCCL_READY, 0, 0, 0);
    write_message("chunk", NCCL_CHUNK, 7, 4 << 20, 48);
    write_message("chunk-header-too-long", NCCL_CHUNK, 7, 4 << 20, TRANSPORT_HEADER_MAX + 1);
    write_message("go", NCCL_GO, 7, 3, 0);
    write_message("refused", NCCL_REFUSED, 7, 0, 0);
    write_message("type-unknown", NCCL_REFUSED + 1, 7, 0, 0);
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

static size_t frame_of(const struct message *message, uint8_t *bytes, size_t capacity)
{
    uint8_t *frame;
    size_t size;
    require(message_pack(message, &frame, &size) == STRAIT_OK && size <= capacity);
    memcpy(bytes, frame, size);
    free(frame);
    return size;
}

static void write_messages(void)
{
    int count;
    const struct golden *frames = golden_frames(&count);
    for (int i = 0; i < count; i++)
        write_seed("message", frames[i].name, frames[i].frame + 4, frames[i].size - 4);
    write_seed("message", "later-type", "\x9a\x06\x00", 3);
    write_seed("message", "later-field", "\x5a\x00\x9a\x06\x00", 5);
    write_seed("message", "two-bodies", "\x5a\x00\x42\x02\x08\x07", 6);
}

/* Bytes in writes of `piece`, the first of them with descriptors. */
static void write_stream(const char *name, const uint8_t *stream, size_t size, uint8_t piece, uint8_t fds)
{
    uint8_t bytes[16384];
    size_t at = 0, end = 0;
    for (; at < size; at += piece) {
        size_t part = size - at < piece ? size - at : piece;
        bytes[end++] = (uint8_t)(part | (at == 0 ? fds << 6 : 0));
        memcpy(bytes + end, stream + at, part);
        end += part;
    }
    write_seed("channel", name, bytes, end);
}

/* What one side says in the course of a connection, in the order in which it is allowed; a talk ends with NULL. */
static const struct talk {
    const char *name, *frames[16];
} talks[] = {
    {"client-source",
     {"hello", "policy", "offer", "append", "append-event", "start", "wait", "notify", "release", "stats"}},
    {"client-sink", {"hello", "expect", "start", "wait", "abort", "expect-nothing", "ping", "pool-remove"}},
    {"to-client", {"welcome", "pool-status", "state", "layers", "state-done", "drained", "note", "codebook", "goaway"}},
    {"to-client-refused", {"refused"}},
    {"peer-sink",
     {"peer-hello", "peer-links", "arena", "reach", "request-open-many", "grant", "revoke", "end", "heartbeat"}},
    {"peer-source",
     {"peer-hello", "peer-links", "announce", "segments", "released", "withdraw", "peer-note", "peer-noted"}},
    {"peer-gpu", {"peer-hello", "gpu-link-wanted", "gpu-link", "gpu-link-by-ucx", "arena-nccl", "arena-ucx", "goaway"}},
    {"peer-codebooks",
     {"peer-hello", "peer-links-modes", "codebook", "codebook-ask-first", "codebook-part", "codebook-known",
      "request-on-gpu"}},
    {"shm", {"shm-hello", "peer-hello", "peer-links", "request", "segments-open"}},
    {"handover-new", {"handover-ready"}},
};

static void write_talks(void)
{
    uint8_t stream[8192];
    for (size_t i = 0; i < sizeof(talks) / sizeof(talks[0]); i++) {
        size_t size = 0;
        for (const char *const *frame = talks[i].frames; *frame != NULL; frame++)
            size += frame_of(golden_message(*frame), stream + size, sizeof(stream) - size);
        write_stream(talks[i].name, stream, size, 61, 0);
    }
}

/* The new daemon asks, and the old one answers with two descriptors and then confirms; and what neither says. */
static void write_handovers(void)
{
    const struct message ask = {.type = MESSAGE_HANDOVER}, answer = {.type = MESSAGE_HANDOVER, .handover.fd_count = 2};
    const struct message many = {.type = MESSAGE_HANDOVER, .handover.fd_count = CHANNEL_FDS_MAX + 1};
    uint8_t stream[256];
    size_t size = frame_of(&ask, stream, sizeof(stream));
    write_stream("handover-asked", stream, size, 62, 0);
    write_stream("handover-asked-with-descriptors", stream, size, 62, 2);
    size = frame_of(&answer, stream, sizeof(stream));
    size += frame_of(golden_message("handover-draining"), stream + size, sizeof(stream) - size);
    write_stream("handover-answered", stream, size, 62, 2);
    write_stream("handover-answered-in-bytes", stream, size, 1, 2);
    write_stream("handover-answered-with-less", stream, size, 62, 1);
    size = frame_of(&many, stream, sizeof(stream));
    write_stream("handover-answered-with-more", stream, size, 62, 3);
}

static void write_channels(void)
{
    uint8_t stream[8192];
    size_t size = frame_of(golden_message("pool-register"), stream, sizeof(stream));
    write_stream("pool", stream, size, 62, 2);
    write_stream("pool-without", stream, size, 50, 0);
    write_stream("pool-flood", stream, size, 20, 3);
    size = 0;
    int count;
    const struct golden *frames = golden_frames(&count);
    for (int i = 0; i < count; i++)
        if (channel_fds_of(&frames[i].message) == 0)
            size += frame_of(&frames[i].message, stream + size, sizeof(stream) - size);
    write_stream("all-small-cuts", stream, size, 7, 0);
    write_stream("all-large-cuts", stream, size, 62, 0);
    write_seed("channel", "too-long", "\x04\x01\x10\x00\x00", 5);
    write_seed("channel", "nothing", "\x04\x00\x00\x00\x00", 5);
    write_seed("channel", "half", "\x05\x03\x00\x00\x00\x5a", 6);
}

static void write_pool(const char *name, uint32_t count)
{
    struct blob_region regions[8];
    struct pool_blob blob = {.pool = {"0123456789abcde"},
                             .address = "host:1",
                             .version = 1,
                             .version_min = 1,
                             .region_count = count,
                             .regions = regions};
    uint8_t bytes[1024];
    size_t size;
    for (uint32_t i = 0; i < count; i++)
        regions[i] = (struct blob_region){.layer = (int32_t)(i / 2),
                                          .role = 1 + i % 2,
                                          .element = 1,
                                          .rows = 16,
                                          .row_bytes = 256,
                                          .heads = 8,
                                          .page_count = 1000};
    memset(blob.codebook_id, count > 1 ? 7 : 0, sizeof(blob.codebook_id));
    require(blob_pack(&blob, bytes, sizeof(bytes), &size) == STRAIT_OK);
    write_seed("blob", name, bytes, size);
}

/* ---- Parts of codebook sets -------------------------------------------------------------------------------------- */

/* The id that is asked for, and a part of a set of `size` bytes. */
static void write_part(const char *name, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES], uint32_t size, uint32_t offset,
                       const void *bytes, uint32_t count)
{
    uint8_t seed[4096];
    require(STRAIT_CODEBOOK_ID_BYTES + 10 + count <= sizeof(seed));
    memcpy(seed, id, STRAIT_CODEBOOK_ID_BYTES);
    store_le32(seed + 16, size);
    store_le32(seed + 20, offset);
    seed[24] = (uint8_t)count;
    seed[25] = (uint8_t)(count >> 8);
    if (count > 0)
        memcpy(seed + 26, bytes, count);
    write_seed("codebook_parts", name, seed, 26 + count);
}

static void make_codebook_parts(void)
{
    static const struct strait_class classes[2] = {{.role = STRAIT_ROLE_OTHER, .layer = -1},
                                                   {.role = STRAIT_ROLE_K, .layer = 3}};
    static const uint8_t other_id[STRAIT_CODEBOOK_ID_BYTES] = {1};
    uint8_t rankings[2][256], bytes[2048];
    struct strait_codebook *set;
    for (unsigned i = 0; i < 256; i++) {
        rankings[0][i] = (uint8_t)(0x7c + i);
        rankings[1][i] = (uint8_t)(0x7a + i);
    }
    require(strait_codebook_create((const uint8_t(*)[256])rankings, classes, 2, &set) == STRAIT_OK);
    const uint32_t size = (uint32_t)strait_codebook_serialized_size(set);
    require(size <= sizeof(bytes) && strait_codebook_serialize(set, bytes, sizeof(bytes)) == STRAIT_OK);
    const uint8_t *id = strait_codebook_id(set);
    write_part("whole", id, size, 0, bytes, size);
    write_part("another", other_id, size, 0, bytes, size);
    write_part("short", id, size, 0, bytes, size - 1);
    write_part("later", id, size, 1, bytes, size - 1);
    write_part("gone", id, 0, 0, NULL, 0);
    write_part("too-large", id, 5u << 20, 0, NULL, 0);
    bytes[40] ^= 1;
    write_part("changed", id, size, 0, bytes, size);
    strait_codebook_destroy(set);
}

static void make_messages(void)
{
    write_messages();
    write_channels();
    write_talks();
    write_handovers();
    write_pool("one-region", 1);
    write_pool("layers", 8);
}

static void make_traces(void)
{
    static const char *const traces[][2] = {
        {"sampled", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"not-sampled", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"},
        {"later-version", "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more"},
        {"no-trace", "00-00000000000000000000000000000000-b7ad6b7169203331-01"},
        {"capitals", "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01"},
        {"cut", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b"},
    };
    for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++)
        write_seed("trace", traces[i][0], traces[i][1], strlen(traces[i][1]));
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* Files of a checkpoint as fuzz_checkpoint.c takes them, and its index. */
static void write_checkpoint(const char *name, const struct built *built, uint64_t stream)
{
    static uint8_t input[65536];
    char scratch[SCRATCH_BYTES], path[SCRATCH_BYTES + 16], file_name[CHECKPOINT_FILE_NAME_BYTES];
    struct rng rng = {stream};
    size_t size, used = 1;
    scratch_make(scratch);
    snprintf(path, sizeof(path), "%s/step", scratch);
    built_write(built, &rng, path);
    uint8_t *index = file_read(path, CHECKPOINT_INDEX_NAME, &size);
    input[0] = 1;
    memcpy(input + 1, index + CHECKPOINT_INDEX_HEAD_BYTES, size - CHECKPOINT_INDEX_HEAD_BYTES);
    write_seed("checkpoint_index", name, input, size + 1 - CHECKPOINT_INDEX_HEAD_BYTES);
    free(index);
    input[0] = (uint8_t)(built->file_count - 1);
    for (uint32_t f = 0; f < built->file_count; f++) {
        struct checkpoint_tail tail;
        struct checkpoint_footer footer;
        checkpoint_file_name(file_name, f);
        uint8_t *bytes = file_read(path, file_name, &size);
        require(checkpoint_tail_parse(&tail, bytes + size - CHECKPOINT_TAIL_BYTES, size, NULL, 0) == STRAIT_OK);
        require(checkpoint_footer_parse(&footer, bytes + tail.footer_offset, &tail, NULL, 0) == STRAIT_OK);
        input[used++] = 1;
        input[used++] = (uint8_t)footer.chunk_count;
        for (uint32_t c = 0; c <= footer.chunk_count; c++) {
            const bool chunk = c < footer.chunk_count;
            const uint64_t at = chunk ? footer.chunks[c].offset : tail.footer_offset;
            const uint64_t length = chunk ? footer.chunks[c].bytes : tail.footer_bytes;
            require(length < 65536 && used + length + 2 < sizeof(input));
            store_le16(input + used, (uint16_t)length);
            memcpy(input + used + 2, bytes + at, length);
            used += 2 + length;
        }
        checkpoint_footer_free(&footer);
        free(bytes);
    }
    write_seed("checkpoint", name, input, used);
    scratch_remove(scratch);
}

static void make_checkpoints(void)
{
    static const uint64_t matrix[2] = {9, 8}, list[1] = {70}, none[2] = {0, 3};
    for (uint32_t replicas = 0; replicas < 2; replicas++) {
        struct built built = {
            .file_count = 1 + replicas, .page_bytes = 64, .chunk_pages = 4, .committed_ns = 5, .save_id = {1, 2, 3}};
        struct rng rng = {11 + replicas};
        const uint32_t master = built_tensor_add(&built, &rng, "m", "F32", matrix, 2, UINT32_MAX);
        built_split(&built, &rng, master, 3, replicas);
        built_round(&built, built_tensor_add(&built, &rng, "w", "BF16", matrix, 2, master), master);
        built_split(&built, &rng, built_tensor_add(&built, &rng, "b", "BF16", list, 1, UINT32_MAX), 2, replicas);
        built_split(&built, &rng, built_tensor_add(&built, &rng, "f", "F8_E4M3", list, 1, UINT32_MAX), 1, replicas);
        built_split(&built, &rng, built_tensor_add(&built, &rng, "s", "I64", NULL, 0, UINT32_MAX), 1, replicas);
        built_split(&built, &rng, built_tensor_add(&built, &rng, "t", "I64", NULL, 0, UINT32_MAX), 1, replicas);
        built_split(&built, &rng, built_tensor_add(&built, &rng, "n", "F16", none, 2, UINT32_MAX), 1, replicas);
        write_checkpoint(replicas ? "replicas" : "one-file", &built, 21);
        built_fini(&built);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus FOLDER\n");
        return 2;
    }
    folder = argv[1];
    make_messages();
    make_codebook_parts();
    make_addresses();
    make_rendezvous();
    make_tcp();
    make_traces();
    make_checkpoints();
    return 0;
}
