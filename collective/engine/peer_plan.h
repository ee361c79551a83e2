/* How the wire `peer` cuts messages into pieces, and where these lie. A function of sizes alone, the same on all ranks.
 */
#ifndef STRAIT_COLLECTIVE_ENGINE_PEER_PLAN_H
#define STRAIT_COLLECTIVE_ENGINE_PEER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include <strait/codec.h>

#include "collective/call.h"

enum {
    PEER_PAGE = 32768, /* raw bytes that are coded as one */
    PEER_DEPTH = 5,    /* slots of a sender: two are filled, one is full, two are decoded */
    PEER_OUTGOING = 3, /* what is encoded and still to cross: one is filled, one full, one crosses */
    PEER_ENCODERS_MAX = 3,
    PEER_DECODERS_MAX = 2,
};

/* How bytes cross that were encoded here: a copy engine pushes as many as usually suffice, and a kernel the rest; or a
 * kernel all. */
enum peer_crossing { PEER_BY_ENGINE, PEER_BY_KERNEL };

/* Whether what is best is still to be measured: of bare and cross, and whether direct is better than any of them. */
enum peer_open { PEER_OPEN_SHARE = 1, PEER_OPEN_DIRECT = 2 };

/* What can be tuned; the same on all ranks. */
struct peer_tuning {
    uint32_t crossing;
    uint32_t piece;  /* raw bytes of a piece: a multiple of PEER_PAGE */
    uint32_t blocks; /* of a kernel that moves */
    uint32_t sms;    /* multiprocessors that a codec kernel may have; 0: all */
    uint32_t direct; /* pieces for one rank are encoded into its slots: they cross as the encoder stores them */
    uint32_t encoders, encoder_sms; /* of direct: streams that encode in turn, and as `sms`, of all of them */
    uint32_t decoders, decoder_sms; /* likewise */
    uint32_t bare;                  /* every so manieth piece, the first and the last go as they are; 0: none, 1: all */
    uint32_t cross;                 /* streams on which pieces cross in turn: 1 or 2 */
    uint32_t open;                  /* bits of peer_open */
    uint32_t flat;                  /* pieces are equal from the first to the last */
    uint32_t trace;                 /* when what was over is told on stderr at the end */
};

/* From words between commas: direct, engine or kernel, piece=KIB, blocks=N, sms=N, bare=N, cross=N, encoders=N,
 * encoder_sms=N, decoders=N, decoder_sms=N, flat, trace. NULL: as it is best. Without direct, bare and cross they are
 * open; with engine or kernel direct is not among what is tried.
 * False: not understood, and as it is best. Pieces are the smaller, the more ranks there are: memory is for all of
 * them. */
bool peer_tuning_of(struct peer_tuning *tuning, const char *text, int ranks);

/* A message of one element type, of at least a page.
 *
 * What is encoded here and pushed then is encoded, moved and decoded about as fast, so some pieces are left as they
 * are: while one of them crosses, others are coded. The first and the last are among them, so that crossing begins at
 * once and there is nothing to decode at the end; the last two are smaller than the rest. Without bare pieces, as of
 * direct, the first two are too. */
struct peer_cut {
    enum strait_element element;
    uint32_t pieces;
    uint64_t pages;      /* whole ones, of all */
    uint32_t ramp;       /* pages of the last piece, half of those of the one before; 0: all are equal */
    uint32_t front;      /* pieces at the beginning that grow alike: 2 or 0 */
    uint32_t bare;       /* as tuned */
    uint32_t tail_bytes; /* behind the pages of the last one */
};

/* False: it is too small or too large. */
bool peer_cut_of(struct peer_cut *cut, coll_type type, uint64_t count, const struct peer_tuning *tuning);

struct peer_piece {
    uint64_t at, bytes; /* of the message's values */
    uint32_t pages, tail_bytes;
    bool bare;                       /* behind the head are the values */
    uint64_t tail_at, main_at;       /* in the slot; tail_at 0: none */
    uint64_t tail_bound, main_bound; /* that they may become */
    uint64_t room;                   /* of the slot's beginning, that usually has all: a multiple of 128 */
};
struct peer_piece peer_piece_of(const struct peer_cut *cut, uint32_t number);

/* The chunk of such pages: how it begins, and the bytes of its metadata, a multiple of 16 (kernels/FORMAT.md). */
struct peer_chunk {
    uint32_t begins[4];
    uint32_t metadata_bytes;
};
struct peer_chunk peer_chunk_of(enum strait_element element, uint32_t pages, uint32_t page_bytes);

/* Bytes of the largest slot. */
uint64_t peer_slot_bytes(const struct peer_tuning *tuning);

#endif
