/* A process's sign of life, for other processes of its host: a file in memory that it keeps locked. The kernel unlocks
 * it when the process ends, however it does, and when it executes another program; a stopped process keeps the lock,
 * and its forked children never have it. A process that leaves in order first writes so into the file.
 *
 * Others find the file by way of /proc, which needs the right to look at that process: the same user, and one PID
 * namespace. They recognise the file by its inode and its first bytes, so a process number that means another process,
 * here or by now, does no harm. */
#ifndef STRAIT_COLLECTIVE_ENGINE_LIFE_H
#define STRAIT_COLLECTIVE_ENGINE_LIFE_H

#include <stdbool.h>
#include <stdint.h>

struct life {
    int file; /* -1: there is none */
    int32_t process;
};

/* How others find the file. All zero: nowhere. */
struct life_card {
    uint64_t self;  /* the process: the same in all of its cards, and in no other's */
    uint64_t nonce; /* the file's first bytes */
    uint64_t inode;
    int32_t process, file;
    uint64_t host; /* as in gpu.h; processes of other hosts are not looked for */
};

enum life_state { LIFE_GOES_ON, LIFE_LEFT, LIFE_ENDED };

/* False: no such file can be had, and nobody can find this process. */
bool life_begin(struct life *life, struct life_card *card);
/* The process leaves in order: its end does not count as one. */
void life_leave(struct life *life);
void life_end(struct life *life);

/* The card is the calling process's own. */
bool life_is_own(const struct life_card *card);
/* A descriptor for life_look, to be closed by the caller; -1: the process cannot be seen from here. Never call it for
 * the own process: by closing the descriptor it would lose its own lock. */
int life_find(const struct life *own, const struct life_card *card);
enum life_state life_look(int found);

#endif
