/* How the wire `peer` cuts messages into pieces, and where these lie: a function of sizes alone, so the same on all
 * ranks. */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_PLAN_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/call.h"

enum {
    PEER_PAGE = 32768, /* raw bytes that are coded as one page */
    PEER_DEPTH = 5,    /* slots of each sender: two being filled, one full, two being decoded */
    PEER_OUTGOING = 3, /* encoded pieces yet to cross: one being filled, one full, one crossing */
    PEER_ENCODERS_MAX = 3,
    PEER_DECODERS_MAX = 2,
};

/* How encoded pieces cross: a copy engine pushes as many bytes as usually suffice and a kernel the rest, or a kernel
 * pushes all. */
enum peer_crossing { PEER_BY_ENGINE, PEER_BY_KERNEL };

/* What is still to be measured: the best values of bare and cross, and whether direct is better than any of them. */
enum peer_open { PEER_OPEN_SHARE = 1, PEER_OPEN_DIRECT = 2 };

/* What can be tuned; the same on all ranks. */
struct peer_tuning {
    uint32_t crossing;
    uint32_t piece;  /* raw bytes of a piece: a multiple of PEER_PAGE */
    uint32_t blocks; /* of a kernel that moves */
    uint32_t sms;    /* multiprocessors that a codec kernel may have; 0: all */
    uint32_t direct; /* pieces for one rank are encoded into its slots: they cross as the encoder stores them */
    uint32_t encoders, encoder_sms; /* for direct: streams that encode in turn, and `sms` for all of them together */
    uint32_t decoders, decoder_sms; /* likewise */
    uint32_t bare;                  /* each N-th piece, the first and the last stay uncompressed; 0: none, 1: all */
    uint32_t cross;                 /* streams on which pieces cross in turn: 1 or 2 */
    uint32_t open;                  /* bits of peer_open */
    uint32_t flat;                  /* pieces are equal from the first to the last */
    uint32_t trace;                 /* prints on stderr, at the end, when each stage ended */
};

/* Parses words between commas: direct, engine or kernel, piece=KIB, blocks=N, sms=N, bare=N, cross=N, encoders=N,
 * encoder_sms=N, decoders=N, decoder_sms=N, flat, trace. NULL: the best values known. If none of direct, bare and cross
 * is given, they are left open for measuring; with engine or kernel, direct is not tried. False: not understood, and
 * the best values are used. Pieces are smaller the more ranks there are, as all of them share the memory. */
bool peer_tuning_of(struct peer_tuning *tuning, const char *text, int ranks);

/* A message of one element type, of at least one page.
 *
 * When pieces are encoded here and then pushed, encoding, moving and decoding are about equally fast, so some pieces
 * are left uncompressed: while one of them crosses, others are coded. The first and the last are among them, so that
 * crossing begins at once and nothing has to be decoded at the end; the last two are smaller than the rest. Without
 * bare pieces, as with direct, the first two are smaller, too. */
struct peer_cut {
    enum strait_element element;
    uint32_t pieces;
    uint64_t pages;      /* whole ones, of all pieces */
    uint32_t ramp;       /* pages of the last piece, half of those of the one before it; 0: all pieces are equal */
    uint32_t front;      /* pieces at the beginning that grow likewise: 2 or 0 */
    uint32_t bare;       /* as tuned */
    uint32_t tail_bytes; /* behind the pages of the last piece */
};

/* False: it is too small or too large. */
bool peer_cut_of(struct peer_cut *cut, coll_type type, uint64_t count, const struct peer_tuning *tuning);

struct peer_piece {
    uint64_t at, bytes; /* of the message's values */
    uint32_t pages, tail_bytes;
    bool bare;                       /* uncompressed values follow the head */
    uint64_t tail_at, main_at;       /* in the slot; tail_at 0: none */
    uint64_t tail_bound, main_bound; /* the most bytes they can encode to */
    uint64_t room;                   /* bytes at the slot's beginning that usually suffice: a multiple of 128 */
};
struct peer_piece peer_piece_of(const struct peer_cut *cut, uint32_t number);

/* The chunk of so many pages: how it begins, and the bytes of its metadata, a multiple of 16 (kernels/FORMAT.md). */
struct peer_chunk {
    uint32_t begins[4];
    uint32_t metadata_bytes;
};
struct peer_chunk peer_chunk_of(enum strait_element element, uint32_t pages, uint32_t page_bytes);

/* Bytes of the largest slot. */
uint64_t peer_slot_bytes(const struct peer_tuning *tuning);

#endif
