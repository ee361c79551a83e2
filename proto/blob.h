/* Exported pools, as strait_pool_export returns them: a fixed header that every version can read, then the pool's
 * description. The client exports and imports it; tests and tools look inside.
 *
 *   offset size
 *        0    4  magic "StrP"
 *        4    2  version of the body
 *        6    2  oldest protocol version spoken by the pool's daemon
 *        8    2  newest one
 *       10    2  reserved, 0
 *       12    4  bytes of the body, <= BLOB_BODY_MAX
 *       16    8  XXH3-64 of the body
 *       24    .  body: protobuf PoolBlob (proto/strait.proto) */
#ifndef STRAIT_PROTO_BLOB_H
#define STRAIT_PROTO_BLOB_H

#include "proto/message.h"

#define BLOB_HEADER_BYTES 24u
#define BLOB_BODY_MAX     (1024u * 1024)
#define BLOB_VERSION      1u

_Static_assert(BLOB_HEADER_BYTES + BLOB_BODY_MAX == MESSAGE_BLOB_MAX, "a message takes any of them");

/* Description of one region for peers, in the pool's order (group, layer, role, position). */
struct blob_region {
    uint32_t group;
    int32_t layer;
    uint32_t role, element;
    uint32_t rows, row_bytes;
    uint32_t heads;
    uint32_t page_count;
    uint32_t layout, tokens;
    uint32_t head_first, heads_total;
};

struct pool_blob {
    struct pool_id pool;
    char address[MESSAGE_ADDRESS_MAX + 1];
    uint32_t version, version_min;
    uint8_t codebook_id[CODEBOOK_ID_BYTES]; /* all zero: none */
    char compat[STRAIT_COMPAT_BYTES_MAX + 1];
    uint32_t region_count;
    struct blob_region *regions; /* malloc'ed by blob_unpack */
};

/* On OK the caller calls blob_fini. ERR_TRUNCATED, ERR_CORRUPT, ERR_UNSUPPORTED, ERR_NO_MEMORY. */
enum strait_status blob_unpack(const void *src, size_t size, struct pool_blob *blob);
void blob_fini(struct pool_blob *blob);

/* Always sets *size. ERR_NO_SPACE, ERR_INVALID, ERR_NO_MEMORY. */
enum strait_status blob_pack(const struct pool_blob *blob, void *dst, size_t capacity, size_t *size);

/* The bits of enum strait_mismatch for two pools. */
uint32_t blob_mismatch(const struct pool_blob *here, const struct pool_blob *there);
/* Writes, for people, how they differ in these bits, each by the first region that shows it, with the figures of both.
 * Ends with NUL, cut to the capacity; returns the length of all of it. */
size_t blob_explain(const struct pool_blob *here, const struct pool_blob *there, uint32_t bits, char *dst,
                    size_t capacity);

/* A hash of what must be equal in two pools that exchange pages (everything that blob_mismatch calls fatal, except
 * versions). REQUEST carries it. */
uint64_t blob_geometry(const struct blob_region *regions, uint32_t count, struct view compat);

/* Sorts regions into the pool's order; `order` receives for each place the position that its region had before. */
void blob_sort(struct blob_region *regions, uint32_t *order, uint32_t count);

#endif
