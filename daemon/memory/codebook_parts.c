#include "daemon/memory/codebook_parts.h"

#include <stdlib.h>
#include <string.h>

enum codebook_parts_state codebook_parts_take(struct codebook_parts *parts, const struct message_codebook_part *part)
{
    if (part->size == 0)
        return CODEBOOK_PARTS_GONE;
    if (part->size > MESSAGE_SET_BYTES_MAX)
        return CODEBOOK_PARTS_TOO_LARGE;
    if (parts->bytes == NULL) {
        parts->bytes = malloc(part->size);
        if (parts->bytes == NULL)
            return CODEBOOK_PARTS_NO_MEMORY;
        parts->size = part->size;
    }
    const uint32_t left = parts->size - parts->got;
    const uint32_t wanted = left < MESSAGE_SET_PART_MAX ? left : MESSAGE_SET_PART_MAX;
    if (memcmp(part->id.data, parts->id, sizeof(parts->id)) != 0 || part->size != parts->size ||
        part->offset != parts->got || part->bytes.size != wanted)
        return CODEBOOK_PARTS_WRONG;
    memcpy(parts->bytes + parts->got, part->bytes.data, wanted);
    parts->got += wanted;
    return parts->got == parts->size ? CODEBOOK_PARTS_ALL : CODEBOOK_PARTS_MORE;
}

enum strait_status codebook_parts_read(const struct codebook_parts *parts, struct strait_codebook **codebook)
{
    struct strait_codebook *set;
    enum strait_status status = strait_codebook_parse(parts->bytes, parts->size, &set);
    if (status != STRAIT_OK)
        return status;
    if (memcmp(strait_codebook_id(set), parts->id, sizeof(parts->id)) != 0) {
        strait_codebook_destroy(set);
        return STRAIT_ERR_CODEBOOK;
    }
    *codebook = set;
    return STRAIT_OK;
}

void codebook_parts_fini(struct codebook_parts *parts)
{
    free(parts->bytes);
    parts->bytes = NULL;
}
