#include "proto/blob.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <strait/codec.h>
#include <xxhash.h>

#include "internal/bytes.h"
#include "internal/element.h"
#include "proto/message_table.h"

static const uint8_t magic[4] = {'S', 't', 'r', 'P'};

/* Limit on what unpacking a body may allocate: twice what 4096 regions take. */
#define UNPACK_BYTES_MAX ((size_t)4 * 1024 * 1024)

/* ---- The pool's order ----------------------------------------------------------------------------------------- */

static int compare_layers(int32_t a, int32_t b)
{
    return (a > b) - (a < b);
}

static int compare_numbers(uint32_t a, uint32_t b)
{
    return (a > b) - (a < b);
}

static int compare_regions(const struct blob_region *a, const struct blob_region *b)
{
    if (a->group != b->group)
        return compare_numbers(a->group, b->group);
    if (a->layer != b->layer)
        return compare_layers(a->layer, b->layer);
    return compare_numbers(a->role, b->role);
}

static bool regions_are_sorted(const struct blob_region *regions, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (compare_regions(&regions[i - 1], &regions[i]) > 0)
            return false;
    return true;
}

struct sorting {
    struct blob_region *regions;
    uint32_t *order;
};

/* Equal regions are ordered by position, so that the result does not depend on the sorting algorithm. */
static bool stands_before(const struct sorting *sorting, uint32_t a, uint32_t b)
{
    int compared = compare_regions(&sorting->regions[a], &sorting->regions[b]);
    return compared != 0 ? compared < 0 : sorting->order[a] < sorting->order[b];
}

static void swap(const struct sorting *sorting, uint32_t a, uint32_t b)
{
    struct blob_region region = sorting->regions[a];
    sorting->regions[a] = sorting->regions[b];
    sorting->regions[b] = region;
    uint32_t position = sorting->order[a];
    sorting->order[a] = sorting->order[b];
    sorting->order[b] = position;
}

static void sift_down(const struct sorting *sorting, uint32_t root, uint32_t count)
{
    for (uint32_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && stands_before(sorting, child, child + 1))
            child++;
        if (!stands_before(sorting, root, child))
            return;
        swap(sorting, root, child);
    }
}

/* Heapsort: sorts two arrays in step, without extra memory or bad cases. */
void blob_sort(struct blob_region *regions, uint32_t *order, uint32_t count)
{
    struct sorting sorting = {.regions = regions, .order = order};
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t root = count / 2; root-- > 0;)
        sift_down(&sorting, root, count);
    for (uint32_t end = count; end-- > 1;) {
        swap(&sorting, 0, end);
        sift_down(&sorting, 0, end);
    }
}

/* ---- What two pools have in common ---------------------------------------------------------------------------- */

static uint64_t page_bytes(const struct blob_region *region)
{
    return (uint64_t)region->rows * region->row_bytes;
}

static uint32_t region_mismatch(const struct blob_region *a, const struct blob_region *b)
{
    uint32_t bits = 0;
    if (page_bytes(a) != page_bytes(b))
        bits |= STRAIT_MISMATCH_PAGE_SIZE;
    if (a->element != b->element)
        bits |= STRAIT_MISMATCH_DTYPE;
    if (a->rows != b->rows || a->heads != b->heads || a->tokens != b->tokens || a->layout != b->layout ||
        a->head_first != b->head_first || a->heads_total != b->heads_total)
        bits |= STRAIT_MISMATCH_LAYOUT;
    return bits;
}

static bool has_layer(const struct pool_blob *blob, uint32_t group, int32_t layer)
{
    for (uint32_t i = 0; i < blob->region_count; i++)
        if (blob->regions[i].group == group && blob->regions[i].layer == layer)
            return true;
    return false;
}

static bool has_group(const struct pool_blob *blob, uint32_t group)
{
    for (uint32_t i = 0; i < blob->region_count; i++)
        if (blob->regions[i].group == group)
            return true;
    return false;
}

/* The mismatch of a region that the other pool lacks: its layer is missing there, or looks different there. */
static uint32_t missing_mismatch(const struct blob_region *region, const struct pool_blob *other)
{
    bool layer_is_missing = has_group(other, region->group) && !has_layer(other, region->group, region->layer);
    return layer_is_missing ? STRAIT_MISMATCH_LAYERS : STRAIT_MISMATCH_LAYOUT;
}

#define REGION_BITS 4u /* PAGE_SIZE to LAYERS: of regions */

/* How two pools differ, and for each bit the first pair of regions that shows it; NULL: it is missing there. */
struct difference {
    uint32_t bits;
    struct {
        const struct blob_region *here, *there;
    } first[REGION_BITS];
};

static void differ(struct difference *difference, uint32_t bits, const struct blob_region *here,
                   const struct blob_region *there)
{
    const uint32_t fresh = bits & ~difference->bits;
    for (uint32_t i = 0; fresh >> i != 0; i++)
        if ((fresh >> i & 1) != 0) {
            difference->first[i].here = here;
            difference->first[i].there = there;
        }
    difference->bits |= bits;
}

/* Walks both lists in their common order, so that one missing layer does not make everything after it look wrong. */
static void compare_pools(struct difference *difference, const struct pool_blob *here, const struct pool_blob *there)
{
    uint32_t i = 0, j = 0;
    while (i < here->region_count || j < there->region_count) {
        const struct blob_region *a = i < here->region_count ? &here->regions[i] : NULL;
        const struct blob_region *b = j < there->region_count ? &there->regions[j] : NULL;
        int compared = a == NULL ? 1 : b == NULL ? -1 : compare_regions(a, b);
        if (compared < 0)
            differ(difference, missing_mismatch(a, there), a, NULL);
        else if (compared > 0)
            differ(difference, missing_mismatch(b, here), NULL, b);
        else
            differ(difference, region_mismatch(a, b), a, b);
        i += compared <= 0;
        j += compared >= 0;
    }
    if (memcmp(here->codebook_id, there->codebook_id, CODEBOOK_ID_BYTES) != 0)
        difference->bits |= STRAIT_MISMATCH_CODEBOOK;
    if (here->version_min > there->version || there->version_min > here->version)
        difference->bits |= STRAIT_MISMATCH_VERSION;
    if (strcmp(here->compat, there->compat) != 0)
        difference->bits |= STRAIT_MISMATCH_COMPAT;
}

uint32_t blob_mismatch(const struct pool_blob *here, const struct pool_blob *there)
{
    struct difference difference = {.bits = 0};
    compare_pools(&difference, here, there);
    return difference.bits;
}

/* ---- The same for people -------------------------------------------------------------------------------------- */

struct text {
    char *dst;
    size_t capacity, size; /* size: of all of it, also beyond the capacity */
};

__attribute__((format(printf, 2, 3))) static void write_text(struct text *text, const char *format, ...)
{
    const size_t used = text->size < text->capacity ? text->size : text->capacity;
    va_list arguments;
    va_start(arguments, format);
    const int size =
        vsnprintf(used < text->capacity ? text->dst + used : NULL, text->capacity - used, format, arguments);
    va_end(arguments);
    text->size += size > 0 ? (size_t)size : 0;
}

static void write_place(struct text *text, const struct blob_region *region)
{
    static const char *const roles[] = {"other", "K", "V", "KV"};
    write_text(text, "group %" PRIu32, region->group);
    if (region->layer >= 0)
        write_text(text, ", layer %" PRId32, region->layer);
    write_text(text, ", %s: ", region->role < sizeof(roles) / sizeof(*roles) ? roles[region->role] : "unknown");
}

static uint32_t count_layers(const struct pool_blob *blob, uint32_t group)
{
    uint32_t count = 0;
    const struct blob_region *before = NULL;
    for (uint32_t i = 0; i < blob->region_count; i++) {
        const struct blob_region *region = &blob->regions[i];
        if (region->group != group)
            continue;
        count += before == NULL || region->layer != before->layer;
        before = region;
    }
    return count;
}

static uint32_t count_regions(const struct pool_blob *blob, uint32_t group)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < blob->region_count; i++)
        count += blob->regions[i].group == group;
    return count;
}

/* A region, or all of a layer, that one of the pools lacks. */
static void write_missing(struct text *text, uint32_t bit, const struct pool_blob *pools[2],
                          const struct blob_region *here, const struct blob_region *there)
{
    const struct blob_region *region = here != NULL ? here : there;
    const bool layers = bit == STRAIT_MISMATCH_LAYERS;
    uint32_t (*count)(const struct pool_blob *blob, uint32_t group) = layers ? count_layers : count_regions;
    write_place(text, region);
    write_text(text, "missing %s, %" PRIu32 " %s here, %" PRIu32 " there", here != NULL ? "there" : "here",
               count(pools[0], region->group), layers ? "layers" : "regions", count(pools[1], region->group));
}

static const char *layout_name(uint32_t layout)
{
    static const char *const names[] = {"order not declared", "order NHD", "order HND"};
    return layout < sizeof(names) / sizeof(*names) ? names[layout] : "unknown order";
}

/* Which heads of the model a region has. */
static void write_heads(struct text *text, const struct blob_region *region)
{
    if (region->heads_total == 0)
        write_text(text, "heads not numbered");
    else
        write_text(text, "heads %" PRIu32 " to %" PRIu32 " of %" PRIu32, region->head_first,
                   region->head_first + region->heads - 1, region->heads_total);
}

static void write_pair(struct text *text, uint32_t bit, const struct blob_region *here, const struct blob_region *there)
{
    write_place(text, here);
    if (bit == STRAIT_MISMATCH_PAGE_SIZE)
        write_text(text, "pages of %" PRIu64 " bytes here, %" PRIu64 " there", page_bytes(here), page_bytes(there));
    else if (bit == STRAIT_MISMATCH_DTYPE)
        write_text(text, "%s here, %s there", element_name(here->element), element_name(there->element));
    else if (here->rows != there->rows)
        write_text(text, "%" PRIu32 " rows of %" PRIu32 " bytes here, %" PRIu32 " of %" PRIu32 " there", here->rows,
                   here->row_bytes, there->rows, there->row_bytes);
    else if (here->heads != there->heads)
        write_text(text, "%" PRIu32 " heads here, %" PRIu32 " there", here->heads, there->heads);
    else if (here->tokens != there->tokens)
        write_text(text, "pages of %" PRIu32 " tokens here, %" PRIu32 " there", here->tokens, there->tokens);
    else if (here->layout != there->layout)
        write_text(text, "%s here, %s there", layout_name(here->layout), layout_name(there->layout));
    else {
        write_heads(text, here);
        write_text(text, " here, ");
        write_heads(text, there);
        write_text(text, " there");
    }
}

static void write_codebook(struct text *text, const uint8_t id[CODEBOOK_ID_BYTES])
{
    static const uint8_t none[CODEBOOK_ID_BYTES];
    const bool is_none = memcmp(id, none, sizeof(none)) == 0;
    for (uint32_t i = 0; i < CODEBOOK_ID_BYTES && !is_none; i++)
        write_text(text, "%02x", id[i]);
    write_text(text, "%s", is_none ? "none" : "");
}

size_t blob_explain(const struct pool_blob *here, const struct pool_blob *there, uint32_t bits, char *dst,
                    size_t capacity)
{
    const struct pool_blob *pools[] = {here, there};
    struct difference difference = {.bits = 0};
    struct text text = {.dst = dst, .capacity = capacity};
    compare_pools(&difference, here, there);
    if (capacity > 0)
        dst[0] = '\0';
    for (uint32_t bit = 1, i = 0; (difference.bits & bits) >> i != 0; bit <<= 1, i++) {
        if ((difference.bits & bits & bit) == 0)
            continue;
        write_text(&text, "%s", text.size > 0 ? "; " : "");
        if (bit == STRAIT_MISMATCH_CODEBOOK) {
            write_text(&text, "codebook set ");
            write_codebook(&text, here->codebook_id);
            write_text(&text, " here, ");
            write_codebook(&text, there->codebook_id);
            write_text(&text, " there: pages are coded without tables");
        } else if (bit == STRAIT_MISMATCH_VERSION) {
            write_text(&text, "protocol versions %" PRIu32 " to %" PRIu32 " here, %" PRIu32 " to %" PRIu32 " there",
                       here->version_min, here->version, there->version_min, there->version);
        } else if (bit == STRAIT_MISMATCH_COMPAT) {
            write_text(&text, "compatibility token \"%s\" here, \"%s\" there", here->compat, there->compat);
        } else if (difference.first[i].here != NULL && difference.first[i].there != NULL) {
            write_pair(&text, bit, difference.first[i].here, difference.first[i].there);
        } else {
            write_missing(&text, bit, pools, difference.first[i].here, difference.first[i].there);
        }
    }
    return text.size;
}

#define GEOMETRY_WORDS 9u

uint64_t blob_geometry(const struct blob_region *regions, uint32_t count, struct view compat)
{
    uint64_t hash = XXH3_64bits_withSeed(compat.data, compat.size, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct blob_region *region = &regions[i];
        const uint32_t words[GEOMETRY_WORDS] = {region->group, (uint32_t)region->layer, region->role,  region->element,
                                                region->rows,  region->row_bytes,       region->heads, region->layout,
                                                region->tokens};
        const uint32_t heads[] = {region->head_first, region->heads_total};
        hash = XXH3_64bits_withSeed(words, sizeof(words), hash);
        if (region->heads_total != 0) /* without it the hash is that of earlier releases */
            hash = XXH3_64bits_withSeed(heads, sizeof(heads), hash);
    }
    return hash;
}

/* ---- The body ------------------------------------------------------------------------------------------------- */

/* The body as the tables of fields see it. */
struct body {
    struct pool_id pool;
    struct view address, codebook_id, compat;
    uint32_t region_count;
    const struct blob_region *regions;
};

static enum strait_status blob_region_check(const void *plain)
{
    const struct blob_region *region = plain;
    return corrupt_unless(page_bytes(region) <= STRAIT_PAGE_BYTES_MAX &&
                          heads_are_valid(region->head_first, region->heads, region->heads_total));
}

MESSAGE(blob_region, struct blob_region, BlobRegion) = {
    U32(blob_region, group, 0, STRAIT_GROUPS_MAX - 1),
    I32(blob_region, layer, -1, INT32_MAX),
    KNOWN(blob_region, role, STRAIT_ROLE_OTHER, STRAIT_ROLE_KV),
    KNOWN(blob_region, element, STRAIT_ELEMENT_BYTES, STRAIT_ELEMENT_FP8_E5M2),
    U32(blob_region, rows, 1, STRAIT_PAGE_BYTES_MAX),
    U32(blob_region, row_bytes, 1, STRAIT_PAGE_BYTES_MAX),
    U32(blob_region, heads, 0, UINT32_MAX),
    U32(blob_region, page_count, 1, UINT32_MAX),
    KNOWN(blob_region, layout, STRAIT_LAYOUT_NONE, STRAIT_LAYOUT_HND),
    U32(blob_region, tokens, 0, UINT32_MAX),
    U32(blob_region, head_first, 0, UINT32_MAX),
    U32(blob_region, heads_total, 0, UINT32_MAX),
};
static const struct message_layout blob_region_layout = LAYOUT(blob_region, blob_region, blob_region_check);

static enum strait_status body_check(const void *plain)
{
    const struct body *body = plain;
    return corrupt_unless(regions_are_sorted(body->regions, body->region_count) &&
                          compat_is_valid((const char *)body->compat.data, body->compat.size));
}

MESSAGE(body, struct body, PoolBlob) = {
    POOL(body, pool),
    ADDRESS(body, address),
    BYTES_OR_NONE(body, codebook_id, CODEBOOK_ID_BYTES),
    LIST(body, regions, region_count, blob_region, 1, STRAIT_REGIONS_MAX),
    BYTES(body, compat, 0, STRAIT_COMPAT_BYTES_MAX),
};
static const struct message_layout body_layout = LAYOUT(body, pool_blob, body_check);

/* ---- Unpacking ------------------------------------------------------------------------------------------------ */

struct header {
    uint16_t body_version, version_min, version;
    uint32_t body_bytes;
};

/* Every version has this header, with this sum of its body. */
static enum strait_status header_read(const uint8_t *src, size_t size, struct header *header)
{
    if (memcmp(src, magic, size < sizeof(magic) ? size : sizeof(magic)) != 0)
        return STRAIT_ERR_CORRUPT;
    if (size < BLOB_HEADER_BYTES)
        return STRAIT_ERR_TRUNCATED;
    header->body_version = load_le16(src + 4);
    header->version_min = load_le16(src + 6);
    header->version = load_le16(src + 8);
    header->body_bytes = load_le32(src + 12);
    if (load_le16(src + 10) != 0 || header->body_version == 0 || header->body_bytes > BLOB_BODY_MAX)
        return STRAIT_ERR_CORRUPT;
    if (header->version_min == 0 || header->version_min > header->version)
        return STRAIT_ERR_CORRUPT;
    if (size - BLOB_HEADER_BYTES < header->body_bytes)
        return STRAIT_ERR_TRUNCATED;
    bool sound = size - BLOB_HEADER_BYTES == header->body_bytes &&
                 XXH3_64bits(src + BLOB_HEADER_BYTES, header->body_bytes) == load_le64(src + 16);
    return corrupt_unless(sound);
}

static enum strait_status body_copy(const struct body *body, const struct header *header, struct pool_blob *blob)
{
    struct pool_blob copy = {.pool = body->pool, .version = header->version, .version_min = header->version_min};
    copy.regions = malloc(body->region_count * sizeof(*copy.regions));
    if (copy.regions == NULL)
        return STRAIT_ERR_NO_MEMORY;
    memcpy(copy.regions, body->regions, body->region_count * sizeof(*copy.regions));
    copy.region_count = body->region_count;
    if (body->address.size > 0)
        memcpy(copy.address, body->address.data, body->address.size);
    if (body->codebook_id.size > 0)
        memcpy(copy.codebook_id, body->codebook_id.data, CODEBOOK_ID_BYTES);
    if (body->compat.size > 0)
        memcpy(copy.compat, body->compat.data, body->compat.size);
    *blob = copy;
    return STRAIT_OK;
}

static enum strait_status body_unpack(struct bump *bump, const uint8_t *src, const struct header *header,
                                      struct pool_blob *blob)
{
    struct body body = {.region_count = 0};
    ProtobufCAllocator allocator = bump_allocator(bump);
    const Strait__Wire__PoolBlob *wire = strait__wire__pool_blob__unpack(&allocator, header->body_bytes, src);
    enum strait_status status = wire == NULL ? STRAIT_ERR_CORRUPT : fields_unpack(&body_layout, &body, wire, bump);
    if (status == STRAIT_OK)
        status = body_copy(&body, header, blob);
    else if (status != STRAIT_ERR_UNSUPPORTED)
        status = bump->out_of_memory ? STRAIT_ERR_NO_MEMORY : STRAIT_ERR_CORRUPT;
    return status;
}

enum strait_status blob_unpack(const void *src, size_t size, struct pool_blob *blob)
{
    struct header header;
    struct bump bump;
    enum strait_status status = header_read(src, size, &header);
    if (status != STRAIT_OK)
        return status;
    if (header.body_version != BLOB_VERSION)
        return STRAIT_ERR_UNSUPPORTED;
    bump_init(&bump, UNPACK_BYTES_MAX);
    status = body_unpack(&bump, (const uint8_t *)src + BLOB_HEADER_BYTES, &header, blob);
    bump_fini(&bump);
    return status;
}

void blob_fini(struct pool_blob *blob)
{
    free(blob->regions);
    *blob = (struct pool_blob){.region_count = 0};
}

/* ---- Packing -------------------------------------------------------------------------------------------------- */

static struct body body_of(const struct pool_blob *blob)
{
    static const uint8_t none[CODEBOOK_ID_BYTES];
    bool has_codebook = memcmp(blob->codebook_id, none, sizeof(none)) != 0;
    return (struct body){.pool = blob->pool,
                         .address = view_of(blob->address, strnlen(blob->address, sizeof(blob->address))),
                         .codebook_id = view_of(blob->codebook_id, has_codebook ? CODEBOOK_ID_BYTES : 0),
                         .region_count = blob->region_count,
                         .regions = blob->regions,
                         .compat = view_of(blob->compat, strnlen(blob->compat, sizeof(blob->compat) - 1))};
}

static enum strait_status body_pack(struct bump *bump, const struct pool_blob *blob, uint8_t *dst, size_t capacity,
                                    size_t *size)
{
    Strait__Wire__PoolBlob wire;
    struct body body = body_of(blob);
    enum strait_status status = fields_pack(&body_layout, &wire, &body, bump);
    if (status != STRAIT_OK)
        return status == STRAIT_ERR_NO_MEMORY ? status : STRAIT_ERR_INVALID;
    size_t body_bytes = strait__wire__pool_blob__get_packed_size(&wire);
    *size = BLOB_HEADER_BYTES + body_bytes;
    if (dst == NULL || capacity < *size)
        return STRAIT_ERR_NO_SPACE;
    strait__wire__pool_blob__pack(&wire, dst + BLOB_HEADER_BYTES);
    memcpy(dst, magic, sizeof(magic));
    store_le16(dst + 4, BLOB_VERSION);
    store_le16(dst + 6, (uint16_t)blob->version_min);
    store_le16(dst + 8, (uint16_t)blob->version);
    store_le16(dst + 10, 0);
    store_le32(dst + 12, (uint32_t)body_bytes);
    store_le64(dst + 16, XXH3_64bits(dst + BLOB_HEADER_BYTES, body_bytes));
    return STRAIT_OK;
}

enum strait_status blob_pack(const struct pool_blob *blob, void *dst, size_t capacity, size_t *size)
{
    struct bump bump;
    *size = 0;
    if (blob->version > UINT16_MAX || blob->version_min == 0 || blob->version_min > blob->version)
        return STRAIT_ERR_INVALID;
    bump_init(&bump, SIZE_MAX);
    enum strait_status status = body_pack(&bump, blob, dst, capacity, size);
    bump_fini(&bump);
    return status;
}
