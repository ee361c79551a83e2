#include "collective/engine/peer_plan.h"

#include <stdlib.h>
#include <string.h>

#include "collective/engine/levels.h"
#include "collective/engine/peer_gpu.h"
#include "internal/bytes.h"
#include "kernels/chunk.h"

#define LINE    128u
#define RAW_MAX (UINT64_C(1) << 40)
#define MIB     (1u << 20)
#define LEAST   (8 * MIB) /* of a piece */

enum { PIECES = 8 }; /* of a message, approximately */

static uint64_t lines(uint64_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* ---- Tuning ------------------------------------------------------------------------------------------------------ */

static uint32_t piece_for(int ranks)
{
    return ranks <= 2 ? 32 * MIB : ranks <= 4 ? 16 * MIB : 8 * MIB;
}

static bool read_number(const char *word, const char *name, uint32_t least, uint32_t most, uint32_t *number)
{
    const size_t size = strlen(name);
    if (strncmp(word, name, size) != 0 || word[size] != '=')
        return false;
    char *end;
    const unsigned long value = strtoul(word + size + 1, &end, 10);
    if (end == word + size + 1 || *end != '\0' || value < least || value > most)
        return false;
    *number = (uint32_t)value;
    return true;
}

static bool read_word(struct peer_tuning *tuning, const char *word)
{
    static const char *const crossings[] = {"engine", "kernel"};
    for (uint32_t i = 0; i < 2; i++)
        if (strcmp(word, crossings[i]) == 0) {
            tuning->crossing = i;
            tuning->open &= ~(uint32_t)PEER_OPEN_DIRECT;
            return true;
        }
    if (strcmp(word, "direct") == 0) {
        tuning->direct = 1;
        tuning->bare = tuning->open = 0;
        return true;
    }
    if (strcmp(word, "trace") == 0 || strcmp(word, "flat") == 0) {
        *(word[0] == 't' ? &tuning->trace : &tuning->flat) = 1;
        return true;
    }
    uint32_t kib;
    if (read_number(word, "piece", 32, 256 * 1024, &kib)) { /* KiB */
        tuning->piece = (kib * 1024 + PEER_PAGE - 1) / PEER_PAGE * PEER_PAGE;
        return true;
    }
    if (read_number(word, "bare", 0, 1024, &tuning->bare) || read_number(word, "cross", 1, 2, &tuning->cross)) {
        tuning->open = 0;
        return true;
    }
    return read_number(word, "blocks", 1, 512, &tuning->blocks) || read_number(word, "sms", 0, 1024, &tuning->sms) ||
           read_number(word, "encoders", 1, PEER_ENCODERS_MAX, &tuning->encoders) ||
           read_number(word, "decoders", 1, PEER_DECODERS_MAX, &tuning->decoders) ||
           read_number(word, "encoder_sms", 0, 1024, &tuning->encoder_sms) ||
           read_number(word, "decoder_sms", 0, 1024, &tuning->decoder_sms);
}

bool peer_tuning_of(struct peer_tuning *tuning, const char *text, int ranks)
{
    const struct peer_tuning best = {.crossing = PEER_BY_ENGINE,
                                     .piece = piece_for(ranks),
                                     .blocks = 32,
                                     .encoders = 2,
                                     .encoder_sms = 56,
                                     .decoders = 2,
                                     .decoder_sms = 144,
                                     .bare = 4,
                                     .cross = 1,
                                     .open = PEER_OPEN_SHARE | PEER_OPEN_DIRECT};
    char words[128] = "";
    *tuning = best;
    if (text == NULL)
        return true;
    strncpy(words, text, sizeof(words) - 1);
    char *rest = words;
    for (const char *word; (word = strsep(&rest, ",")) != NULL;)
        if (!read_word(tuning, word)) {
            *tuning = best;
            return false;
        }
    return true;
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

/* A bound depends on sizes only, but the call requires an address. */
static uint64_t bound_of(uint32_t page, uint32_t count)
{
    static uint64_t somewhere;
    const struct strait_region region = {
        .base = &somewhere, .page_stride = page, .row_stride = page, .page_count = count, .rows = 1, .row_bytes = page};
    const struct strait_pages pages = {.regions = &region, .region_count = 1, .id_count = count};
    return strait_encode_bound(&pages);
}

/* Most pages of a piece: messages get several pieces, but none so small that launching is most of its cost. */
static uint64_t most_of(uint64_t pages, const struct peer_tuning *tuning)
{
    const uint64_t most = tuning->piece / PEER_PAGE, share = pages / PIECES, least = LEAST / PEER_PAGE;
    const uint64_t wanted = share > least ? share : least;
    return tuning->flat != 0 || wanted > most ? most : wanted;
}

bool peer_cut_of(struct peer_cut *cut, coll_type type, uint64_t count, const struct peer_tuning *tuning)
{
    const uint64_t size = type == COLL_FP32 ? 4 : 2;
    if (count > RAW_MAX / size || count * size < PEER_PAGE)
        return false;
    const uint64_t bytes = count * size, pages = bytes / PEER_PAGE, most = most_of(pages, tuning);
    const uint64_t ramp = tuning->flat != 0 ? 0 : most / 4, front = tuning->bare == 0 ? 2 : 0;
    const uint64_t ends = front == 0 ? 3 * ramp : 6 * ramp;
    *cut = (struct peer_cut){.element = type == COLL_BF16   ? STRAIT_ELEMENT_BF16
                                        : type == COLL_FP16 ? STRAIT_ELEMENT_FP16
                                                            : STRAIT_ELEMENT_FP32,
                             .pages = pages,
                             .bare = tuning->bare,
                             .tail_bytes = (uint32_t)(bytes % PEER_PAGE)};
    if (ramp > 0 && pages > ends) {
        cut->ramp = (uint32_t)ramp;
        cut->front = (uint32_t)front;
        cut->pieces = (uint32_t)(front + (pages - ends + most - 1) / most + 2);
    } else {
        const uint64_t each = ramp > 0 ? 2 * ramp : most;
        cut->pieces = (uint32_t)((pages + each - 1) / each);
    }
    return true;
}

/* Pages before a piece. */
static uint64_t begin_of(const struct peer_cut *cut, uint32_t number)
{
    const uint64_t ramp = cut->ramp, front = cut->front == 0 ? 0 : 3 * ramp;
    const uint32_t left = cut->pieces - number;
    if (ramp == 0)
        return cut->pages * number / cut->pieces;
    if (number < cut->front)
        return number * ramp;
    if (left < 2)
        return cut->pages - left * ramp;
    return front + (cut->pages - front - 3 * ramp) * (number - cut->front) / (cut->pieces - 2 - cut->front);
}

static bool is_bare(const struct peer_cut *cut, uint32_t number)
{
    return cut->bare > 0 && (number % cut->bare == 0 || number + 1 == cut->pieces);
}

static uint64_t share_of(enum strait_element element)
{
    return levels_share(element == STRAIT_ELEMENT_BF16   ? COLL_BF16
                        : element == STRAIT_ELEMENT_FP16 ? COLL_FP16
                                                         : COLL_FP32,
                        0);
}

struct peer_piece peer_piece_of(const struct peer_cut *cut, uint32_t number)
{
    const bool last = number + 1 == cut->pieces;
    struct peer_piece piece = {.at = begin_of(cut, number) * PEER_PAGE,
                               .pages = (uint32_t)(begin_of(cut, number + 1) - begin_of(cut, number)),
                               .tail_bytes = last ? cut->tail_bytes : 0,
                               .main_at = PEER_HEAD_BYTES};
    piece.bytes = (uint64_t)piece.pages * PEER_PAGE + piece.tail_bytes;
    piece.bare = is_bare(cut, number);
    if (piece.bare) {
        piece.room = PEER_HEAD_BYTES + lines(piece.bytes);
        return piece;
    }
    if (piece.tail_bytes > 0) {
        piece.tail_at = PEER_HEAD_BYTES;
        piece.tail_bound = lines(bound_of(piece.tail_bytes, 1));
        piece.main_at += piece.tail_bound;
    }
    piece.main_bound = lines(bound_of(PEER_PAGE, piece.pages));
    piece.room = lines(piece.main_at + (uint64_t)piece.pages * PEER_PAGE / 1024 * share_of(cut->element));
    if (piece.room > piece.main_at + piece.main_bound)
        piece.room = piece.main_at + piece.main_bound;
    return piece;
}

/* The chunk's header tells, except for what only the encoder finds out. */
struct peer_chunk peer_chunk_of(enum strait_element element, uint32_t pages, uint32_t page_bytes)
{
    uint8_t header[STRAIT_CHUNK_HEADER_BYTES] = {'S', 'T', 'R', 'C', CHUNK_VERSION, (uint8_t)element};
    struct strait_chunk_info info = {0};
    struct peer_chunk chunk;
    store_le32(header + 8, pages);
    store_le32(header + 12, page_bytes);
    store_le32(header + 16, UINT32_MAX / CHUNK_UNIT * CHUNK_UNIT);
    (void)strait_chunk_info(header, sizeof(header), &info);
    memcpy(chunk.begins, header, sizeof(chunk.begins));
    chunk.metadata_bytes = (uint32_t)info.metadata_bytes;
    return chunk;
}

uint64_t peer_slot_bytes(const struct peer_tuning *tuning)
{
    return PEER_HEAD_BYTES + 2 * lines(bound_of(PEER_PAGE, 1)) + lines(bound_of(PEER_PAGE, tuning->piece / PEER_PAGE));
}
