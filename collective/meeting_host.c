/* A meeting in host memory: a page of it, under a name that follows from the key. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collective/meeting_kind.h"

struct here {
    struct coll_meeting meeting;
    struct coll_board board;
    size_t size;
    int file; /* byte number `rank` is locked for as long as the rank is there */
    char name[64];
};

/* ---- The page ---------------------------------------------------------------------------------------------------- */

/* The lock belongs to the open file description, not to the process, which may have several ranks. The kernel releases
 * it when the process ends, however it does. */
static bool lock_place(int file, int rank)
{
    struct flock place = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &place) == 0;
}

static bool is_there(const void *whom, int rank)
{
    const struct here *here = whom;
    struct flock place = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return rank == here->meeting.rank || fcntl(here->file, F_OFD_GETLK, &place) != 0 || place.l_type != F_UNLCK;
}

/* Signals may interrupt it, for example a profiler's. */
static bool make_room(int file, size_t size)
{
    int error;
    while ((error = posix_fallocate(file, 0, (off_t)size)) == EINTR)
        ;
    return error == 0;
}

/* The file must be nobody else's, and large enough: touching mapped memory beyond the end of a file faults. */
static bool is_good(int file, size_t size)
{
    struct stat status;
    return make_room(file, size) && fstat(file, &status) == 0 && status.st_uid == geteuid() &&
           (status.st_mode & 077) == 0 && status.st_size == (off_t)size;
}

static struct coll_sheet *map(int file, size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static bool open_board(struct here *here)
{
    here->file = shm_open(here->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (here->file < 0)
        return false;
    if (is_good(here->file, here->size) && lock_place(here->file, here->meeting.rank))
        here->board.sheet = map(here->file, here->size);
    return here->board.sheet != NULL;
}

/* Done once. If not all have come, it is decided that all stay raw, and whatever is made under the name later is
 * another meeting, to which not all can come. */
static void take_name_away(const struct here *here)
{
    if (coll_board_first(&here->board))
        (void)shm_unlink(here->name);
}

/* ---- The kind of meeting ----------------------------------------------------------------------------------------- */

static struct coll_view look(struct coll_meeting *meeting, enum coll_round round)
{
    const struct here *here = (const struct here *)meeting;
    coll_board_judge(&here->board, round);
    return coll_board_view(&here->board, round);
}

static void say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word)
{
    const struct here *here = (const struct here *)meeting;
    coll_board_say(&here->board, meeting->rank, round, word);
    if (look(meeting, round).all)
        take_name_away(here);
}

static void pass(struct coll_meeting *meeting, uint32_t begun)
{
    coll_board_pass(&((const struct here *)meeting)->board, meeting->rank, begun);
}

static void give_up(struct coll_meeting *meeting, enum coll_round round)
{
    const struct here *here = (const struct here *)meeting;
    coll_board_decide(&here->board, round, COLL_ENDING_ABSENT, meeting->rank);
    take_name_away(here);
}

static void leave(struct coll_meeting *meeting)
{
    struct here *here = (struct here *)meeting;
    for (int round = 0; round < COLL_ROUNDS && here->board.sheet != NULL; round++)
        coll_board_decide(&here->board, (enum coll_round)round, COLL_ENDING_LEFT, meeting->rank);
    if (here->board.sheet != NULL) {
        take_name_away(here);
        (void)munmap(here->board.sheet, here->size);
    }
    if (here->file >= 0)
        (void)close(here->file);
    free(here);
}

static const struct coll_meeting_kind kind = {.say = say,
                                              .pass = pass,
                                              .look = look,
                                              .give_up = give_up,
                                              .leave = leave,
                                              .least_ns = 20000,
                                              .most_ns = 1000000,
                                              .linger_ms = 100};

struct coll_meeting *coll_meeting_come_here(const struct coll_key *key, int rank, int ranks)
{
    struct here *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    *made = (struct here){.meeting = {&kind, rank, ranks},
                          .board = {.ranks = ranks, .is_there = is_there, .whom = made},
                          .size = coll_sheet_size(ranks),
                          .file = -1};
    snprintf(made->name, sizeof(made->name), "/strait-coll-%016llx%016llx", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
    if (open_board(made))
        return &made->meeting;
    leave(&made->meeting);
    return NULL;
}
