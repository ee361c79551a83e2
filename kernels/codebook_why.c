#include <stdlib.h>
#include <string.h>

#include "kernels/codebook.h"
#include "kernels/codebook_file.h"

/* What is wrong with a codebook set, for people. The parser of protobuf only says that something is; here the fields
 * are walked by hand, and the first one that is not as codebook.proto has it is named, with its offset. */

#define EXPONENTS 256u

enum { FIELD_VERSION = 2, FIELD_ID = 3, FIELD_TABLES = 4 }; /* of the set */
enum { FIELD_RANKING = 3 };                                 /* of a table */
enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct walk {
    const uint8_t *src;
    size_t size;
    const char *why;
    size_t why_at;
    uint32_t tables;
    bool has_version;
    size_t id_at;      /* offset of the id's bytes; 0: none */
    uint8_t *rankings; /* of `tables` tables */
};

/* A field of a message. */
struct record {
    size_t at; /* offset of its tag */
    uint32_t field;
    enum wire_type type;
    uint64_t value;    /* of a varint */
    size_t body, size; /* offset and size of its bytes */
};

static bool blame(struct walk *walk, size_t at, const char *why)
{
    walk->why = why;
    walk->why_at = at;
    return false;
}

static bool blame_field(struct walk *walk, size_t at)
{
    return blame(walk, at, "no field of a codebook set");
}

/* A field that does not end before `end`, which is that of its table or of the file. */
static bool blame_length(struct walk *walk, size_t at, size_t end)
{
    return blame(walk, at,
                 end == walk->size ? "a field that is longer than the rest of the file, which is cut off"
                                   : "a field that is longer than its table");
}

static bool take_varint(struct walk *walk, size_t *at, size_t end, uint64_t *value)
{
    const size_t begin = *at;
    *value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (*at == end)
            return blame_length(walk, begin, end);
        const uint8_t byte = walk->src[(*at)++];
        *value |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (byte < 0x80)
            return true;
    }
    return blame_field(walk, begin);
}

static bool take_record(struct walk *walk, size_t *at, size_t end, struct record *record)
{
    uint64_t tag, size = 0;
    *record = (struct record){.at = *at};
    if (!take_varint(walk, at, end, &tag))
        return false;
    record->field = (uint32_t)(tag >> 3);
    record->type = (enum wire_type)(tag & 7);
    if (record->field == 0 || tag >> 32 != 0)
        return blame_field(walk, record->at);
    if (record->type == WIRE_VARINT)
        return take_varint(walk, at, end, &record->value);
    if (record->type == WIRE_64 || record->type == WIRE_32)
        size = record->type == WIRE_64 ? 8 : 4;
    else if (record->type != WIRE_BYTES)
        return blame_field(walk, record->at);
    else if (!take_varint(walk, at, end, &size))
        return false;
    if (size > end - *at)
        return blame_length(walk, record->at, end);
    record->body = *at;
    record->size = (size_t)size;
    *at += record->size;
    return true;
}

static bool check_ranking(struct walk *walk, const struct record *record)
{
    bool seen[EXPONENTS] = {false};
    const uint8_t *ranking = walk->src + record->body;
    if (record->size == 0)
        return blame(walk, record->at, "a table without ranking: a partial file has such");
    if (record->size != EXPONENTS)
        return blame(walk, record->at, "a ranking that is not 256 bytes long");
    for (size_t i = 0; i < EXPONENTS; i++) {
        if (seen[ranking[i]])
            return blame(walk, record->body + i, "an exponent that its ranking names twice");
        seen[ranking[i]] = true;
    }
    memcpy(walk->rankings + (size_t)walk->tables * EXPONENTS, ranking, EXPONENTS);
    return true;
}

static bool check_table(struct walk *walk, const struct record *table)
{
    const size_t end = table->body + table->size;
    bool is_ranked = false;
    struct record record;
    for (size_t at = table->body; at < end;) {
        if (!take_record(walk, &at, end, &record))
            return false;
        if (record.field != FIELD_RANKING || record.type != WIRE_BYTES)
            continue;
        if (!check_ranking(walk, &record))
            return false;
        is_ranked = true;
    }
    if (!is_ranked)
        return blame(walk, table->at, "a table without ranking: a partial file has such");
    walk->tables++;
    return true;
}

static bool check_record(struct walk *walk, const struct record *record)
{
    switch (record->field) {
    case FIELD_VERSION:
        walk->has_version = true;
        return record->value == 1 || blame(walk, record->at, "a version of the format that this program does not read");
    case FIELD_ID:
        walk->id_at = record->body;
        return record->size == STRAIT_CODEBOOK_ID_BYTES || blame(walk, record->at, "an id that is not 16 bytes long");
    case FIELD_TABLES:
        return record->type == WIRE_BYTES ? check_table(walk, record) : blame_field(walk, record->at);
    default:
        return true;
    }
}

/* What concerns all tables. */
static bool check_set(struct walk *walk)
{
    uint8_t id[STRAIT_CODEBOOK_ID_BYTES];
    if (walk->tables == 0)
        return blame(walk, walk->size, "the end, and there was no table");
    if (walk->id_at == 0)
        return blame(walk, walk->size, "the end, and there was no id");
    if (!walk->has_version)
        return blame(walk, walk->size, "the end, and there was no version");
    if (codebook_id(id, (const uint8_t(*)[EXPONENTS])walk->rankings, walk->tables) &&
        memcmp(id, walk->src + walk->id_at, sizeof(id)) != 0)
        return blame(walk, walk->id_at, "the id, a sum of all tables, is not theirs: one is missing, or was changed");
    return blame(walk, 0, "the roles and layers of its tables are not those of a set");
}

const char *codebook_file_why(const void *src, size_t src_size, size_t *offset)
{
    struct walk walk = {.src = src, .size = src_size};
    struct record record;
    bool good = true;
    *offset = 0;
    if (src_size == 0)
        return "it is empty";
    if (!codebook_file_probe(src, src_size))
        return "it does not begin as codebook sets do";
    if (src_size > CODEBOOK_FILE_BYTES_MAX)
        return "it is too long";
    walk.rankings = malloc(src_size); /* a table takes more bytes than its ranking */
    if (walk.rankings == NULL)
        return "out of memory";
    for (size_t at = 0; good && at < src_size;)
        good = take_record(&walk, &at, src_size, &record) && check_record(&walk, &record);
    if (good)
        (void)check_set(&walk);
    free(walk.rankings);
    *offset = walk.why_at;
    return walk.why;
}
