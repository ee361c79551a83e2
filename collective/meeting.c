#include "collective/meeting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of a round: 0, it is open; else one of these, and the rank that it is about. */
enum ending { OPEN, GO, ABSENT, ENDED, UNABLE, DIFFERS, ONE_THREAD, LEFT, ENDING_BITS = 8 };

struct place {
    struct coll_word words[COLL_ROUNDS];
    _Atomic uint32_t said[COLL_ROUNDS]; /* the word is there */
    _Atomic uint32_t passed;            /* operations that it has begun without the others */
};

struct board {
    _Atomic uint32_t decided[COLL_ROUNDS];
    _Atomic uint32_t nameless;
    struct place places[];
};

struct coll_meeting {
    struct board *board;
    size_t size;
    int file; /* its byte number `rank` is locked as long as the rank is there */
    int rank, ranks;
    char name[64];
};

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void add(struct coll_key *key, uint64_t word)
{
    key->words[0] = mix(key->words[0] ^ word);
    key->words[1] = mix(key->words[1] + word + UINT64_C(0x9E3779B97F4A7C15));
}

struct coll_key coll_key_of(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    struct coll_key key = {{1, 2}};
    for (size_t i = 0; i < size; i++)
        add(&key, at[i]);
    return key;
}

struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color)
{
    struct coll_key key = *parent;
    if (coll_key_is_none(parent))
        return key;
    add(&key, way);
    add(&key, number);
    add(&key, (uint64_t)color);
    return key;
}

struct coll_key coll_key_draw(void)
{
    struct coll_key key;
    return getrandom(&key, sizeof(key), 0) == sizeof(key) ? key : (struct coll_key){{0, 0}};
}

bool coll_key_is_none(const struct coll_key *key)
{
    return key->words[0] == 0 && key->words[1] == 0;
}

/* ---- The board --------------------------------------------------------------------------------------------------- */

/* A lock of the description, not of the process, which may have several ranks. The kernel opens it when the process
 * ends, however it does. */
static bool lock_place(int file, int rank)
{
    struct flock place = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return fcntl(file, F_OFD_SETLK, &place) == 0;
}

static bool is_there(const struct coll_meeting *meeting, int rank)
{
    struct flock place = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    return rank == meeting->rank || fcntl(meeting->file, F_OFD_GETLK, &place) != 0 || place.l_type != F_UNLCK;
}

/* Signals may come: a profiler's. */
static bool make_room(int file, size_t size)
{
    int error;
    while ((error = posix_fallocate(file, 0, (off_t)size)) == EINTR)
        ;
    return error == 0;
}

/* Nobody else's, and as large as it has to be: what is mapped beyond the end of a file cannot be touched. */
static bool is_good(int file, size_t size)
{
    struct stat status;
    return make_room(file, size) && fstat(file, &status) == 0 && status.st_uid == geteuid() &&
           (status.st_mode & 077) == 0 && status.st_size == (off_t)size;
}

static struct board *map(int file, size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static bool open_board(struct coll_meeting *meeting)
{
    meeting->file = shm_open(meeting->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (meeting->file < 0)
        return false;
    if (is_good(meeting->file, meeting->size) && lock_place(meeting->file, meeting->rank))
        meeting->board = map(meeting->file, meeting->size);
    return meeting->board != NULL;
}

struct coll_meeting *coll_meeting_come(const struct coll_key *key, int rank, int ranks)
{
    struct coll_meeting *made = calloc(1, sizeof(*made));
    if (made == NULL || coll_key_is_none(key) || rank < 0 || rank >= ranks) {
        free(made);
        return NULL;
    }
    made->file = -1;
    made->rank = rank;
    made->ranks = ranks;
    made->size = sizeof(struct board) + (size_t)ranks * sizeof(struct place);
    snprintf(made->name, sizeof(made->name), "/strait-coll-%016llx%016llx", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
    if (open_board(made))
        return made;
    coll_meeting_leave(made);
    return NULL;
}

/* ---- What follows ------------------------------------------------------------------------------------------------ */

static uint32_t about(enum ending ending, int rank)
{
    return (uint32_t)ending | (uint32_t)rank << ENDING_BITS;
}

/* The first one counts. */
static void decide(struct coll_meeting *meeting, enum coll_round round, uint32_t what)
{
    uint32_t open = OPEN;
    (void)atomic_compare_exchange_strong(&meeting->board->decided[round], &open, what);
}

/* Once. When not all have come it is decided that all stay raw, and what is made under the name later is another
 * meeting, to which not all can come. */
static void take_name_away(struct coll_meeting *meeting)
{
    if (atomic_exchange(&meeting->board->nameless, 1) == 0)
        (void)shm_unlink(meeting->name);
}

static bool has_said(const struct coll_meeting *meeting, int rank, enum coll_round round)
{
    return atomic_load(&meeting->board->places[rank].said[round]) != 0;
}

static bool have_all_said(const struct coll_meeting *meeting, enum coll_round round)
{
    bool all = true;
    for (int rank = 0; rank < meeting->ranks; rank++)
        all &= has_said(meeting, rank, round);
    return all;
}

static bool shares_thread(const struct coll_meeting *meeting, int rank, enum coll_round round)
{
    const struct place *places = meeting->board->places;
    for (int before = 0; before < rank; before++)
        if (places[before].words[round].thread == places[rank].words[round].thread)
            return true;
    return false;
}

/* Of a rank that has said its word. */
static enum ending look_at(const struct coll_meeting *meeting, int rank, enum coll_round round)
{
    const struct coll_word *first = &meeting->board->places[0].words[round];
    const struct coll_word *word = &meeting->board->places[rank].words[round];
    if (word->able == 0)
        return UNABLE;
    if (word->blocks != first->blocks || word->index != first->index)
        return DIFFERS;
    return word->blocks == 0 && shares_thread(meeting, rank, round) ? ONE_THREAD : GO;
}

/* It has passed the operation that another one waits with, and may wait for that one's in turn. */
static bool is_ahead(const struct coll_meeting *meeting, int rank, enum coll_round round)
{
    const uint32_t passed = atomic_load(&meeting->board->places[rank].passed);
    bool ahead = false;
    for (int other = 0; other < meeting->ranks && passed > 0; other++)
        ahead |= has_said(meeting, other, round) && meeting->board->places[other].words[round].index < passed;
    return ahead;
}

/* What can be told by now. */
static uint32_t judge(const struct coll_meeting *meeting, enum coll_round round)
{
    const bool all = have_all_said(meeting, round);
    for (int rank = 0; rank < meeting->ranks; rank++) {
        const bool said = has_said(meeting, rank, round);
        if (said && meeting->board->places[rank].words[round].able == 0)
            return about(UNABLE, rank);
        if ((said || has_said(meeting, rank, COLL_ROUND_PRESENT)) && !is_there(meeting, rank))
            return about(ENDED, rank);
        if (round == COLL_ROUND_REACHED && is_ahead(meeting, rank, round))
            return about(DIFFERS, rank);
    }
    for (int rank = 0; rank < meeting->ranks && all; rank++) {
        const enum ending ending = look_at(meeting, rank, round);
        if (ending != GO)
            return about(ending, rank);
    }
    return all ? about(GO, 0) : OPEN;
}

void coll_meeting_say(struct coll_meeting *meeting, enum coll_round round, const struct coll_word *word)
{
    struct place *own = &meeting->board->places[meeting->rank];
    own->words[round] = *word;
    atomic_store(&own->said[round], 1);
    (void)coll_meeting_hear(meeting, round);
    if (have_all_said(meeting, COLL_ROUND_PRESENT))
        take_name_away(meeting);
}

void coll_meeting_pass(struct coll_meeting *meeting, uint32_t begun)
{
    atomic_store(&meeting->board->places[meeting->rank].passed, begun);
}

enum coll_verdict coll_meeting_hear(struct coll_meeting *meeting, enum coll_round round)
{
    uint32_t decided = atomic_load(&meeting->board->decided[round]);
    if (decided == OPEN && (decided = judge(meeting, round)) != OPEN) {
        decide(meeting, round, decided);
        decided = atomic_load(&meeting->board->decided[round]);
    }
    return decided == OPEN ? COLL_VERDICT_OPEN : decided == GO ? COLL_VERDICT_GO : COLL_VERDICT_RAW;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* At first they are there within microseconds of each other. */
static void nap(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms < 20 ? 20000 : 1000000}, NULL);
}

/* What is decided those that have still to come find under the name: they are not far, or have to wait in vain. */
enum { LEAVE_MS = 100 };

static bool is_over(struct coll_meeting *meeting, enum coll_round round, int64_t ms, int64_t *decided_ms)
{
    if (coll_meeting_hear(meeting, round) == COLL_VERDICT_OPEN)
        return false;
    if (*decided_ms < 0)
        *decided_ms = ms;
    return have_all_said(meeting, COLL_ROUND_PRESENT) || ms - *decided_ms > LEAVE_MS;
}

enum coll_verdict coll_meeting_wait(struct coll_meeting *meeting, enum coll_round round,
                                    bool (*go_on)(struct coll_meeting *meeting, int64_t ms, void *argument),
                                    void *argument)
{
    const int64_t begin = now_ms();
    int64_t ms = 0, decided_ms = -1;
    while (!is_over(meeting, round, ms, &decided_ms) && go_on(meeting, ms, argument)) {
        nap(ms);
        ms = now_ms() - begin;
    }
    decide(meeting, round, about(ABSENT, 0));
    take_name_away(meeting);
    return coll_meeting_hear(meeting, round);
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void put(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    const size_t used = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

void coll_meeting_absent(const struct coll_meeting *meeting, enum coll_round round, char *text, size_t size)
{
    enum { NAMED_MAX = 8 };
    int absent = 0, named = 0;
    for (int rank = 0; rank < meeting->ranks; rank++)
        absent += !has_said(meeting, rank, round);
    snprintf(text, size, absent == 1 ? "rank" : "ranks");
    for (int rank = 0; rank < meeting->ranks && named < NAMED_MAX; rank++)
        if (!has_said(meeting, rank, round))
            put(text, size, "%s %d", named++ == 0 ? "" : ",", rank);
    if (absent > named)
        put(text, size, " and %d more", absent - named);
}

void coll_meeting_why(const struct coll_meeting *meeting, enum coll_round round, char *text, size_t size)
{
    const uint32_t decided = atomic_load(&meeting->board->decided[round]);
    const int rank = (int)(decided >> ENDING_BITS);
    static const char *const texts[] = {
        [ENDED] = "rank %d has ended",
        [UNABLE] = "rank %d is not able to, and has said why",
        [DIFFERS] = "rank %d blocks where others do not, or has begun other operations",
        [ONE_THREAD] = "rank %d is called by a thread that has another rank of it, and nothing of it may block",
        [LEFT] = "rank %d has left"};
    const enum ending ending = (enum ending)(decided & ((1u << ENDING_BITS) - 1));
    if (ending == ABSENT) {
        char absent[96];
        coll_meeting_absent(meeting, round, absent, sizeof(absent));
        snprintf(text, size,
                 "%s did not come in time: other values of STRAIT_COLL there, no libstrait-coll, or another host",
                 absent);
    } else {
        snprintf(text, size, texts[ending], rank);
    }
}

bool coll_meeting_any_paired(const struct coll_meeting *meeting)
{
    bool any = false;
    for (int rank = 0; rank < meeting->ranks; rank++)
        any |= meeting->board->places[rank].words[COLL_ROUND_REACHED].paired != 0;
    return any;
}

void coll_meeting_leave(struct coll_meeting *meeting)
{
    if (meeting == NULL)
        return;
    for (int round = 0; round < COLL_ROUNDS && meeting->board != NULL; round++)
        decide(meeting, (enum coll_round)round, about(LEFT, meeting->rank));
    if (meeting->board != NULL)
        take_name_away(meeting);
    if (meeting->board != NULL)
        (void)munmap(meeting->board, meeting->size);
    if (meeting->file >= 0)
        (void)close(meeting->file);
    free(meeting);
}
