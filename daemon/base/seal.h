/* Encryption of chunks between hosts: AES-256-GCM, or ChaCha20-Poly1305 where a processor has no AES. One mechanism for
 * every transport: a chunk is encrypted in place where it was encoded and decrypted in place where it has landed.
 *
 * Each direction of a connection has a secret of its own, from the handshake of its control connection, and numbers its
 * chunks: the number is the nonce. Every SEAL_KEY_CHUNKS chunks have a key of their own, derived from the secret, so
 * that no key encrypts more than it may. The header that the transport carries with the chunk is authenticated with
 * it: what was made for one grant opens for no other, and nothing of it can be changed, cut off or added. */
#ifndef STRAIT_DAEMON_BASE_SEAL_H
#define STRAIT_DAEMON_BASE_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEAL_TAG_BYTES    16u /* a chunk is longer by these */
#define SEAL_SECRET_BYTES 32u
#define SEAL_KEY_CHUNKS   65536u /* of 16 MiB: 2^36 blocks of AES */
#define SEAL_HEADER_MAX   64u

/* What the processors of both sides do well. */
enum seal_suite {
    SEAL_NONE,
    SEAL_CHACHA20_POLY1305,
    SEAL_AES_256_GCM,
};

/* One direction of a connection. Not for several threads. */
struct seal_direction {
    enum seal_suite suite;
    uint8_t secret[SEAL_SECRET_BYTES];
    uint8_t key[SEAL_SECRET_BYTES]; /* the latest one */
    uint64_t key_number;            /* + 1; 0: there is none */
    uint64_t next;                  /* number of the next chunk that is sent */
};

/* What encrypts or decrypts one chunk, on any thread. Wiped by seal_close and seal_open. */
struct seal {
    enum seal_suite suite; /* NONE: it is not to be encrypted */
    uint8_t key[SEAL_SECRET_BYTES];
    uint64_t number;
    uint8_t header[SEAL_HEADER_MAX];
    size_t header_size;
};

enum seal_suite seal_best(void); /* of this processor */

/* Sets up the chunk with this number; `header`: at most SEAL_HEADER_MAX bytes. False: the library has failed. */
bool seal_make(struct seal_direction *direction, uint64_t number, const void *header, size_t header_size,
               struct seal *seal);

/* Encrypts `size` bytes and writes SEAL_TAG_BYTES behind them. False: the library has failed. */
bool seal_close(struct seal *seal, void *bytes, size_t size);
/* Decrypts; `size` includes the tag. False: it is not what the other side has encrypted for this header and number; the
 * bytes mean nothing then. */
bool seal_open(struct seal *seal, void *bytes, size_t size);

void seal_wipe(void *secret, size_t size);

#endif
