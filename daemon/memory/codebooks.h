/* Codebook sets of a daemon: the one in force, by which pages are encoded; the last ones before it, which chunks that
 * were encoded before a reload may still name; and those of peers, by which only chunks of peers are decoded. */
#ifndef STRAIT_DAEMON_MEMORY_CODEBOOKS_H
#define STRAIT_DAEMON_MEMORY_CODEBOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include <strait/codec.h>

/* The sets that are kept. Which they are does not change: a reload, or a peer's set, makes a new object, and jobs that
 * have begun go on with theirs. References are counted, and claims too, on the loop's thread. */
struct codebooks;

#define CODEBOOKS_KEPT   3u /* the set in force and two before it */
#define CODEBOOKS_OTHERS 8u /* of peers: beyond these go those that no peer has claimed, used longest ago first */

/* `set` (NULL: none) is in force, and what was in force or kept in `before` (NULL: nothing was) is kept:
 * the last two, and of older ones those that peers have claimed. On OK `set` is taken, and the caller owns a reference.
 * ERR_NO_MEMORY. */
enum strait_status codebooks_create(struct strait_codebook *set, const struct codebooks *before,
                                    struct codebooks **codebooks);
/* The same sets and one more, of a peer. On OK `set` is taken. ERR_INVALID: there is one of its id; ERR_NO_SPACE:
 * peers have claimed all others (codebooks_have_room); ERR_NO_MEMORY. */
enum strait_status codebooks_add(struct strait_codebook *set, const struct codebooks *before,
                                 struct codebooks **codebooks);
bool codebooks_have_room(const struct codebooks *codebooks);

bool codebooks_have(const struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES]);
/* A peer may send by this set: these codebooks and all that follow from them keep it until it is left as often. False:
 * there is none of that id. */
bool codebooks_claim(struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES]);
void codebooks_leave(struct codebooks *codebooks, const uint8_t id[STRAIT_CODEBOOK_ID_BYTES]);

struct codebooks *codebooks_hold(struct codebooks *codebooks); /* one more reference to it */
void codebooks_release(struct codebooks *codebooks);           /* NULL is allowed */

/* The two below may be called on any thread by whoever has a reference. */

const struct strait_codebook *codebooks_current(const struct codebooks *codebooks); /* NULL: none is in force */
/* The set of that id, or the one in force: a decoder compares the ids itself. */
const struct strait_codebook *codebooks_find(const struct codebooks *codebooks,
                                             const uint8_t id[STRAIT_CODEBOOK_ID_BYTES]);

/* Reads the codebook set in the file `path`; an empty path gives OK and NULL. Blocks. On OK the caller owns *codebook.
 * ERR_IO (cannot be read), ERR_INVALID (not a regular file, or too long to be a set), ERR_NO_MEMORY, and the errors of
 * strait_codebook_parse; `why` says more. */
enum strait_status codebook_load(const char *path, struct strait_codebook **codebook, char *why, size_t why_size);

#endif
