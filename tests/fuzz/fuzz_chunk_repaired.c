/* Foreign bytes as a chunk whose size, codebook id and sums are right: what a sender with bad intentions writes. */
#include <string.h>

#include "internal/bytes.h"
#include "tests/fuzz/chunk_target.h"
#include "tests/fuzz/fuzz.h"

static void repair(uint8_t *chunk, size_t size)
{
    static const uint8_t no_id[STRAIT_CODEBOOK_ID_BYTES];
    store_le32(chunk + 16, (uint32_t)size);
    if (memcmp(chunk + 24, no_id, sizeof(no_id)) != 0)
        memcpy(chunk + 24, strait_codebook_id(target_codebook()), sizeof(no_id));
    repair_metadata(chunk, size);
}

/* Writes the sums of all pages as they were decoded; returns how many did not fail for another reason. */
static uint32_t repair_pages(uint8_t *chunk, size_t size)
{
    struct target_pages pages;
    uint32_t good = 0;
    target_pages_init(&pages, chunk, size);
    if (pages.count > 0)
        target_pages_decode(&pages, variant(0), chunk, size);
    for (uint32_t p = 0; p < pages.count; p++) {
        uint8_t *entry = chunk + 48 + 16 * (size_t)p;
        good += pages.status[p] == STRAIT_ERR_INTEGRITY || pages.status[p] == STRAIT_OK;
        if (pages.status[p] == STRAIT_ERR_INTEGRITY)
            store_le64(entry + 8,
                       reference_page_sum(pages.regions[p].base, pages.regions[p].row_bytes, p, load_le16(entry + 4)));
    }
    target_pages_fini(&pages);
    return good;
}

/* Now those pages pass. */
static void check_repaired(const uint8_t *chunk, size_t size, uint32_t good)
{
    struct target_pages pages;
    uint32_t passed = 0;
    target_pages_init(&pages, chunk, size);
    target_pages_decode(&pages, variant(0), chunk, size);
    for (uint32_t p = 0; p < pages.count; p++)
        passed += pages.status[p] == STRAIT_OK;
    require(passed == good);
    target_pages_fini(&pages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size = size / 16 * 16;
    if (size < 64)
        return 0;
    uint8_t *chunk = malloc(size);
    require(chunk != NULL);
    memcpy(chunk, data, size);
    repair(chunk, size);
    target_check(chunk, size);
    uint32_t good = repair_pages(chunk, size);
    if (good > 0) {
        repair_metadata(chunk, size);
        target_check(chunk, size);
        check_repaired(chunk, size, good);
    }
    free(chunk);
    return 0;
}
