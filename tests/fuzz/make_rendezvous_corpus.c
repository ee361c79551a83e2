/* make_rendezvous_corpus FOLDER: writes the seeds of the target rendezvous to FOLDER/rendezvous/. The same bytes on
 * every machine. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "collective/rdv_server.h"
#include "tests/support.h"

enum { HANG_UP = 4, SECRET = 8, HALF = 16, RECORDS_MAX = 32 }; /* as in fuzz_rendezvous.c */

static const char *folder;
static uint8_t bytes[RECORDS_MAX * (1 + RDV_FRAME_BYTES)];
static size_t size;

static uint8_t *add(unsigned how)
{
    bytes[size] = (uint8_t)how;
    uint8_t *frame = bytes + size + 1;
    size += 1 + RDV_FRAME_BYTES;
    require(size <= sizeof(bytes));
    return frame;
}

static void come(unsigned how, uint32_t rank, uint32_t ranks)
{
    const struct rdv_hello hello = {.words = {1, 2}, .rank = rank, .ranks = ranks};
    rdv_hello_write(add(how | SECRET), &hello);
}

static void ask(unsigned how, enum rdv_action action, enum coll_vote_phase round, uint32_t able)
{
    const struct rdv_request request = {action, round, {.able = able, .blocks = 1, .index = action == RDV_NOTE_RAW}};
    rdv_request_write(add(how), &request);
}

static void write_seed(const char *name)
{
    char path[4096];
    require(snprintf(path, sizeof(path), "%s/rendezvous", folder) < (int)sizeof(path));
    require(mkdir(path, 0777) == 0 || errno == EEXIST);
    require(snprintf(path, sizeof(path), "%s/rendezvous/%s", folder, name) < (int)sizeof(path));
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
    size = 0;
}

static void both_come(void)
{
    come(0, 0, 2);
    come(1, 1, 2);
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(1, RDV_VOTE, COLL_PHASE_PRESENT, 1);
}

int main(int argc, char **argv)
{
    require(argc == 2);
    folder = argv[1];
    both_come();
    for (unsigned round = COLL_PHASE_REACHED; round < COLL_VOTE_PHASES; round++)
        for (unsigned who = 0; who < 2; who++)
            ask(who, RDV_VOTE, (enum coll_vote_phase)round, 1);
    ask(0, RDV_POLL, COLL_PHASE_ABLE, 0);
    ask(0, RDV_LEAVE, COLL_PHASE_PRESENT, 0);
    write_seed("two-go");
    both_come();
    ask(1, RDV_VOTE, COLL_PHASE_ABLE, 0);
    ask(0, RDV_VOTE, COLL_PHASE_ABLE, 1);
    write_seed("one-is-not-able");
    come(0, 0, 3);
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(0 | HANG_UP, RDV_ABORT, COLL_PHASE_PRESENT, 0);
    come(1, 1, 3);
    ask(1, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    write_seed("one-comes-late");
    both_come();
    ask(0, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    write_seed("a-second-word");
    come(0, 0, 2);
    come(1, 0, 2);
    come(2, 1, 3);
    come(3, 64, 64);
    write_seed("seats-that-are-taken");
    come(0 | HALF, 0, 2);
    come(1, 1, 2);
    ask(1 | HALF, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    ask(1 | HANG_UP, RDV_VOTE, COLL_PHASE_PRESENT, 1);
    write_seed("halves");
    both_come();
    ask(0, (enum rdv_action)7, COLL_PHASE_PRESENT, 1);
    ask(1, RDV_POLL, (enum coll_vote_phase)3, 1);
    write_seed("requests-unknown");
    both_come();
    ask(1, RDV_NOTE_RAW, COLL_PHASE_REACHED, 1);
    ask(0, RDV_VOTE, COLL_PHASE_REACHED, 1);
    write_seed("one-passes");
    return 0;
}
