#include "tools/kinds.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal/element.h"
#include "kernels/codebook_file.h"
#include "tools/report.h"

/* ---- Before kinds are joined ----------------------------------------------------------------------------------- */

static uint64_t hash_byte(uint64_t hash, uint8_t byte)
{
    return (hash ^ byte) * UINT64_C(0x100000001b3);
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++)
        hash = hash_byte(hash, (uint8_t)*text);
    return hash_byte(hash, 0);
}

struct strait_class kind_of(enum strait_element element, const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    hash = hash_text(hash_text(hash, element_name(element)), name);
    return (struct strait_class){STRAIT_ROLE_OTHER,
                                 CODEBOOK_KIND_LAYER | (int32_t)(hash >> 34 & (CODEBOOK_KIND_LAYER - 1))};
}

bool kind_is(struct strait_class class)
{
    return class.role == STRAIT_ROLE_OTHER && class.layer >= CODEBOOK_KIND_LAYER;
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

enum strait_status kinds_join(struct codebook_histogram *list, uint32_t *list_count)
{
    uint32_t begin = 0, count = 0, kind_count = 0;
    while (begin < *list_count && !kind_is(list[begin].class))
        begin++;
    while (begin + count < *list_count && kind_is(list[begin + count].class))
        count++;
    if (count == 0)
        return STRAIT_OK;
    uint64_t(*counts)[256] = malloc(count * sizeof(*counts));
    uint32_t *group = malloc(count * sizeof(*group));
    struct codebook_histogram *kinds = calloc(KINDS_MAX, sizeof(*kinds));
    enum strait_status status = STRAIT_ERR_NO_MEMORY;
    if (counts != NULL && group != NULL && kinds != NULL) {
        for (uint32_t i = 0; i < count; i++)
            memcpy(counts[i], list[begin + i].counts, sizeof(counts[i]));
        status = strait_histogram_group((const uint64_t(*)[256])counts, count, KINDS_MAX, group, &kind_count);
    }
    for (uint32_t i = 0; status == STRAIT_OK && i < count; i++) {
        struct codebook_histogram *kind = &kinds[group[i]];
        kind->class = (struct strait_class){STRAIT_ROLE_OTHER, CODEBOOK_KIND_LAYER + (int32_t)group[i]};
        for (unsigned e = 0; e < 256; e++)
            kind->counts[e] += counts[i][e];
    }
    if (status == STRAIT_OK) {
        const uint32_t behind = *list_count - begin - count;
        memmove(list + begin + kind_count, list + begin + count, behind * sizeof(*list));
        memcpy(list + begin, kinds, kind_count * sizeof(*kinds));
        *list_count = begin + kind_count + behind;
    }
    free(kinds);
    free(group);
    free(counts);
    return status;
}

/* ---- Finding --------------------------------------------------------------------------------------------------- */

uint32_t kinds_find_table(const struct strait_codebook *codebook, const uint64_t counts[256])
{
    uint64_t least = UINT64_MAX;
    uint32_t best = 0;
    for (uint32_t t = 0; t < strait_codebook_count(codebook); t++) {
        const uint64_t bits = codebook_tiered_bits(counts, strait_codebook_ranking(codebook, t));
        if (bits < least) {
            least = bits;
            best = t;
        }
    }
    return best;
}

/* ---- Reports --------------------------------------------------------------------------------------------------- */

void class_name(char name[CLASS_NAME_BYTES], struct strait_class class)
{
    if (kind_is(class))
        snprintf(name, CLASS_NAME_BYTES, "kind %" PRId32, class.layer - CODEBOOK_KIND_LAYER);
    else if (class.layer < 0)
        snprintf(name, CLASS_NAME_BYTES, "%s", role_names[class.role]);
    else
        snprintf(name, CLASS_NAME_BYTES, "%s %" PRId32, role_names[class.role], class.layer);
}

void class_json(cJSON *object, struct strait_class class)
{
    cJSON_AddStringToObject(object, "role", role_names[class.role]);
    cJSON_AddNumberToObject(object, "layer", kind_is(class) ? -1 : class.layer);
    if (kind_is(class))
        cJSON_AddNumberToObject(object, "kind", class.layer - CODEBOOK_KIND_LAYER);
}
