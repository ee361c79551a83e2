/* Foreign bytes as an exported pool, as they are and behind a header that fits them. */
#include <string.h>

#include <xxhash.h>

#include "internal/bytes.h"
#include "proto/blob.h"
#include "tests/fuzz/fuzz.h"

static void check_blob(const struct pool_blob *blob)
{
    size_t size, written;
    struct pool_blob back;
    require(blob->region_count >= 1 && blob->region_count <= STRAIT_REGIONS_MAX);
    require(strlen(blob->address) <= MESSAGE_ADDRESS_MAX);
    require(blob_pack(blob, NULL, 0, &size) == STRAIT_ERR_NO_SPACE);
    uint8_t *bytes = malloc(size);
    require(bytes != NULL && blob_pack(blob, bytes, size, &written) == STRAIT_OK && written == size);
    require(blob_unpack(bytes, size, &back) == STRAIT_OK);
    require(blob_mismatch(blob, &back) == 0);
    require(blob_geometry(blob->regions, blob->region_count) == blob_geometry(back.regions, back.region_count));
    blob_fini(&back);
    free(bytes);
}

static void check_bytes(const uint8_t *data, size_t size)
{
    struct pool_blob blob;
    if (blob_unpack(data, size, &blob) != STRAIT_OK)
        return;
    check_blob(&blob);
    blob_fini(&blob);
}

/* The sum would stop nearly every change of the body. */
static void check_repaired(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size);
    require(copy != NULL);
    memcpy(copy, data, size);
    store_le32(copy + 12, (uint32_t)(size - BLOB_HEADER_BYTES));
    store_le64(copy + 16, XXH3_64bits(copy + BLOB_HEADER_BYTES, size - BLOB_HEADER_BYTES));
    check_bytes(copy, size);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_bytes(data, size);
    if (size >= BLOB_HEADER_BYTES)
        check_repaired(data, size);
    return 0;
}
