#include "kernels/table_image.h"

#include <string.h>

#include "kernels/block.h"
#include "kernels/codebook.h"

_Static_assert(sizeof(struct table_image) % 16 == 0, "bulk copies");

static uint32_t tiers_of(unsigned rank)
{
    if (rank < TIER2_RANK)
        return rank;
    return 3u | (rank < TIER3_RANK ? rank - TIER2_RANK : 3u) << 16;
}

static uint8_t tier3_of(unsigned rank)
{
    if (rank < TIER3_RANK)
        return 0;
    return (uint8_t)(rank < TIER4_RANK ? rank - TIER3_RANK : 15);
}

static void make_table(struct table_image *image, const struct table *table)
{
    memset(image, 0, sizeof(*image));
    for (unsigned e = 0; e < 256; e++) {
        unsigned rank = table->rank[e];
        image->tiers[e] = tiers_of(rank);
        image->tier3[e] = image->tier3[e + 256] = tier3_of(rank);
        image->top16[e] = rank < TOP16_RANKS ? rank : IMAGE_ESCAPE;
    }
    memcpy(image->first, table->exponent, TIER3_RANK);
    memcpy(image->third, table->exponent + TIER3_RANK, TIER4_RANK - TIER3_RANK);
    memcpy(image->codes, table->exponent, TOP16_RANKS);
    memcpy(image->rank, table->rank, 256);
}

size_t strait_codebook_image_size(const struct strait_codebook *codebook)
{
    return IMAGE_HEADER_BYTES + (size_t)codebook->count * sizeof(struct table_image);
}

enum strait_status strait_codebook_image(const struct strait_codebook *codebook, void *dst, size_t dst_capacity)
{
    uint8_t *at = dst;
    struct table_image image;
    if (dst == NULL || dst_capacity < strait_codebook_image_size(codebook))
        return STRAIT_ERR_NO_SPACE;
    memset(at, 0, IMAGE_HEADER_BYTES);
    memcpy(at, codebook->id, STRAIT_CODEBOOK_ID_BYTES);
    for (uint32_t t = 0; t < codebook->count; t++) {
        make_table(&image, &codebook->tables[t]);
        memcpy(at + IMAGE_HEADER_BYTES + t * sizeof(image), &image, sizeof(image));
    }
    return STRAIT_OK;
}
