/* Foreign bytes as the parts of a codebook set that a peer sends. */
#include <string.h>

#include "daemon/memory/codebook_parts.h"
#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"

#define HEAD 10u /* of a part: size and offset, 4 bytes each, and how many bytes follow, in 2 */

/* The next part as message_unpack would let it pass. False: there is none. */
static bool next_part(const uint8_t **data, size_t *left, const uint8_t *id, struct message_codebook_part *part)
{
    if (*left < HEAD)
        return false;
    size_t size = (size_t)(*data)[8] | (size_t)(*data)[9] << 8;
    if (size > *left - HEAD)
        size = *left - HEAD;
    *part = (struct message_codebook_part){.id = {.data = id, .size = STRAIT_CODEBOOK_ID_BYTES},
                                           .size = load_le32(*data),
                                           .offset = load_le32(*data + 4),
                                           .bytes = {.data = *data + HEAD, .size = size}};
    *data += HEAD + size;
    *left -= HEAD + size;
    return part->offset <= part->size && size <= part->size - part->offset;
}

/* What is complete was never longer than it said, and is a set only if its tables have the id that was asked for. */
static void check_complete(const struct codebook_parts *parts)
{
    struct strait_codebook *set = NULL;
    require(parts->got == parts->size && parts->size > 0 && parts->size <= MESSAGE_SET_BYTES_MAX);
    if (codebook_parts_read(parts, &set) != STRAIT_OK) {
        require(set == NULL);
        return;
    }
    require(memcmp(strait_codebook_id(set), parts->id, sizeof(parts->id)) == 0);
    strait_codebook_destroy(set);
}

/* The id that was asked for, and then parts. */
void fuzz_codebook_parts(const uint8_t *data, size_t size)
{
    struct codebook_parts parts = {.size = 0};
    struct message_codebook_part part;
    enum codebook_parts_state state = CODEBOOK_PARTS_MORE;
    if (size < sizeof(parts.id))
        return;
    memcpy(parts.id, data, sizeof(parts.id));
    const uint8_t *id = data;
    data += sizeof(parts.id);
    size -= sizeof(parts.id);
    while (state == CODEBOOK_PARTS_MORE && next_part(&data, &size, id, &part)) {
        state = codebook_parts_take(&parts, &part);
        require(parts.got <= parts.size);
    }
    if (state == CODEBOOK_PARTS_ALL)
        check_complete(&parts);
    codebook_parts_fini(&parts);
}
