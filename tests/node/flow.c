/* Pools and transfers of the harness: memory and the image of what it should hold, requests and what became of them. */
#include <dlfcn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/device/device.h"
#include "tests/node/harness.h"

#define ROW_GAP  32u /* between the rows of a page */
#define PAGE_GAP 64u /* between pages */

static struct test_pool *pools[POOLS_MAX];
static uint32_t pool_count;

static uint32_t row_stride(const struct geometry *g)
{
    return g->rows == 1 ? g->row_bytes : g->row_bytes + ROW_GAP;
}

static size_t page_stride(const struct geometry *g)
{
    return (size_t)g->rows * row_stride(g) + PAGE_GAP;
}

static size_t region_bytes(const struct geometry *g)
{
    return (PAGE_GAP + g->pages * page_stride(g) + 4095) / 4096 * 4096;
}

static uint32_t group_regions(const struct geometry *g)
{
    return g->layers * g->roles;
}

static uint32_t region_count(const struct geometry *g)
{
    return g->groups * group_regions(g);
}

static uint8_t *page_at(const struct geometry *g, uint8_t *base, uint32_t region, uint32_t id)
{
    return base + region * region_bytes(g) + PAGE_GAP + id * page_stride(g);
}

static void complete(struct geometry *g)
{
    g->groups = g->groups != 0 ? g->groups : 1;
    g->layers = g->layers != 0 ? g->layers : 1;
    g->roles = g->roles != 0 ? g->roles : 1;
    g->pages = g->pages != 0 ? g->pages : 16;
    g->rows = g->rows != 0 ? g->rows : 1;
    g->row_bytes = g->row_bytes != 0 ? g->row_bytes : 4096;
    g->element = g->element != 0 ? g->element : STRAIT_ELEMENT_BF16;
}

/* The regions lie in one mapping, so that they can be compared at once; a memfd for each is mapped over its part. */
static void allocate(struct test_pool *pool)
{
    const struct geometry *g = &pool->geometry;
    pool->size = region_bytes(g) * region_count(g);
    ck_assert_int_eq(STRAIT_OK, strait_alloc(pool->size, &pool->memory));
    pool->bytes = pool->memory.base;
    if (!g->apart)
        return;
    pool->parts = keep(region_count(g) * sizeof(*pool->parts));
    for (uint32_t r = 0; r < region_count(g); r++) {
        ck_assert_int_eq(STRAIT_OK, strait_alloc(region_bytes(g), &pool->parts[r]));
        ck_assert(mmap(pool->bytes + r * region_bytes(g), region_bytes(g), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, pool->parts[r].fd, 0) != MAP_FAILED);
    }
}

static void put_on_gpu(struct strait_pool_region *region, const struct geometry *g)
{
    region->device = (int32_t)(g->gpu - 1 + region->group * g->gpu_step);
    region->handle = g->handle != 0 ? g->handle : STRAIT_HANDLE_CUDA_IPC;
    const struct fake_handle handle = {.pid = getpid(), .fd = region->fd, .device = region->device};
    memcpy(region->ipc, &handle, sizeof(handle));
}

enum strait_element pool_element(const struct test_pool *pool, uint32_t group)
{
    static const enum strait_element turns[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP32, STRAIT_ELEMENT_FP16};
    return pool->geometry.hybrid ? turns[group % 3] : (enum strait_element)pool->geometry.element;
}

static uint32_t row_bytes_of(const struct geometry *g, uint32_t group)
{
    return g->hybrid ? g->row_bytes >> group % 3 : g->row_bytes;
}

uint32_t pool_page_bytes(const struct test_pool *pool, uint32_t group)
{
    return row_bytes_of(&pool->geometry, group);
}

static struct strait_pool_region describe(const struct test_pool *pool, uint32_t r)
{
    const struct geometry *g = &pool->geometry;
    uint64_t base = g->apart ? 0 : r * region_bytes(g);
    struct strait_pool_region region = {.handle = STRAIT_HANDLE_MEMFD,
                                        .device = -1,
                                        .fd = g->apart ? pool->parts[r].fd : pool->memory.fd,
                                        .offset = base + PAGE_GAP,
                                        .page_stride = page_stride(g),
                                        .row_stride = row_stride(g),
                                        .page_count = g->pages,
                                        .rows = g->rows,
                                        .row_bytes = row_bytes_of(g, r / group_regions(g)),
                                        .element = pool_element(pool, r / group_regions(g)),
                                        .role = r % g->roles == 0 ? STRAIT_ROLE_K : STRAIT_ROLE_V,
                                        .layer = (int32_t)(r % group_regions(g) / g->roles),
                                        .group = r / group_regions(g),
                                        .layout = g->layout,
                                        .tokens = g->tokens};
    if (g->gpu != 0)
        put_on_gpu(&region, g);
    if (g->pointers) {
        region.handle = STRAIT_HANDLE_POINTER;
        region.pointer = pool->bytes;
        region.fd = -1;
    }
    return region;
}

struct test_pool *pool_try(struct party *party, struct geometry geometry)
{
    ck_assert_uint_lt(pool_count, POOLS_MAX);
    complete(&geometry);
    struct test_pool *pool = keep(sizeof(*pool));
    pool->party = party;
    pool->geometry = geometry;
    allocate(pool);
    memset(pool->bytes, CANARY, pool->size);
    pool->image = keep(pool->size);
    memcpy(pool->image, pool->bytes, pool->size);
    struct strait_pool_region *regions = keep(region_count(&geometry) * sizeof(*regions));
    for (uint32_t r = 0; r < region_count(&geometry); r++)
        regions[r] = describe(pool, r);
    const struct strait_pool_params params = {
        .size = sizeof(params), .regions = regions, .region_count = region_count(&geometry), .compat = geometry.compat};
    ck_assert_int_eq(STRAIT_OK, strait_pool_register(party->client, &params, &pool->pool));
    return pools[pool_count++] = pool;
}

struct test_pool *pool_open(struct party *party, struct geometry geometry)
{
    struct test_pool *pool = pool_try(party, geometry);
    WAIT(pool->told);
    ck_assert_msg(pool->status == STRAIT_OK, "%s", pool->text);
    return pool;
}

void pool_refused(struct party *party, struct geometry geometry, enum strait_status status, const char *text)
{
    struct test_pool *pool = pool_try(party, geometry);
    WAIT(pool->told);
    ck_assert_int_eq(status, pool->status);
    ck_assert_msg(strstr(pool->text, text) != NULL, "%s", pool->text);
}

static uint16_t *slice; /* NULL: random values */
static size_t slice_count;
static bool rests_zero; /* what FP16 and FP32 have more than BF16 */

void pools_use_zero_rests(void)
{
    rests_zero = true;
}

const uint16_t *pools_use_slice(size_t *count)
{
    uint64_t header = 0;
    FILE *file = fopen("tests/data/kv-slice.safetensors", "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(1, fread(&header, sizeof(header), 1, file));
    ck_assert_int_eq(0, fseek(file, 0, SEEK_END));
    slice_count = ((size_t)ftell(file) - sizeof(header) - header) / sizeof(*slice);
    slice = keep(slice_count * sizeof(*slice));
    ck_assert_int_eq(0, fseek(file, (long)(sizeof(header) + header), SEEK_SET));
    ck_assert_uint_eq(slice_count, fread(slice, sizeof(*slice), slice_count, file));
    fclose(file);
    *count = slice_count;
    return slice;
}

/* A BF16 value as FP16 of the same exponent, as far as there is one; the three lowest bits are random. */
static uint16_t half_of(uint16_t value, unsigned random)
{
    const int exponent = (value >> 7 & 255) - 112;
    const unsigned kept = exponent < 1 ? 0 : exponent > 30 ? 30 : (unsigned)exponent;
    return (uint16_t)((value & 0x8000u) | kept << 10 | (value & 0x7fu) << 3 | (random & 7));
}

/* The FP8 value below a BF16 one; 0 below its least exponent, the largest finite one above its greatest. */
static uint8_t eighth_of(uint16_t value, bool e5m2)
{
    const int mantissa_bits = e5m2 ? 2 : 3, greatest = e5m2 ? 30 : 15;
    const int exponent = (value >> 7 & 255) - 127 + (e5m2 ? 15 : 7);
    const unsigned sign = value >> 8 & 0x80, mantissa = (value & 127u) >> (7 - mantissa_bits);
    if (exponent <= 0)
        return (uint8_t)sign;
    if (exponent > greatest)
        return (uint8_t)(sign | (e5m2 ? 0x7b : 0x7e));
    return (uint8_t)(sign | (unsigned)exponent << mantissa_bits | mantissa);
}

UNWATCHED static void fill_page(struct rng *rng, enum strait_element element, uint8_t *bytes, size_t size)
{
    const bool e5m2 = element == STRAIT_ELEMENT_FP8_E5M2, fp8 = e5m2 || element == STRAIT_ELEMENT_FP8_E4M3;
    const size_t step = element == STRAIT_ELEMENT_FP32 ? 4 : fp8 ? 1 : 2;
    size_t next = slice != NULL ? rng_below(rng, (uint32_t)slice_count) : 0;
    for (size_t i = 0; i + step <= size; i += step) {
        const uint64_t random = rng_next(rng);
        const uint16_t value = slice != NULL ? slice[next++ % slice_count] : (uint16_t)(0x3e00u + (random & 0x81ffu));
        const uint16_t rest = rests_zero ? 0 : (uint16_t)(random >> 16);
        if (fp8) {
            bytes[i] = eighth_of(value, e5m2);
        } else if (element == STRAIT_ELEMENT_FP32) {
            const uint32_t whole = (uint32_t)value << 16 | rest;
            memcpy(bytes + i, &whole, sizeof(whole));
        } else {
            const uint16_t half = element == STRAIT_ELEMENT_FP16 ? half_of(value, rest) : value;
            memcpy(bytes + i, &half, sizeof(half));
        }
    }
}

void pool_fill(struct test_pool *pool, uint64_t seed)
{
    const struct geometry *g = &pool->geometry;
    struct rng rng = rng_init(seed);
    for (uint32_t r = 0; r < region_count(g); r++)
        for (uint32_t id = 0; id < g->pages; id++)
            for (uint32_t row = 0; row < g->rows; row++)
                fill_page(&rng, pool_element(pool, r / group_regions(g)),
                          page_at(g, pool->bytes, r, id) + (size_t)row * row_stride(g),
                          row_bytes_of(g, r / group_regions(g)));
    memcpy(pool->image, pool->bytes, pool->size);
}

bool pool_as_imagined(const struct test_pool *pool)
{
    return memcmp(pool->bytes, pool->image, pool->size) == 0;
}

const uint8_t *pool_page(const struct test_pool *pool, uint32_t region, uint32_t id)
{
    return page_at(&pool->geometry, pool->bytes, region, id);
}

struct strait_peer *peer_of(struct party *party, struct test_pool *pool)
{
    size_t size = 0;
    struct strait_peer *peer;
    WAIT(strait_client_connected(pool->party->client));
    ck_assert_int_eq(STRAIT_ERR_NO_SPACE, strait_pool_export(pool->pool, NULL, 0, &size));
    uint8_t *blob = malloc(size);
    ck_assert_int_eq(STRAIT_OK, strait_pool_export(pool->pool, blob, size, &size));
    ck_assert_int_eq(STRAIT_OK, strait_peer_import(party->client, blob, size, &peer));
    free(blob);
    return peer;
}

/* Copies all rows of a group's page; each base is that of the pool's memory, or of its image. */
static void pool_copy_page(struct test_pool *to, uint8_t *to_base, uint32_t to_id, const struct test_pool *from,
                           uint8_t *from_base, uint32_t from_id, uint32_t group)
{
    const struct geometry *g = &to->geometry;
    for (uint32_t r = group * group_regions(g); r < (group + 1) * group_regions(g); r++)
        for (uint32_t row = 0; row < g->rows; row++)
            memcpy(page_at(g, to_base, r, to_id) + (size_t)row * row_stride(g),
                   page_at(&from->geometry, from_base, r, from_id) + (size_t)row * row_stride(g),
                   row_bytes_of(g, group));
}

void pools_event(const struct strait_event *event)
{
    for (uint32_t i = 0; i < pool_count; i++) {
        struct test_pool *pool = pools[i];
        if (pool->pool != event->pool)
            continue;
        pool->told = true;
        pool->status = (enum strait_status)event->status;
        snprintf(pool->text, sizeof(pool->text), "%s", event->text != NULL ? event->text : "");
        if (event->type == STRAIT_EVENT_POOL_REMOVED) {
            pool->removed = true;
            pool->pool = NULL;
        }
    }
}

void pools_close(void)
{
    for (uint32_t i = 0; i < pool_count; i++) {
        for (uint32_t r = 0; pools[i]->parts != NULL && r < region_count(&pools[i]->geometry); r++)
            strait_free(&pools[i]->parts[r]);
        strait_free(&pools[i]->memory);
    }
    pool_count = 0;
    slice = NULL;
    rests_zero = false;
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static void remember(struct flow *flow, const struct strait_page_list *lists, uint32_t count)
{
    if (flow->list_count + count > flow->list_room) {
        struct strait_page_list *grown = keep(2 * (size_t)(flow->list_count + count) * sizeof(*grown));
        if (flow->list_count != 0)
            memcpy(grown, flow->lists, flow->list_count * sizeof(*grown));
        flow->lists = grown;
        flow->list_room = 2 * (flow->list_count + count);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct strait_page_list *list = &flow->lists[flow->list_count++];
        *list = lists[i];
        if (lists[i].ids == NULL || lists[i].count == 0)
            continue;
        uint32_t *ids = keep(lists[i].count * sizeof(*ids));
        memcpy(ids, lists[i].ids, lists[i].count * sizeof(*ids));
        list->ids = ids;
    }
}

static struct flow *new_flow(struct test_pool *pool, const struct strait_page_list *lists, uint32_t count)
{
    struct flow *flow = keep(sizeof(*flow));
    flow->pool = pool;
    flow->state = STRAIT_BOOTSTRAP;
    remember(flow, lists, count);
    return flow;
}

struct flow *flow_expect(struct test_pool *pool, struct strait_expect_params params)
{
    struct flow *flow = new_flow(pool, params.lists, params.list_count);
    flow->sink = flow->tells = true;
    params.size = sizeof(params);
    params.context = flow;
    params.tell_pages = true;
    params.deadline_ms = params.deadline_ms != 0 ? params.deadline_ms : 20000 * SLOW;
    ck_assert_int_eq(STRAIT_OK, strait_expect(pool->pool, &params, &flow->transfer));
    return flow;
}

struct flow *flow_offer(struct test_pool *pool, struct strait_offer_params params)
{
    struct flow *flow = new_flow(pool, params.lists, params.list_count);
    params.size = sizeof(params);
    params.context = flow;
    params.lease_ms = params.lease_ms != 0 ? params.lease_ms : 20000 * SLOW;
    ck_assert_int_eq(STRAIT_OK, strait_offer(pool->pool, &params, &flow->transfer));
    memcpy(flow->name, params.key, params.key_size);
    flow->name_size = params.key_size;
    return flow;
}

struct flow *flow_pull(struct test_pool *pool, const struct flow *offer, struct strait_expect_params params)
{
    params.key = offer->name;
    params.key_size = offer->name_size;
    struct flow *flow = flow_expect(pool, params);
    flow_start(flow, offer->pool);
    return flow;
}

static struct flow *read_with(struct test_pool *pool, struct test_pool *peer, struct strait_page_list to,
                              struct strait_page_list from, uint32_t deadline_ms, const char *traceparent)
{
    struct flow *flow = new_flow(pool, &to, 1);
    struct strait_peer *known = peer_of(pool->party, peer);
    const struct strait_read_params params = {.size = sizeof(params),
                                              .lists = &to,
                                              .list_count = 1,
                                              .peer_lists = &from,
                                              .peer_list_count = 1,
                                              .deadline_ms = deadline_ms != 0 ? deadline_ms : 20000 * SLOW,
                                              .context = flow,
                                              .traceparent = traceparent,
                                              .tell_pages = true};
    flow->sink = flow->tells = true;
    ck_assert_int_eq(STRAIT_OK, strait_read(pool->pool, known, &params, &flow->transfer));
    strait_peer_remove(known);
    return flow;
}

struct flow *flow_read(struct test_pool *pool, struct test_pool *peer, struct strait_page_list to,
                       struct strait_page_list from, uint32_t deadline_ms)
{
    return read_with(pool, peer, to, from, deadline_ms, NULL);
}

struct flow *flow_read_traced(struct test_pool *pool, struct test_pool *peer, struct strait_page_list to,
                              struct strait_page_list from, const char *traceparent)
{
    return read_with(pool, peer, to, from, 0, traceparent);
}

enum strait_status pool_fence(struct test_pool *pool, struct strait_page_list list, uint32_t grace_ms, uint32_t *fenced)
{
    const struct strait_fence_params params = {
        .size = sizeof(params), .lists = &list, .list_count = 1, .grace_ms = grace_ms, .context = fenced};
    return strait_pool_fence(pool->pool, &params);
}

void flow_append(struct flow *flow, struct strait_append_params params)
{
    params.size = sizeof(params);
    remember(flow, params.lists, params.list_count);
    ck_assert_int_eq(STRAIT_OK, strait_append(flow->transfer, &params));
}

static uint32_t all_pages(const struct test_pool *pool, struct strait_page_list lists[GROUPS_MAX])
{
    ck_assert_uint_le(pool->geometry.groups, GROUPS_MAX);
    for (uint32_t g = 0; g < pool->geometry.groups; g++)
        lists[g] = (struct strait_page_list){.group = g, .count = pool->geometry.pages};
    return pool->geometry.groups;
}

struct flow *offer_all(struct test_pool *pool, const char *name)
{
    struct strait_page_list lists[GROUPS_MAX];
    uint32_t count = all_pages(pool, lists);
    return OFFER(pool, name, .lists = lists, .list_count = count, .last = true);
}

struct flow *expect_all(struct test_pool *pool, const char *name, uint32_t deadline_ms)
{
    struct strait_page_list lists[GROUPS_MAX];
    uint32_t count = all_pages(pool, lists);
    return EXPECT(pool, name, .lists = lists, .list_count = count, .deadline_ms = deadline_ms);
}

const char *name_of(uint32_t number)
{
    static char name[16];
    snprintf(name, sizeof(name), "%u", number);
    return name;
}

void flow_start_one_of(struct flow *flow, struct test_pool *peer, const char *peer_key, uint32_t consumers)
{
    struct strait_start_params params = {.size = sizeof(params), .peer_key = peer_key, .consumers = consumers};
    params.peer_key_size = peer_key != NULL ? strlen(peer_key) : 0;
    struct strait_peer *known = peer_of(flow->pool->party, peer);
    ck_assert_int_eq(STRAIT_OK, strait_start(flow->transfer, known, &params));
    strait_peer_remove(known);
}

void flow_start_as(struct flow *flow, struct test_pool *peer, const char *peer_key)
{
    flow_start_one_of(flow, peer, peer_key, 0);
}

void flow_start(struct flow *flow, struct test_pool *peer)
{
    flow_start_as(flow, peer, NULL);
}

void flow_release(struct flow *flow)
{
    strait_release(flow->transfer);
    flow->transfer = NULL;
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static uint64_t *told_of(struct flow *flow, uint32_t group, uint32_t id)
{
    const struct geometry *g = &flow->pool->geometry;
    ck_assert(group < g->groups && id < g->pages);
    if (flow->told == NULL)
        flow->told = keep((size_t)g->groups * g->pages * sizeof(*flow->told));
    return &flow->told[(size_t)group * g->pages + id];
}

/* Of all that the group has of the page; not 0. */
static uint64_t sum_of_page(const struct test_pool *pool, uint32_t group, uint32_t id)
{
    const struct geometry *g = &pool->geometry;
    uint64_t sum = 1;
    for (uint32_t r = group * group_regions(g); r < (group + 1) * group_regions(g); r++)
        for (uint32_t row = 0; row < g->rows; row++)
            sum =
                XXH3_64bits_withSeed(pool_page(pool, r, id) + (size_t)row * row_stride(g), row_bytes_of(g, group), sum);
    return sum | 1;
}

static bool find_id(const struct flow *flow, uint32_t group, uint32_t index, uint32_t *id)
{
    for (uint32_t i = 0; i < flow->list_count; i++) {
        const struct strait_page_list *list = &flow->lists[i];
        if (list->group != group || index < list->first || index - list->first >= list->count)
            continue;
        *id = list->ids != NULL ? list->ids[index - list->first] : list->first_id + (index - list->first);
        return true;
    }
    return false;
}

static void on_pages(struct flow *flow, const struct strait_event *event)
{
    uint32_t expected;
    ck_assert(!flow->decided);
    ck_assert_int_eq(STRAIT_TRANSFERRING, event->state);
    flow->state = event->state;
    flow->moved = true;
    ck_assert_uint_gt(event->landed_count, 0);
    for (uint32_t l = 0; l < event->landed_count; l++) {
        const struct strait_page_list *list = &event->landed[l];
        for (uint32_t i = 0; i < list->count; i++) {
            const uint32_t id = list->ids != NULL ? list->ids[i] : list->first_id + i;
            ck_assert(find_id(flow, list->group, list->first + i, &expected) && expected == id);
            ck_assert_msg(*told_of(flow, list->group, id) == 0, "page %u is told of twice", id);
            *told_of(flow, list->group, id) = sum_of_page(flow->pool, list->group, id);
            flow->told_count++;
        }
    }
}

/* The library's own verdict names all pages as failed, and that of a request that never came to life none. */
static void compare_told(struct flow *flow)
{
    uint64_t expected = 0;
    for (uint32_t l = 0; l < flow->list_count; l++)
        expected += flow->lists[l].count;
    const bool all = flow->failed_count == expected || flow->failed_count >= STRAIT_FAILED_PAGES_MAX;
    ck_assert(!all || flow->told_count == 0 || flow->reason == STRAIT_REASON_LOCAL);
    if (flow->state == STRAIT_DONE)
        ck_assert_uint_eq(expected, flow->told_count);
    else if (flow->failed_count != 0 && !all)
        ck_assert_uint_eq(expected, flow->told_count + flow->failed_count);
    for (uint32_t i = 0; i < flow->failed_count && !all; i++)
        ck_assert_msg(*told_of(flow, flow->failed[i].group, flow->failed[i].id) == 0, "a page that has landed failed");
    for (uint32_t group = 0; group < flow->pool->geometry.groups && flow->told_count != 0; group++)
        for (uint32_t id = 0; id < flow->pool->geometry.pages; id++)
            if (*told_of(flow, group, id) != 0)
                ck_assert_msg(*told_of(flow, group, id) == sum_of_page(flow->pool, group, id), "page %u changed", id);
}

static void on_state(struct flow *flow, const struct strait_event *event)
{
    ck_assert_msg(!flow->decided, "a second verdict");
    if (event->state != STRAIT_FAILED)
        ck_assert_int_gt(event->state, flow->state);
    flow->state = event->state;
    flow->moved |= event->state >= STRAIT_TRANSFERRING;
    if (event->state != STRAIT_FAILED && event->state != STRAIT_DONE)
        return;
    flow->decided = true;
    flow->decided_at = uv_hrtime();
    flow->reason = event->reason;
    flow->drained = event->drained;
    flow->drained_at = flow->decided_at;
    ck_assert(event->state == STRAIT_FAILED || event->drained);
    ck_assert_int_eq(event->state == STRAIT_FAILED, event->reason != STRAIT_REASON_NONE);
    ck_assert(event->data_size == 0 || (event->state == STRAIT_DONE && flow->sink));
    snprintf(flow->text, sizeof(flow->text), "%s", event->text != NULL ? event->text : "");
    flow->aux_size = event->data_size;
    flow->aux = keep(event->data_size);
    if (event->data_size != 0)
        memcpy(flow->aux, event->data, event->data_size);
    flow->raw_bytes = event->raw_bytes;
    flow->wire_bytes = event->wire_bytes;
    snprintf(flow->peer, sizeof(flow->peer), "%s", event->peer);
    flow->failed_count = event->failed_count;
    flow->failed = keep(event->failed_count * sizeof(*flow->failed));
    if (event->failed_count != 0)
        memcpy(flow->failed, event->failed, event->failed_count * sizeof(*flow->failed));
    if (flow->tells)
        compare_told(flow);
}

static void on_layer(struct flow *flow, const struct strait_event *event)
{
    ck_assert(!flow->decided);
    ck_assert_int_eq(STRAIT_TRANSFERRING, event->state);
    flow->state = event->state;
    flow->moved = true;
    ck_assert_int_lt(event->layer, LAYERS_MAX);
    ck_assert_int_ge(event->layer, 0);
    ck_assert_uint_eq(0, flow->layers[event->layer]++);
    flow->layer_count++;
}

void flow_event(struct flow *flow, const struct strait_event *event)
{
    if (event->type == STRAIT_EVENT_STATE) {
        on_state(flow, event);
    } else if (event->type == STRAIT_EVENT_LAYER) {
        on_layer(flow, event);
    } else if (event->type == STRAIT_EVENT_PAGES) {
        on_pages(flow, event);
    } else {
        ck_assert(flow->decided && !flow->drained);
        flow->drained = true;
        flow->drained_at = uv_hrtime();
    }
}

/* ---- What has come of it ----------------------------------------------------------------------------------------- */

void stays_undecided(struct flow *flow, int ms)
{
    pump_for(ms);
    ck_assert_msg(!flow->decided, "%s ended: %s", flow->sink ? "sink" : "source", flow->text);
}

void ends_done(struct flow *flow)
{
    WAIT(flow->decided);
    ck_assert_msg(flow->state == STRAIT_DONE, "%s failed: %s %s", flow->sink ? "sink" : "source",
                  strait_reason_string((int)flow->reason), flow->text);
}

void ends_failed(struct flow *flow, enum strait_reason reason)
{
    WAIT(flow->decided && flow->drained);
    ck_assert_msg(flow->state == STRAIT_FAILED && flow->reason == reason, "%s: %s instead of %s (%s)",
                  flow->sink ? "sink" : "source", strait_reason_string((int)flow->reason),
                  strait_reason_string((int)reason), flow->text);
}

void ends(struct flow *sink, struct flow *source)
{
    WAIT(sink->decided && sink->drained && source->decided && source->drained);
}

void landed(struct flow *sink, const struct flow *source)
{
    uint32_t from, to;
    for (uint32_t l = 0; l < sink->list_count; l++) {
        const struct strait_page_list *list = &sink->lists[l];
        for (uint32_t i = 0; i < list->count; i++) {
            ck_assert(find_id(sink, list->group, list->first + i, &to));
            if (find_id(source, list->group, list->first + i, &from))
                pool_copy_page(sink->pool, sink->pool->image, to, source->pool, source->pool->bytes, from, list->group);
        }
    }
}

void undefined(struct flow *sink)
{
    uint32_t id;
    for (uint32_t l = 0; l < sink->list_count; l++)
        for (uint32_t i = 0; i < sink->lists[l].count; i++)
            if (find_id(sink, sink->lists[l].group, sink->lists[l].first + i, &id))
                pool_copy_page(sink->pool, sink->pool->image, id, sink->pool, sink->pool->bytes, id,
                               sink->lists[l].group);
}

void arrives(struct flow *sink, struct flow *source)
{
    ends_done(sink);
    ends_done(source);
    landed(sink, source);
    ck_assert_msg(pool_as_imagined(sink->pool), "the sink's pool differs");
    ck_assert_msg(pool_as_imagined(source->pool), "the source's pool differs");
}

void reads(struct flow *flow, const struct test_pool *peer, struct strait_page_list from)
{
    ends_done(flow);
    const struct flow source = {.pool = (struct test_pool *)peer, .lists = &from, .list_count = 1};
    landed(flow, &source);
    ck_assert_msg(pool_as_imagined(flow->pool), "the reader's pool differs");
    ck_assert_msg(pool_as_imagined(peer), "the owner's pool differs");
}

bool failed_page(const struct flow *sink, uint32_t group, uint32_t id)
{
    for (uint32_t i = 0; i < sink->failed_count; i++)
        if (sink->failed[i].group == group && sink->failed[i].id == id)
            return true;
    return false;
}

void pull(struct flow *sink, struct flow *source)
{
    flow_start(sink, source->pool);
    arrives(sink, source);
}

/* ---- Transfers of all pages -------------------------------------------------------------------------------------- */

const char *const codings[] = {"auto", "raw", "top16", "tiered"};
const struct geometry gpu_small = {.pages = 64, .layers = 2, .gpu = 1, .sink_gpu = 2};
const struct geometry gpu_large = {.pages = 128, .layers = 8, .gpu = 1, .sink_gpu = 2};

struct fake_control *fake_control(void)
{
    void *plugin = dlopen(DEVICE_PLUGIN, RTLD_NOW);
    ck_assert_msg(plugin != NULL, "%s", dlerror());
    struct fake_control *found = dlsym(plugin, "fake_device_control");
    ck_assert_msg(found != NULL, "not the fake plugin");
    return found;
}

struct fake_handle event_make(void)
{
    struct fake_handle event = {.pid = getpid(), .fd = eventfd(0, EFD_CLOEXEC)};
    ck_assert_int_ge(event.fd, 0);
    return event;
}

void event_complete(const struct fake_handle *event)
{
    ck_assert_int_eq(0, eventfd_write(event->fd, 1));
}

void event_fail(const struct fake_handle *event)
{
    ck_assert_int_eq(0, eventfd_write(event->fd, FAKE_EVENT_FAILED));
}

struct move move_begin(struct test_pool *source, struct test_pool *sink)
{
    static uint32_t turn;
    char name[24];
    snprintf(name, sizeof(name), "move %u", ++turn);
    pool_fill(source, turn);
    struct move move = {offer_all(source, name), expect_all(sink, name, 0)};
    flow_start(move.expectation, source);
    return move;
}

void move_all(struct test_pool *source, struct test_pool *sink)
{
    struct move move = move_begin(source, sink);
    arrives(move.expectation, move.offer);
    flow_release(move.expectation);
    flow_release(move.offer);
}

double wire_bytes(struct test_pool *source, const char *wire)
{
    char path[64];
    snprintf(path, sizeof(path), "counters.wire_bytes_%s", wire);
    WAIT(stat_of(source->party, "gauges.send_slots_used") == 0);
    return stat_of(source->party, path);
}

void move_until(struct test_pool *source, struct test_pool *sink, const char *wire)
{
    const double before = wire_bytes(source, wire);
    for (int i = 0; i < 400 && wire_bytes(source, wire) == before; i++) {
        move_all(source, sink);
        pump(5);
    }
    ck_assert_msg(wire_bytes(source, wire) > before, "nothing went by %s: %s", wire, stats_text(source->party));
}

void move_without(struct test_pool *source, struct test_pool *sink, const char *wire)
{
    for (int i = 0; i < 3; i++) {
        move_all(source, sink);
        pump_for(20);
    }
    ck_assert_double_eq(0, wire_bytes(source, wire));
    ck_assert_double_gt(wire_bytes(source, "pinned"), 0);
}

struct move move_slowly(const struct pair *pair)
{
    fake_control()->delay_us = 50000; /* there is time for what the test does next */
    uint32_t batches = fake_control()->batches;
    struct move move = move_begin(pair->source, pair->sink);
    WAIT(fake_control()->batches >= batches + 2);
    return move;
}

void fail_device(struct pair *pair, int device, struct move move)
{
    fake_control()->fail = 1u << device;
    ends_failed(device == 0 ? move.offer : move.expectation, STRAIT_REASON_LOCAL);
    ends_failed(device == 0 ? move.expectation : move.offer, STRAIT_REASON_PEER_DOWN);
    undefined(move.expectation);
    pair_quiet(pair);
}
