#include "tests/message_samples.h"

#include <string.h>

#include "tests/support.h"

#define VIEW(text)                                                \
    {                                                             \
        .data = (const uint8_t *)(text), .size = sizeof(text) - 1 \
    }
#define BYTES_16 "0123456789abcdef"
#define BYTES_32 BYTES_16 "ghijklmnopqrstuv"
#define POOL_A                                                             \
    {                                                                      \
        "\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff" \
    }
#define POOL_B             \
    {                      \
        {                  \
            0xff, [15] = 1 \
        }                  \
    }
#define EPOCH                                            \
    {                                                    \
        .incarnation = 0x0123456789abcdef, .counter = 77 \
    }
#define LIST_OF(list) .list_count = COUNT(list), .lists = (list)

static const uint32_t ids[] = {7, 0, UINT32_MAX, 0x01020304, 9};
static const struct wire_page_list lists[] = {
    {.group = 0, .first = 0, .count = 5, .ids = ids},
    {.group = STRAIT_GROUPS_MAX - 1, .first = 5, .count = 1000, .first_id = 4096},
    {.group = 1, .first = UINT32_MAX, .count = 0},
    {.group = 1, .first = 100, .count = 1, .first_id = 3, .ids = ids + 1},
};
static const struct wire_region regions[] = {
    {.handle = STRAIT_HANDLE_MEMFD,
     .device = -1,
     .fd = 1,
     .offset = 4096,
     .page_stride = 65536,
     .row_stride = 512,
     .page_count = 100000,
     .rows = 128,
     .row_bytes = 256,
     .element = 1,
     .role = 1,
     .layer = 0,
     .heads = 8,
     .group = 0},
    {.handle = STRAIT_HANDLE_POINTER,
     .device = -1,
     .pointer = 0x7fff12345678,
     .page_stride = 1,
     .page_count = 1,
     .rows = 1,
     .row_bytes = 1,
     .element = 0,
     .role = 0,
     .layer = -1,
     .group = 63},
    {.handle = STRAIT_HANDLE_CUDA_IPC,
     .device = 3,
     .ipc = VIEW(BYTES_32 BYTES_32),
     .offset = UINT64_MAX,
     .rows = 2,
     .row_bytes = UINT32_MAX,
     .element = 5,
     .role = 2,
     .layer = INT32_MAX,
     .heads = UINT32_MAX,
     .group = 1},
    {.handle = STRAIT_HANDLE_CUDA_VMM, .device = 0, .fd = 0, .element = 2, .role = 1, .layer = 2},
};
static const int32_t layers[] = {-1, 0, 63, INT32_MAX};
static const struct wire_span spans[] = {{0, 0, 1}, {63, 4000000, 3}, {1, 17, STRAIT_TRANSFER_PAGES_MAX - 4}};
static const uint32_t open_slots[MESSAGE_OPEN_MAX] = {9, 0, UINT32_MAX, 3, 4, 5, 6, 7};
static const uint32_t open_units[MESSAGE_OPEN_MAX] = {1, 2, 3, 4, 5, 6, 7, 159988}; /* all of the segments */
static const struct segment segments[] = {{0, 0, 160, 0, 1000}, {63, 4095, 1, UINT32_MAX - 1, 1}, {1, 2, 3, 4, 5}};

const struct sample samples[] = {
    {"hello", {MESSAGE_HELLO, .hello = {.version = 3, .version_min = 2, .pid = 4711, .library = VIEW("0.1.0")}}},
    {"pool-register",
     {MESSAGE_POOL_REGISTER,
      .pool_register =
          {.pool = POOL_A, .fd_count = 2, .coding = 3, .region_count = COUNT(regions), .regions = regions}}},
    {"pool-remove", {MESSAGE_POOL_REMOVE, .pool_remove = {.pool = POOL_B}}},
    {"expect",
     {MESSAGE_EXPECT, .expect = {.transfer = 1,
                                 .pool = POOL_A,
                                 .key = VIEW("k"),
                                 .sources = 2,
                                 .deadline_ms = 30000,
                                 .more = true,
                                 LIST_OF(lists)}}},
    {"expect-nothing", {MESSAGE_EXPECT, .expect = {.transfer = UINT64_MAX, .pool = POOL_B, .key = VIEW("a\0b")}}},
    {"offer",
     {MESSAGE_OFFER, .offer = {.transfer = 2,
                               .pool = POOL_A,
                               .key = VIEW("request 1"),
                               .consumers = 64,
                               .lease_ms = 5000,
                               .later = true,
                               .last = true,
                               .more = true,
                               LIST_OF(lists),
                               .aux = VIEW("first\0token")}}},
    {"offer-event",
     {MESSAGE_OFFER, .offer = {.transfer = 5,
                               .pool = POOL_B,
                               .key = VIEW("request 2"),
                               .lease_ms = 1,
                               .last = true,
                               .ready = VIEW("pointers")}}},
    {"append",
     {MESSAGE_APPEND, .append = {.transfer = 3,
                                 .layer_first = -1,
                                 .layer_count = 4,
                                 .last = true,
                                 .more = true,
                                 LIST_OF(lists),
                                 .aux = VIEW("aux")}}},
    {"append-event",
     {MESSAGE_APPEND, .append = {.transfer = 3,
                                 .layer_first = 2,
                                 .layer_count = 1,
                                 .ready = VIEW("an event that a GPU is going to reach: these are its 64 bytes...")}}},
    {"start",
     {MESSAGE_START, .start = {.transfer = 4,
                               .peer_pool = POOL_B,
                               .peer_address = VIEW("decode-7:7601"),
                               .peer_key = VIEW("other"),
                               .direction = STRAIT_PULL,
                               .mismatch = STRAIT_MISMATCH_CODEBOOK}}},
    {"abort", {MESSAGE_ABORT, .transfer = {5}}},
    {"release", {MESSAGE_RELEASE, .transfer = {6}}},
    {"notify",
     {MESSAGE_NOTIFY,
      .notify = {.peer_pool = POOL_B, .peer_address = VIEW("[::1]:7601"), .key = VIEW("key"), .data = VIEW("data")}}},
    {"stats", {MESSAGE_STATS, .owner = NULL}},
    {"policy", {MESSAGE_POLICY, .policy = {.pool = POOL_A, .coding = STRAIT_CODING_RAW}}},
    {"words", {MESSAGE_WORDS, .words = {.count = MESSAGE_WORDS_MAX}}},
    {"wait", {MESSAGE_WAIT, .wait = {.transfer = 1, .layer = -1, .word = MESSAGE_WORDS_MAX - 1, .value = UINT32_MAX}}},
    {"welcome",
     {MESSAGE_WELCOME, .welcome = {.version = 1,
                                   .incarnation = 0x8000000000000001,
                                   .address = VIEW("prefill-1:7601"),
                                   .codebook_id = VIEW(BYTES_16),
                                   .daemon = VIEW("0.1.0 (H200)"),
                                   .node = 42}}},
    {"pool-status",
     {MESSAGE_POOL_STATUS,
      .pool_status = {.pool = POOL_A, .status = STRAIT_ERR_UNSUPPORTED, .removed = true, .text = VIEW("no GPU")}}},
    {"state",
     {MESSAGE_STATE, .state = {.transfer = 7,
                               .state = STRAIT_FAILED,
                               .reason = STRAIT_REASON_BUSY,
                               .drained = true,
                               .more = true,
                               .text = VIEW("page 7 is in another expectation"),
                               .aux = VIEW("\0"),
                               .failed_count = COUNT(lists),
                               .failed = lists}}},
    {"state-done", {MESSAGE_STATE, .state = {.transfer = 7, .state = STRAIT_DONE, .drained = true}}},
    {"drained", {MESSAGE_DRAINED, .transfer = {8}}},
    {"layers", {MESSAGE_LAYERS, .layers = {.transfer = 9, .layer_count = COUNT(layers), .layers = layers}}},
    {"note", {MESSAGE_NOTE, .note = {.pool = POOL_A, .key = VIEW("key"), .data = VIEW("data")}}},
    {"stats-text", {MESSAGE_STATS_TEXT, .text = {VIEW("{\"transfers\": 12}")}}},
    {"peer-hello",
     {MESSAGE_PEER_HELLO, .peer_hello = {.version = 2,
                                         .version_min = 1,
                                         .node = 1,
                                         .incarnation = 2,
                                         .secret = true,
                                         .nonce = VIEW(BYTES_32),
                                         .address = VIEW("a:1"),
                                         .dialled = VIEW("b:2")}}},
    {"peer-proof", {MESSAGE_PEER_PROOF, .peer_proof = {VIEW(BYTES_32)}}},
    {"peer-links",
     {MESSAGE_PEER_LINKS, .peer_links = {.token = 0xfedcba9876543210,
                                         .host = VIEW("boot/net"),
                                         .shm_path = VIEW("/run/strait/shm"),
                                         .transport = VIEW("shm,ucx"),
                                         .ucx_address = VIEW("\x01\x00\xff"),
                                         .codebook_id = VIEW(BYTES_16),
                                         .slot_bytes = 4194304,
                                         .slot_count = 32}}},
    {"heartbeat", {MESSAGE_HEARTBEAT, .heartbeat = {.sequence = 300, .echo = 299}}},
    {"arena",
     {MESSAGE_ARENA,
      .arena =
          {.device = 63, .first_slot = 64, .slot_bytes = 8388608, .slot_count = 32, .ipc = VIEW(BYTES_32 BYTES_32)}}},
    {"arena-ucx", {MESSAGE_ARENA, .arena = {.first_slot = 1, .slot_bytes = 4096, .slot_count = 1, .ucx = true}}},
    {"arena-nccl", {MESSAGE_ARENA, .arena = {.first_slot = 1, .slot_bytes = 4096, .slot_count = 1, .nccl = true}}},
    {"gpu-link", {MESSAGE_GPU_LINK, .gpu_link = {.device = 63, .peer_device = 1, .address = VIEW("\x01\x00\xff")}}},
    {"gpu-link-wanted", {MESSAGE_GPU_LINK, .gpu_link = {.device = 1, .peer_device = 2}}},
    {"gpu-link-by-ucx", {MESSAGE_GPU_LINK, .gpu_link = {.device = 1, .address = VIEW("\x02"), .by = LINK_BY_UCX}}},
    {"gpu-link-refused", {MESSAGE_GPU_LINK, .gpu_link = {.why = VIEW("no NCCL here")}}},
    {"reach", {MESSAGE_REACH, .reach = {.pool = POOL_A, .devices = UINT64_C(1) << 63 | 1}}},
    {"announce",
     {MESSAGE_ANNOUNCE, .announce = {.offer = 10,
                                     .source_pool = POOL_A,
                                     .sink_pool = POOL_B,
                                     .source_key = VIEW("source"),
                                     .sink_key = VIEW("sink"),
                                     .lease_ms = 1000,
                                     .stop = true}}},
    {"request",
     {MESSAGE_REQUEST, .request = {.leg = 11,
                                   .epoch = EPOCH,
                                   .source_pool = POOL_A,
                                   .sink_pool = POOL_B,
                                   .source_key = VIEW("source"),
                                   .sink_key = VIEW("sink"),
                                   .geometry = 0x1122334455667788,
                                   .deadline_ms = 1234,
                                   .more = true,
                                   .rest = true,
                                   .span_count = COUNT(spans),
                                   .spans = spans}}},
    {"request-open",
     {MESSAGE_REQUEST, .request = {.leg = 11,
                                   .epoch = EPOCH,
                                   .source_pool = POOL_A,
                                   .sink_pool = POOL_B,
                                   .source_key = VIEW("source"),
                                   .sink_key = VIEW("sink"),
                                   .span_count = COUNT(spans),
                                   .spans = spans,
                                   .grant = 1,
                                   .slot_count = 1,
                                   .slots = open_slots}}},
    {"request-open-many",
     {MESSAGE_REQUEST, .request = {.leg = 11,
                                   .epoch = EPOCH,
                                   .source_pool = POOL_A,
                                   .sink_pool = POOL_B,
                                   .source_key = VIEW("source"),
                                   .sink_key = VIEW("sink"),
                                   .span_count = COUNT(spans),
                                   .spans = spans,
                                   .grant = UINT64_MAX - MESSAGE_OPEN_MAX,
                                   .slot_count = MESSAGE_OPEN_MAX,
                                   .slots = open_slots}}},
    {"segments-open",
     {MESSAGE_SEGMENTS, .segments = {.leg = 12,
                                     .epoch = EPOCH,
                                     .segment_count = COUNT(segments),
                                     .segments = segments,
                                     .grant = 1,
                                     .granted_count = 1,
                                     .granted = open_units}}},
    {"segments-open-many",
     {MESSAGE_SEGMENTS, .segments = {.leg = 12,
                                     .epoch = EPOCH,
                                     .segment_count = COUNT(segments),
                                     .segments = segments,
                                     .grant = UINT64_MAX - MESSAGE_OPEN_MAX,
                                     .granted_count = MESSAGE_OPEN_MAX,
                                     .granted = open_units}}},
    {"segments",
     {MESSAGE_SEGMENTS, .segments = {.leg = 12,
                                     .epoch = EPOCH,
                                     .before = 100,
                                     .last = true,
                                     .segment_count = COUNT(segments),
                                     .segments = segments,
                                     .aux = VIEW("aux"),
                                     .aux_sum = 0x99}}},
    {"grant",
     {MESSAGE_GRANT,
      .grant = {.leg = 13, .epoch = EPOCH, .grant = 14, .first = 4000000000, .count = 294967295, .slot = 15}}},
    {"revoke", {MESSAGE_REVOKE, .grant_id = {.leg = 16, .epoch = EPOCH, .grant = 17}}},
    {"released", {MESSAGE_RELEASED, .grant_id = {.leg = 18, .epoch = EPOCH, .grant = 19}}},
    {"end",
     {MESSAGE_END,
      .end = {.leg = 20, .epoch = EPOCH, .from_sink = true, .state = STRAIT_DONE, .reason = STRAIT_REASON_NONE}}},
    {"end-failed",
     {MESSAGE_END, .end = {.leg = 20, .epoch = EPOCH, .state = STRAIT_FAILED, .reason = STRAIT_REASON_CODEC}}},
    {"peer-note", {MESSAGE_PEER_NOTE, .note = {.pool = POOL_B, .data = VIEW("data")}}},
    {"shm-hello", {MESSAGE_SHM_HELLO, .shm_hello = {.token = 21, .node = 22, .slot_bytes = 65536, .slot_count = 3}}},
};
const int sample_count = COUNT(samples);

const struct message *sample_of(const char *name)
{
    for (int i = 0; i < sample_count; i++)
        if (strcmp(samples[i].name, name) == 0)
            return &samples[i].message;
    require(false);
    return NULL;
}

/* ---- Comparing ------------------------------------------------------------------------------------------------ */

#define SAME(name)      require(a->name == b->name)
#define SAME_POOL(name) require(memcmp(a->name.bytes, b->name.bytes, sizeof(a->name.bytes)) == 0)
#define SAME_VIEW(name) same_view(a->name, b->name)
#define SAME_EPOCH()    require(a->epoch.incarnation == b->epoch.incarnation && a->epoch.counter == b->epoch.counter)
#define SAME_LISTS(count, name)                 \
    do {                                        \
        SAME(count);                            \
        same_lists(a->name, b->name, a->count); \
    } while (0)

static void same_view(struct view a, struct view b)
{
    require(a.size == b.size);
    require(a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Ids of nothing are as good as none. */
static void same_list(const struct wire_page_list *a, const struct wire_page_list *b)
{
    SAME(group);
    SAME(first);
    SAME(count);
    SAME(first_id);
    require(a->count == 0 || (a->ids == NULL) == (b->ids == NULL));
    for (uint32_t i = 0; a->ids != NULL && i < a->count; i++)
        SAME(ids[i]);
}

static void same_lists(const struct wire_page_list *a, const struct wire_page_list *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        same_list(&a[i], &b[i]);
}

static void same_hello(const struct message_hello *a, const struct message_hello *b)
{
    SAME(version);
    SAME(version_min);
    SAME(pid);
    SAME_VIEW(library);
}

static void same_welcome(const struct message_welcome *a, const struct message_welcome *b)
{
    SAME(version);
    SAME(incarnation);
    SAME_VIEW(address);
    SAME_VIEW(codebook_id);
    SAME_VIEW(daemon);
    SAME(node);
}

static void same_region(const struct wire_region *a, const struct wire_region *b)
{
    SAME(handle);
    SAME(device);
    SAME(fd);
    SAME(pointer);
    SAME_VIEW(ipc);
    SAME(offset);
    SAME(page_stride);
    SAME(row_stride);
    SAME(page_count);
    SAME(rows);
    SAME(row_bytes);
    SAME(element);
    SAME(role);
    SAME(layer);
    SAME(heads);
    SAME(group);
}

static void same_pool_register(const struct message_pool_register *a, const struct message_pool_register *b)
{
    SAME_POOL(pool);
    SAME(fd_count);
    SAME(coding);
    SAME(region_count);
    for (uint32_t i = 0; i < a->region_count; i++)
        same_region(&a->regions[i], &b->regions[i]);
}

static void same_pool_status(const struct message_pool_status *a, const struct message_pool_status *b)
{
    SAME_POOL(pool);
    SAME(status);
    SAME(removed);
    SAME_VIEW(text);
}

static void same_expect(const struct message_expect *a, const struct message_expect *b)
{
    SAME(transfer);
    SAME_POOL(pool);
    SAME_VIEW(key);
    SAME(sources);
    SAME(deadline_ms);
    SAME(more);
    SAME_LISTS(list_count, lists);
}

static void same_offer(const struct message_offer *a, const struct message_offer *b)
{
    SAME(transfer);
    SAME_POOL(pool);
    SAME_VIEW(key);
    SAME(consumers);
    SAME(lease_ms);
    SAME(later);
    SAME(last);
    SAME(more);
    SAME_LISTS(list_count, lists);
    SAME_VIEW(aux);
    SAME_VIEW(ready);
}

static void same_append(const struct message_append *a, const struct message_append *b)
{
    SAME(transfer);
    SAME(layer_first);
    SAME(layer_count);
    SAME(last);
    SAME(more);
    SAME_LISTS(list_count, lists);
    SAME_VIEW(aux);
    SAME_VIEW(ready);
}

static void same_start(const struct message_start *a, const struct message_start *b)
{
    SAME(transfer);
    SAME_POOL(peer_pool);
    SAME_VIEW(peer_address);
    SAME_VIEW(peer_key);
    SAME(direction);
    SAME(mismatch);
}

static void same_notify(const struct message_notify *a, const struct message_notify *b)
{
    SAME_POOL(peer_pool);
    SAME_VIEW(peer_address);
    SAME_VIEW(key);
    SAME_VIEW(data);
}

static void same_note(const struct message_note *a, const struct message_note *b)
{
    SAME_POOL(pool);
    SAME_VIEW(key);
    SAME_VIEW(data);
}

static void same_policy(const struct message_policy *a, const struct message_policy *b)
{
    SAME_POOL(pool);
    SAME(coding);
}

static void same_wait(const struct message_wait *a, const struct message_wait *b)
{
    SAME(transfer);
    SAME(layer);
    SAME(word);
    SAME(value);
}

static void same_state(const struct message_state *a, const struct message_state *b)
{
    SAME(transfer);
    SAME(state);
    SAME(reason);
    SAME(drained);
    SAME(more);
    SAME_VIEW(text);
    SAME_VIEW(aux);
    SAME_LISTS(failed_count, failed);
}

static void same_layers(const struct message_layers *a, const struct message_layers *b)
{
    SAME(transfer);
    SAME(layer_count);
    for (uint32_t i = 0; i < a->layer_count; i++)
        SAME(layers[i]);
}

static void same_peer_hello(const struct message_peer_hello *a, const struct message_peer_hello *b)
{
    SAME(version);
    SAME(version_min);
    SAME(node);
    SAME(incarnation);
    SAME(secret);
    SAME_VIEW(nonce);
    SAME_VIEW(address);
    SAME_VIEW(dialled);
}

static void same_peer_links(const struct message_peer_links *a, const struct message_peer_links *b)
{
    SAME(token);
    SAME_VIEW(host);
    SAME_VIEW(shm_path);
    SAME_VIEW(transport);
    SAME_VIEW(ucx_address);
    SAME_VIEW(codebook_id);
    SAME(slot_bytes);
    SAME(slot_count);
}

static void same_announce(const struct message_announce *a, const struct message_announce *b)
{
    SAME(offer);
    SAME_POOL(source_pool);
    SAME_POOL(sink_pool);
    SAME_VIEW(source_key);
    SAME_VIEW(sink_key);
    SAME(lease_ms);
    SAME(stop);
}

static void same_request(const struct message_request *a, const struct message_request *b)
{
    SAME(leg);
    SAME_EPOCH();
    SAME_POOL(source_pool);
    SAME_POOL(sink_pool);
    SAME_VIEW(source_key);
    SAME_VIEW(sink_key);
    SAME(geometry);
    SAME(deadline_ms);
    SAME(more);
    SAME(rest);
    SAME(span_count);
    for (uint32_t i = 0; i < a->span_count; i++) {
        SAME(spans[i].group);
        SAME(spans[i].first);
        SAME(spans[i].count);
    }
    SAME(grant);
    SAME(slot_count);
    for (uint32_t i = 0; i < a->slot_count; i++)
        SAME(slots[i]);
}

static void same_segments(const struct message_segments *a, const struct message_segments *b)
{
    SAME(leg);
    SAME_EPOCH();
    SAME(before);
    SAME(last);
    SAME(segment_count);
    for (uint32_t i = 0; i < a->segment_count; i++) {
        SAME(segments[i].group);
        SAME(segments[i].region_first);
        SAME(segments[i].region_count);
        SAME(segments[i].first);
        SAME(segments[i].count);
    }
    SAME_VIEW(aux);
    SAME(aux_sum);
    SAME(grant);
    SAME(granted_count);
    for (uint32_t i = 0; i < a->granted_count; i++)
        SAME(granted[i]);
}

static void same_grant(const struct message_grant *a, const struct message_grant *b)
{
    SAME(leg);
    SAME_EPOCH();
    SAME(grant);
    SAME(first);
    SAME(count);
    SAME(slot);
}

static void same_grant_id(const struct message_grant_id *a, const struct message_grant_id *b)
{
    SAME(leg);
    SAME_EPOCH();
    SAME(grant);
}

static void same_end(const struct message_end *a, const struct message_end *b)
{
    SAME(leg);
    SAME_EPOCH();
    SAME(from_sink);
    SAME(state);
    SAME(reason);
}

static void same_shm_hello(const struct message_shm_hello *a, const struct message_shm_hello *b)
{
    SAME(token);
    SAME(node);
    SAME(slot_bytes);
    SAME(slot_count);
}

static void same_of_client(const struct message *a, const struct message *b)
{
    switch (a->type) {
    case MESSAGE_HELLO:
        same_hello(&a->hello, &b->hello);
        break;
    case MESSAGE_POOL_REGISTER:
        same_pool_register(&a->pool_register, &b->pool_register);
        break;
    case MESSAGE_POOL_REMOVE:
        SAME_POOL(pool_remove.pool);
        break;
    case MESSAGE_EXPECT:
        same_expect(&a->expect, &b->expect);
        break;
    case MESSAGE_OFFER:
        same_offer(&a->offer, &b->offer);
        break;
    case MESSAGE_APPEND:
        same_append(&a->append, &b->append);
        break;
    case MESSAGE_START:
        same_start(&a->start, &b->start);
        break;
    case MESSAGE_ABORT:
    case MESSAGE_RELEASE:
        SAME(transfer.transfer);
        break;
    case MESSAGE_NOTIFY:
        same_notify(&a->notify, &b->notify);
        break;
    case MESSAGE_STATS:
        break;
    case MESSAGE_POLICY:
        same_policy(&a->policy, &b->policy);
        break;
    case MESSAGE_WORDS:
        require(a->words.count == b->words.count);
        break;
    case MESSAGE_WAIT:
        same_wait(&a->wait, &b->wait);
        break;
    default:
        require(false);
    }
}

static void same_of_daemon(const struct message *a, const struct message *b)
{
    switch (a->type) {
    case MESSAGE_WELCOME:
        same_welcome(&a->welcome, &b->welcome);
        break;
    case MESSAGE_POOL_STATUS:
        same_pool_status(&a->pool_status, &b->pool_status);
        break;
    case MESSAGE_STATE:
        same_state(&a->state, &b->state);
        break;
    case MESSAGE_DRAINED:
        SAME(transfer.transfer);
        break;
    case MESSAGE_LAYERS:
        same_layers(&a->layers, &b->layers);
        break;
    case MESSAGE_NOTE:
        same_note(&a->note, &b->note);
        break;
    case MESSAGE_STATS_TEXT:
        SAME_VIEW(text.text);
        break;
    default:
        same_of_client(a, b);
    }
}

void require_same_message(const struct message *a, const struct message *b)
{
    SAME(type);
    switch (a->type) {
    case MESSAGE_PEER_HELLO:
        same_peer_hello(&a->peer_hello, &b->peer_hello);
        break;
    case MESSAGE_PEER_PROOF:
        SAME_VIEW(peer_proof.mac);
        break;
    case MESSAGE_PEER_LINKS:
        same_peer_links(&a->peer_links, &b->peer_links);
        break;
    case MESSAGE_HEARTBEAT:
        SAME(heartbeat.sequence);
        SAME(heartbeat.echo);
        break;
    case MESSAGE_ARENA:
        SAME(arena.device);
        SAME(arena.first_slot);
        SAME(arena.slot_bytes);
        SAME(arena.slot_count);
        SAME_VIEW(arena.ipc);
        SAME(arena.nccl);
        SAME(arena.ucx);
        break;
    case MESSAGE_GPU_LINK:
        SAME(gpu_link.device);
        SAME(gpu_link.peer_device);
        SAME_VIEW(gpu_link.address);
        SAME_VIEW(gpu_link.why);
        SAME(gpu_link.by);
        break;
    case MESSAGE_REACH:
        SAME_POOL(reach.pool);
        SAME(reach.devices);
        break;
    case MESSAGE_ANNOUNCE:
        same_announce(&a->announce, &b->announce);
        break;
    case MESSAGE_REQUEST:
        same_request(&a->request, &b->request);
        break;
    case MESSAGE_SEGMENTS:
        same_segments(&a->segments, &b->segments);
        break;
    case MESSAGE_GRANT:
        same_grant(&a->grant, &b->grant);
        break;
    case MESSAGE_REVOKE:
    case MESSAGE_RELEASED:
        same_grant_id(&a->grant_id, &b->grant_id);
        break;
    case MESSAGE_END:
        same_end(&a->end, &b->end);
        break;
    case MESSAGE_PEER_NOTE:
        same_note(&a->note, &b->note);
        break;
    case MESSAGE_SHM_HELLO:
        same_shm_hello(&a->shm_hello, &b->shm_hello);
        break;
    default:
        same_of_daemon(a, b);
    }
}
