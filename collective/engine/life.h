/* A process's sign of life, for others of its host: a file in memory that it holds locked. The kernel unlocks it when
 * the process ends, however it does, and when it becomes another program; one that is stopped keeps it, and what it
 * forks never has it. Who goes in order writes so into the file before.
 *
 * Others find it by way of /proc, which needs what looking at a process needs: the same user, and one namespace of
 * processes. What is found there is known to be it by the file's number and its first bytes, so a process number that
 * means another one, here or by now, is no harm. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LIFE_H
#define STRAIT_COLLECTIVE_ENGINE_LIFE_H

#include <stdbool.h>
#include <stdint.h>

struct life {
    int file; /* -1: there is none */
    int32_t process;
};

/* How others find it. All zero: nowhere. */
struct life_card {
    uint64_t self;  /* of the process: the same in all of its cards, and in no other's */
    uint64_t nonce; /* of the file, which begins with it */
    uint64_t inode;
    int32_t process, file;
    uint64_t host; /* gpu.h: others' is not looked for */
};

enum life_state { LIFE_GOES_ON, LIFE_LEFT, LIFE_ENDED };

/* False, and nobody can find it: there is no such file to be had. */
bool life_begin(struct life *life, struct life_card *card);
/* It goes in order: its end will be none. */
void life_leave(struct life *life);
void life_end(struct life *life);

/* The calling process is the card's own. */
bool life_is_own(const struct life_card *card);
/* A descriptor for life_look, to be closed; -1: it cannot be seen from here. Never call it with what is one's own: by
 * closing it a process loses its own lock. */
int life_find(const struct life *own, const struct life_card *card);
enum life_state life_look(int found);

#endif
