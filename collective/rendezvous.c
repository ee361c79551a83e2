#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collective/address.h"
#include "collective/rendezvous.h"

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void key_add(struct coll_key *key, uint64_t word)
{
    key->words[0] = mix(key->words[0] ^ word);
    key->words[1] = mix(key->words[1] + word + UINT64_C(0x9E3779B97F4A7C15));
}

struct coll_key coll_key_of(const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    struct coll_key key = {.words = {1, 2}};
    for (size_t i = 0; i < size; i++)
        key_add(&key, at[i]);
    return key;
}

struct coll_key coll_key_child(const struct coll_key *parent, uint64_t way, uint64_t number, int64_t color)
{
    struct coll_key key = *parent;
    if (coll_key_is_none(parent))
        return key;
    key_add(&key, way);
    key_add(&key, number);
    key_add(&key, (uint64_t)color);
    return key;
}

struct coll_key coll_key_draw(void)
{
    struct coll_key key = {.words = {0, 0}};
    if (getrandom(key.words, sizeof(key.words), 0) != sizeof(key.words))
        key.words[0] = key.words[1] = 0;
    return key;
}

bool coll_key_is_none(const struct coll_key *key)
{
    return key->words[0] == 0 && key->words[1] == 0;
}

bool coll_key_has_place(const struct coll_key *key)
{
    return key->place.address.family != 0;
}

/* ---- Votes ------------------------------------------------------------------------------------------------------- */

/* The word of a decided round: the ending, and the rank that it is about. */
enum { ENDING_BITS = 8 };

struct entry {
    struct coll_ballot words[COLL_VOTE_PHASES];
    _Atomic uint32_t said[COLL_VOTE_PHASES]; /* the word is there */
    _Atomic uint32_t passed;                 /* operations that the rank has begun without the others */
};

struct coll_vote_page {
    _Atomic uint32_t decided[COLL_VOTE_PHASES];
    _Atomic uint32_t asked;
    struct entry entries[];
};

size_t coll_vote_page_size(int ranks)
{
    return sizeof(struct coll_vote_page) + (size_t)ranks * sizeof(struct entry);
}

bool coll_vote_has_cast(const struct coll_vote *board, int rank, enum coll_vote_phase round)
{
    return atomic_load(&board->sheet->entries[rank].said[round]) != 0;
}

void coll_vote_cast(const struct coll_vote *board, int rank, enum coll_vote_phase round, const struct coll_ballot *word)
{
    struct entry *own = &board->sheet->entries[rank];
    own->words[round] = *word;
    atomic_store(&own->said[round], 1);
}

void coll_vote_note_raw(const struct coll_vote *board, int rank, uint32_t begun)
{
    atomic_store(&board->sheet->entries[rank].passed, begun);
}

/* Only the first decision counts. */
void coll_vote_publish(const struct coll_vote *board, enum coll_vote_phase round, enum coll_vote_result ending,
                       int about)
{
    uint32_t open = COLL_VOTE_OPEN;
    const uint32_t decided = (uint32_t)ending | (uint32_t)about << ENDING_BITS;
    (void)atomic_compare_exchange_strong(&board->sheet->decided[round], &open, decided);
}

bool coll_vote_claim_unlink(const struct coll_vote *board)
{
    return atomic_exchange(&board->sheet->asked, 1) == 0;
}

/* ---- Deciding ---------------------------------------------------------------------------------------------------- */

static bool have_all_said(const struct coll_vote *board, enum coll_vote_phase round)
{
    bool all = true;
    for (int rank = 0; rank < board->ranks; rank++)
        all &= coll_vote_has_cast(board, rank, round);
    return all;
}

static const struct coll_ballot *word_of(const struct coll_vote *board, int rank, enum coll_vote_phase round)
{
    return &board->sheet->entries[rank].words[round];
}

static bool shares_thread(const struct coll_vote *board, int rank, enum coll_vote_phase round)
{
    for (int before = 0; before < rank; before++)
        if (word_of(board, before, round)->thread == word_of(board, rank, round)->thread)
            return true;
    return false;
}

/* Checks one rank, after all have said their words. */
static enum coll_vote_result look_at(const struct coll_vote *board, int rank, enum coll_vote_phase round)
{
    const struct coll_ballot *first = word_of(board, 0, round), *word = word_of(board, rank, round);
    if (word->blocks != first->blocks || word->index != first->index)
        return COLL_VOTE_DIFFERS;
    return word->blocks == 0 && shares_thread(board, rank, round) ? COLL_VOTE_ONE_THREAD : COLL_VOTE_GO;
}

/* Whether the rank has passed an operation that another one waits in; it may wait for that one in turn. */
static bool is_ahead(const struct coll_vote *board, int rank)
{
    const uint32_t passed = atomic_load(&board->sheet->entries[rank].passed);
    bool ahead = false;
    for (int other = 0; other < board->ranks && passed > 0; other++)
        ahead |= coll_vote_has_cast(board, other, COLL_PHASE_REACHED) &&
                 word_of(board, other, COLL_PHASE_REACHED)->index < passed;
    return ahead;
}

/* Checks one rank, whoever else has said something. */
static enum coll_vote_result look_first_at(const struct coll_vote *board, int rank, enum coll_vote_phase round)
{
    const bool said = coll_vote_has_cast(board, rank, round);
    if (said && word_of(board, rank, round)->able == 0)
        return COLL_VOTE_UNABLE;
    const bool came = said || coll_vote_has_cast(board, rank, COLL_PHASE_PRESENT);
    if (came && !board->is_there(board->whom, rank))
        return COLL_VOTE_ENDED;
    return round == COLL_PHASE_REACHED && is_ahead(board, rank) ? COLL_VOTE_DIFFERS : COLL_VOTE_GO;
}

void coll_vote_evaluate(const struct coll_vote *board, enum coll_vote_phase round)
{
    if (atomic_load(&board->sheet->decided[round]) != COLL_VOTE_OPEN)
        return;
    const bool all = have_all_said(board, round);
    enum coll_vote_result ending = COLL_VOTE_GO;
    int about = 0;
    for (int rank = 0; rank < board->ranks && ending == COLL_VOTE_GO; rank++)
        ending = look_first_at(board, about = rank, round);
    for (int rank = 0; rank < board->ranks && all && ending == COLL_VOTE_GO; rank++)
        ending = look_at(board, about = rank, round);
    if (all || ending != COLL_VOTE_GO)
        coll_vote_publish(board, round, ending, about);
}

/* ---- Views ------------------------------------------------------------------------------------------------------- */

struct coll_vote_state coll_vote_status(const struct coll_vote *board, enum coll_vote_phase round)
{
    const uint32_t decided = atomic_load(&board->sheet->decided[round]);
    struct coll_vote_state view = {.ending = (enum coll_vote_result)(decided & ((1u << ENDING_BITS) - 1)),
                                   .about = (int)(decided >> ENDING_BITS),
                                   .all = have_all_said(board, COLL_PHASE_PRESENT)};
    for (int rank = 0; rank < board->ranks; rank++) {
        if (coll_vote_has_cast(board, rank, COLL_PHASE_REACHED))
            view.paired |= word_of(board, rank, COLL_PHASE_REACHED)->paired != 0;
        if (coll_vote_has_cast(board, rank, round))
            continue;
        if (view.absent < COLL_NAMED_MAX)
            view.named[view.absent] = rank;
        view.absent++;
    }
    return view;
}

/* A meeting in host memory: a page of it, under a name that follows from the key. */

struct here {
    struct coll_rdv meeting;
    struct coll_vote board;
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

static struct coll_vote_page *map(int file, size_t size)
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
    if (coll_vote_claim_unlink(&here->board))
        (void)shm_unlink(here->name);
}

/* ---- The meeting_host_kind of meeting
 * ----------------------------------------------------------------------------------------- */

static struct coll_vote_state meeting_host_look(struct coll_rdv *meeting, enum coll_vote_phase round)
{
    const struct here *here = (const struct here *)meeting;
    coll_vote_evaluate(&here->board, round);
    return coll_vote_status(&here->board, round);
}

static void meeting_host_say(struct coll_rdv *meeting, enum coll_vote_phase round, const struct coll_ballot *word)
{
    const struct here *here = (const struct here *)meeting;
    coll_vote_cast(&here->board, meeting->rank, round, word);
    if (meeting_host_look(meeting, round).all)
        take_name_away(here);
}

static void meeting_host_pass(struct coll_rdv *meeting, uint32_t begun)
{
    coll_vote_note_raw(&((const struct here *)meeting)->board, meeting->rank, begun);
}

static void meeting_host_give_up(struct coll_rdv *meeting, enum coll_vote_phase round)
{
    const struct here *here = (const struct here *)meeting;
    coll_vote_publish(&here->board, round, COLL_VOTE_ABSENT, meeting->rank);
    take_name_away(here);
}

static void meeting_host_leave(struct coll_rdv *meeting)
{
    struct here *here = (struct here *)meeting;
    for (int round = 0; round < COLL_VOTE_PHASES && here->board.sheet != NULL; round++)
        coll_vote_publish(&here->board, (enum coll_vote_phase)round, COLL_VOTE_LEFT, meeting->rank);
    if (here->board.sheet != NULL) {
        take_name_away(here);
        (void)munmap(here->board.sheet, here->size);
    }
    if (here->file >= 0)
        (void)close(here->file);
    free(here);
}

static const struct coll_rdv_ops meeting_host_kind = {.say = meeting_host_say,
                                                      .pass = meeting_host_pass,
                                                      .look = meeting_host_look,
                                                      .give_up = meeting_host_give_up,
                                                      .leave = meeting_host_leave,
                                                      .least_ns = 20000,
                                                      .most_ns = 1000000,
                                                      .linger_ms = 100};

struct coll_rdv *coll_rdv_join_shm(const struct coll_key *key, int rank, int ranks)
{
    struct here *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    *made = (struct here){.meeting = {&meeting_host_kind, rank, ranks},
                          .board = {.ranks = ranks, .is_there = is_there, .whom = made},
                          .size = coll_vote_page_size(ranks),
                          .file = -1};
    snprintf(made->name, sizeof(made->name), "/strait-coll-%016llx%016llx", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
    if (open_board(made))
        return &made->meeting;
    meeting_host_leave(&made->meeting);
    return NULL;
}

/* A meeting at a process that is asked by TCP. */

/* For making a connection, and for an answer: that process has nothing else to do. If it is stopped for so long, it
 * finds that this rank has gone before it tells anybody that all go on. */
enum { CONNECT_MS = 4000, ANSWER_MS = 20000 };

struct there {
    struct coll_rdv meeting;
    int socket;                                     /* -1: the connection has ended */
    struct coll_vote_state views[COLL_VOTE_PHASES]; /* the last one of each round */
};

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* If there is no room, the other side has not read for long. */
static bool meeting_place_put(int socket, const uint8_t *frame)
{
    return send(socket, frame, MEET_FRAME_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) == MEET_FRAME_BYTES;
}

static bool get(int socket, uint8_t *frame)
{
    const int64_t until = now_ms() + ANSWER_MS;
    size_t got = 0;
    for (int64_t left = ANSWER_MS; got < MEET_FRAME_BYTES && left > 0; left = until - now_ms()) {
        struct pollfd ready = {.fd = socket, .events = POLLIN};
        if (poll(&ready, 1, (int)left) < 0 && errno != EINTR)
            return false;
        const ssize_t size = recv(socket, frame + got, MEET_FRAME_BYTES - got, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        got += size > 0 ? (size_t)size : 0;
    }
    return got == MEET_FRAME_BYTES;
}

/* Also for a connection that a forked process has inherited. */
static void hang_up(struct there *there)
{
    if (there->socket < 0)
        return;
    (void)shutdown(there->socket, SHUT_RDWR);
    (void)close(there->socket);
    there->socket = -1;
}

/* A decided view is final and is not asked for again. */
static struct coll_vote_state ask(struct there *there, enum coll_vote_phase round, const uint8_t *frame)
{
    struct coll_vote_state *view = &there->views[round];
    uint8_t answer[MEET_FRAME_BYTES];
    if (view->ending != COLL_VOTE_OPEN)
        return *view;
    if (there->socket >= 0 && meeting_place_put(there->socket, frame) && get(there->socket, answer) &&
        meet_view_get(answer, view))
        return *view;
    hang_up(there);
    view->ending = COLL_VOTE_LOST;
    return *view;
}

static struct coll_vote_state request(struct coll_rdv *meeting, enum meet_action action, enum coll_vote_phase round,
                                      const struct coll_ballot *word)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct meet_request request = {.action = action, .round = round};
    if (word != NULL)
        request.word = *word;
    meet_request_put(frame, &request);
    return ask((struct there *)meeting, round, frame);
}

/* ---- The meeting_place_kind of meeting
 * ----------------------------------------------------------------------------------------- */

static void meeting_place_say(struct coll_rdv *meeting, enum coll_vote_phase round, const struct coll_ballot *word)
{
    (void)request(meeting, MEET_SAY, round, word);
}

/* Not answered, so that the operation goes on at once. */
static void meeting_place_pass(struct coll_rdv *meeting, uint32_t begun)
{
    struct there *there = (struct there *)meeting;
    uint8_t frame[MEET_FRAME_BYTES];
    meet_request_put(frame, &(struct meet_request){.action = MEET_PASS, .word = {.index = begun}});
    if (there->socket >= 0 && !meeting_place_put(there->socket, frame))
        hang_up(there);
}

static struct coll_vote_state meeting_place_look(struct coll_rdv *meeting, enum coll_vote_phase round)
{
    return request(meeting, MEET_LOOK, round, NULL);
}

static void meeting_place_give_up(struct coll_rdv *meeting, enum coll_vote_phase round)
{
    (void)request(meeting, MEET_GIVE_UP, round, NULL);
}

static void meeting_place_leave(struct coll_rdv *meeting)
{
    struct there *there = (struct there *)meeting;
    uint8_t frame[MEET_FRAME_BYTES];
    meet_request_put(frame, &(struct meet_request){.action = MEET_LEAVE});
    if (there->socket >= 0)
        (void)meeting_place_put(there->socket, frame);
    hang_up(there);
    free(there);
}

/* Every meeting_place_look costs the one process that all ranks ask. */
static const struct coll_rdv_ops meeting_place_kind = {.say = meeting_place_say,
                                                       .pass = meeting_place_pass,
                                                       .look = meeting_place_look,
                                                       .give_up = meeting_place_give_up,
                                                       .leave = meeting_place_leave,
                                                       .least_ns = 300000,
                                                       .most_ns = 20000000,
                                                       .linger_ms = 0};

struct coll_rdv *coll_rdv_join_tcp(const struct coll_key *key, int rank, int ranks)
{
    uint8_t frame[MEET_FRAME_BYTES];
    struct meet_hello hello = {
        .words = {key->words[0], key->words[1]}, .rank = (uint32_t)rank, .ranks = (uint32_t)ranks};
    struct there *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return NULL;
    made->meeting = (struct coll_rdv){&meeting_place_kind, rank, ranks};
    made->socket = address_connect(&key->place.address, CONNECT_MS);
    memcpy(hello.secret, key->place.secret, COLL_SECRET_BYTES);
    meet_hello_put(frame, &hello);
    if (ask(made, COLL_PHASE_PRESENT, frame).ending != COLL_VOTE_LOST)
        return &made->meeting;
    meeting_place_leave(&made->meeting);
    return NULL;
}

struct coll_rdv *coll_rdv_join(const struct coll_key *key, int rank, int ranks)
{
    if (coll_key_is_none(key) || rank < 0 || rank >= ranks)
        return NULL;
    return coll_key_has_place(key) ? coll_rdv_join_tcp(key, rank, ranks) : coll_rdv_join_shm(key, rank, ranks);
}

void coll_rdv_vote(struct coll_rdv *meeting, enum coll_vote_phase round, const struct coll_ballot *word)
{
    meeting->kind->say(meeting, round, word);
}

void coll_rdv_leave(struct coll_rdv *meeting)
{
    if (meeting != NULL)
        meeting->kind->leave(meeting);
}

void coll_rdv_note_raw(struct coll_rdv *meeting, uint32_t begun)
{
    meeting->kind->pass(meeting, begun);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static enum coll_verdict verdict_of(const struct coll_vote_state *view)
{
    if (view->ending == COLL_VOTE_OPEN)
        return COLL_VERDICT_OPEN;
    return view->ending == COLL_VOTE_GO ? COLL_VERDICT_GO : COLL_VERDICT_RAW;
}

enum coll_verdict coll_rdv_poll(struct coll_rdv *meeting, enum coll_vote_phase round)
{
    const struct coll_vote_state view = meeting->kind->look(meeting, round);
    return verdict_of(&view);
}

/* At first ranks come within a moment of each other; later, a sixteenth of the time so far is soon enough. */
static void nap(const struct coll_rdv_ops *kind, int64_t ms)
{
    const int64_t part = ms * 1000000 / 16, most = part < kind->most_ns ? part : kind->most_ns;
    nanosleep(&(struct timespec){.tv_nsec = most > kind->least_ns ? most : kind->least_ns}, NULL);
}

/* Ranks that have still to come are close behind; any later ones wait in vain. */
static bool is_over(struct coll_rdv *meeting, enum coll_vote_phase round, int64_t ms, int64_t *decided_ms)
{
    const struct coll_vote_state view = meeting->kind->look(meeting, round);
    if (view.ending == COLL_VOTE_OPEN)
        return false;
    if (*decided_ms < 0)
        *decided_ms = ms;
    return view.all || ms - *decided_ms >= meeting->kind->linger_ms;
}

enum coll_verdict coll_rdv_wait(struct coll_rdv *meeting, enum coll_vote_phase round,
                                bool (*go_on)(struct coll_rdv *meeting, int64_t ms, void *argument), void *argument)
{
    const int64_t begin = now_ms();
    int64_t ms = 0, decided_ms = -1;
    while (!is_over(meeting, round, ms, &decided_ms) && go_on(meeting, ms, argument)) {
        nap(meeting->kind, ms);
        ms = now_ms() - begin;
    }
    meeting->kind->give_up(meeting, round);
    return coll_rdv_poll(meeting, round);
}

bool coll_rdv_any_paired(struct coll_rdv *meeting)
{
    return meeting->kind->look(meeting, COLL_PHASE_REACHED).paired;
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

static void put_absent(const struct coll_vote_state *view, char *text, size_t size)
{
    const int named = view->absent < COLL_NAMED_MAX ? view->absent : COLL_NAMED_MAX;
    snprintf(text, size, view->absent == 1 ? "rank" : "ranks");
    for (int i = 0; i < named; i++)
        put(text, size, "%s %d", i == 0 ? "" : ",", view->named[i]);
    if (view->absent > named)
        put(text, size, " and %d more", view->absent - named);
}

void coll_rdv_missing(struct coll_rdv *meeting, enum coll_vote_phase round, char *text, size_t size)
{
    const struct coll_vote_state view = meeting->kind->look(meeting, round);
    put_absent(&view, text, size);
}

/* If all absent ranks have come since, they came too late. */
static void put_why_absent(const struct coll_rdv *meeting, const struct coll_vote_state *view, char *text, size_t size)
{
    char absent[96];
    put_absent(view, absent, sizeof(absent));
    if (view->absent == 0)
        snprintf(text, size, "some of its ranks came too late");
    else
        snprintf(text, size, "%s did not come in time: other values of STRAIT_COLL there, no libstrait-coll%s", absent,
                 meeting->kind->linger_ms > 0 ? ", or another host" : "");
}

void coll_rdv_reason(struct coll_rdv *meeting, enum coll_vote_phase round, char *text, size_t size)
{
    static const char *const texts[COLL_VOTE_RESULTS] = {
        [COLL_VOTE_ENDED] = "rank %d has ended",
        [COLL_VOTE_UNABLE] = "rank %d is not able to, and has said why",
        [COLL_VOTE_DIFFERS] = "rank %d blocks where others do not, or has begun other operations",
        [COLL_VOTE_ONE_THREAD] =
            "rank %d is called by a thread that has another rank of it, and nothing of it may block",
        [COLL_VOTE_LEFT] = "rank %d has left",
        [COLL_VOTE_LOST] = "the process that made the unique id is not reached any more"};
    const struct coll_vote_state view = meeting->kind->look(meeting, round);
    if (view.ending == COLL_VOTE_ABSENT)
        put_why_absent(meeting, &view, text, size);
    else if (view.ending < COLL_VOTE_RESULTS && texts[view.ending] != NULL)
        snprintf(text, size, texts[view.ending], view.about);
}
