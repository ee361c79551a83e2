#include <stdlib.h>
#include <string.h>

#include "collective/engine/levels.h"
#include "collective/engine/peer.h"
#include "collective/engine/peer_gpu.h"
#include "internal/bytes.h"
#include "kernels/chunk.h"

#define peer_layout_LINE 128u

static uint64_t peer_layout_lines(uint64_t bytes)
{
    return (bytes + peer_layout_LINE - 1) / peer_layout_LINE * peer_layout_LINE;
}

static uint64_t flags_bytes(void)
{
    return (sizeof(struct peer_flags) + 4095) / 4096 * 4096;
}

uint64_t peer_arena_bytes(const struct peer_wire *wire, int ranks)
{
    return flags_bytes() + (uint64_t)(ranks - 1) * PEER_DEPTH * wire->slot;
}

uint64_t peer_outgoing_bytes(const struct peer_wire *wire, int ranks)
{
    return (uint64_t)(ranks - 1) * PEER_OUTGOING * wire->slot;
}

uint8_t *peer_slot(const struct peer_wire *wire, int owner, int sender, uint32_t piece)
{
    const uint64_t place = (uint64_t)(sender - (sender > owner));
    return wire->reached[owner] + flags_bytes() + (place * PEER_DEPTH + piece % PEER_DEPTH) * wire->slot;
}

uint8_t *peer_outgoing(const struct peer_wire *wire, int ranks, uint32_t place, uint32_t round)
{
    return wire->outgoing + ((uint64_t)(ranks - 1) * (round % PEER_OUTGOING) + place) * wire->slot;
}

/* First what a tail needs, then what a piece needs. BF16 has the most blocks of all types. */
static uint64_t tail_aside(void)
{
    return peer_layout_lines(peer_chunk_of(STRAIT_ELEMENT_BF16, 1, PEER_PAGE).metadata_bytes);
}

static uint64_t aside_stride(const struct peer_wire *wire)
{
    const uint32_t pages = wire->tuning.piece / PEER_PAGE;
    return tail_aside() + peer_layout_lines(peer_chunk_of(STRAIT_ELEMENT_BF16, pages, PEER_PAGE).metadata_bytes);
}

uint64_t peer_asides_bytes(const struct peer_wire *wire, int ranks)
{
    return PEER_DECODERS_MAX * (uint64_t)(ranks - 1) * aside_stride(wire);
}

uint8_t *peer_aside(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i, bool tail)
{
    const uint64_t place = decoder * (uint64_t)(ranks - 1) + i;
    return wire->asides + place * aside_stride(wire) + (tail ? 0 : tail_aside());
}

uint64_t peer_results_bytes(int ranks)
{
    return sizeof(struct strait_result) * 2 * PEER_DECODERS_MAX * (uint64_t)(ranks - 1);
}

struct strait_result *peer_results(const struct peer_wire *wire, int ranks, uint32_t decoder, uint32_t i)
{
    return wire->results + 2 * (decoder * (uint64_t)(ranks - 1) + i);
}

uint64_t peer_sums_stride(const struct peer_wire *wire)
{
    return wire->tuning.piece + PEER_PAGE;
}

bool peer_sums_prepare(struct coll_ccomm *member)
{
    struct peer_wire *wire = member->peer;
    if (wire->sums == NULL)
        wire->sums = member->gpu->allocate(peer_sums_stride(wire) * (uint64_t)member->ranks, false);
    return wire->sums != NULL;
}

/* Streams of operations: one set for all calls outside of graphs, made when the communicator joins, as its staging
 * memory is (collective/engine/staging.h), and one for each graph being captured. When a capture has ended, its set
 * serves the next one. */

enum { PLAIN_EVENTS = 8, EVENTS = PLAIN_EVENTS + PEER_OUTGOING + PEER_DECODERS_MAX };

static gpu_event *event_at(struct peer_lane *lane, unsigned i)
{
    gpu_event *const plain[PLAIN_EVENTS] = {&lane->begun, &lane->claimed, &lane->encoded, &lane->crossed,
                                            &lane->come,  &lane->decoded, &lane->summed,  &lane->ended};
    if (i < PLAIN_EVENTS)
        return plain[i];
    i -= PLAIN_EVENTS;
    return i < PEER_OUTGOING ? &lane->posted[i] : &lane->freed[i - PEER_OUTGOING];
}

static void destroy(struct peer_lane *lane, const struct gpu_ops *gpu)
{
    for (int i = 0; i < PEER_STREAMS; i++)
        if (lane->stream[i] != NULL)
            gpu->stream_end(lane->stream[i]);
    for (unsigned i = 0; i < EVENTS; i++)
        if (*event_at(lane, i) != NULL)
            gpu->event_end(*event_at(lane, i));
    free(lane);
}

static bool is_encoding(int stream)
{
    return stream >= PEER_ENCODING && stream < PEER_ENCODING + PEER_ENCODERS_MAX;
}

static bool is_decoding(int stream)
{
    return stream >= PEER_DECODING && stream < PEER_DECODING + PEER_DECODERS_MAX;
}

/* Coding occupies a whole GPU, so its streams have lower priority: other ranks wait for the kernels that say that a
 * piece is there, which need next to nothing. */
static coll_stream make_stream(const struct gpu_ops *gpu, int which)
{
    return (is_encoding(which) || is_decoding(which) ? gpu->peer->stream_make_below : gpu->stream_make)();
}

static struct peer_lane *make(const struct gpu_ops *gpu)
{
    struct peer_lane *lane = calloc(1, sizeof(*lane));
    bool good = lane != NULL;
    for (unsigned i = 0; i < EVENTS && good; i++)
        good = (*event_at(lane, i) = gpu->event_make(false)) != NULL;
    if (good)
        return lane;
    if (lane != NULL)
        destroy(lane, gpu);
    return NULL;
}

static bool is_captured(const struct peer_lane *lane, const struct gpu_ops *gpu)
{
    bool captured = false;
    for (int i = 0; i < PEER_STREAMS && !captured; i++)
        captured = lane->stream[i] != NULL && gpu->stream_capture(lane->stream[i]) != 0;
    return captured;
}

static bool is_needed(const struct peer_tuning *tuning, int stream)
{
    if (is_encoding(stream))
        return stream < PEER_ENCODING + (tuning->direct != 0 ? (int)tuning->encoders : 1);
    if (is_decoding(stream))
        return stream < PEER_DECODING + (tuning->direct != 0 ? (int)tuning->decoders : 1);
    if (stream == PEER_CLAIMING || stream == PEER_WAITING || stream == PEER_FREEING)
        return tuning->direct != 0;
    return stream != PEER_COPY_STREAM_1 || tuning->cross == 2;
}

/* Streams share hardware queues, so streams that would stay unused are not made. */
static bool make_streams(struct peer_lane *lane, const struct coll_ccomm *member)
{
    bool good = true;
    for (int i = 0; i < PEER_STREAMS && good; i++)
        if (lane->stream[i] == NULL && is_needed(&member->peer->tuning, i))
            good = (lane->stream[i] = make_stream(member->gpu, i)) != NULL;
    return good;
}

struct peer_lane *peer_lane_of(struct coll_ccomm *member, coll_stream stream)
{
    const struct gpu_ops *gpu = member->gpu;
    const uint64_t capture = gpu->stream_capture(stream);
    struct peer_lane *lane = member->peer->lanes;
    while (lane != NULL && lane->capture != capture)
        lane = lane->next;
    if (lane == NULL && capture != 0) {
        lane = member->peer->lanes;
        while (lane != NULL && (lane->capture == 0 || is_captured(lane, gpu)))
            lane = lane->next;
    }
    if (lane == NULL && (lane = make(gpu)) != NULL) {
        lane->next = member->peer->lanes;
        member->peer->lanes = lane;
    }
    if (lane != NULL)
        lane->capture = capture;
    return lane != NULL && make_streams(lane, member) ? lane : NULL;
}

void peer_lanes_end(struct peer_wire *wire, const struct gpu_ops *gpu)
{
    while (wire->lanes != NULL) {
        struct peer_lane *next = wire->lanes->next;
        destroy(wire->lanes, gpu);
        wire->lanes = next;
    }
}

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
