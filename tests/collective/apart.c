/* apart FILE KIND RANK RANKS: the rendezvous of one rank of a communicator, without NCCL. Rank 0 asks for the unique
 * id, and leaves it in FILE. KIND: `there`, by TCP; `here`, in shared memory; `dropped`, by TCP though not all ranks
 * reach the server. Prints the verdict: "go", or the reason of another one. */
#include <string.h>
#include <unistd.h>

#include "collective/rendezvous.h"
#include "tests/support.h"
#include "transport/rank_address.h"

enum { WAIT_MS = 20000, ALONE_MS = 1000 };

static void leave_id(const char *path, const coll_id *id)
{
    char part[4096];
    require(snprintf(part, sizeof(part), "%s.part", path) < (int)sizeof(part));
    FILE *file = fopen(part, "wb");
    require(file != NULL && fwrite(id, sizeof(*id), 1, file) == 1 && fclose(file) == 0 && rename(part, path) == 0);
}

static coll_id find_id(const char *path)
{
    coll_id id;
    FILE *file;
    while ((file = fopen(path, "rb")) == NULL)
        usleep(1000);
    require(fread(&id, sizeof(id), 1, file) == 1 && fclose(file) == 0);
    return id;
}

/* As ranks do (join.c): one that does not reach the server joins in shared memory. */
static struct coll_rdv *join(const struct coll_key *key, int rank, int ranks)
{
    const struct coll_key here = {.words = {key->words[0], key->words[1]}};
    const int64_t begin = now_ms();
    struct coll_rdv *rdv = coll_rdv_join(key, rank, ranks);
    if (rdv != NULL)
        return rdv;
    printf("rank %d: not reached for %d ms\n", rank, (int)(now_ms() - begin));
    return coll_rdv_join(&here, rank, ranks);
}

static bool until_limit(struct coll_rdv *rdv, int64_t ms, void *argument)
{
    (void)rdv;
    return ms < *(const int *)argument;
}

static void decide(struct coll_rdv *rdv, int rank, int limit_ms)
{
    char text[200] = "go";
    const struct coll_ballot ballot = {.able = 1, .blocks = 1, .thread = (uint64_t)rank};
    enum coll_verdict verdict = COLL_VERDICT_GO;
    for (int phase = 0; phase < COLL_VOTE_PHASES && verdict == COLL_VERDICT_GO; phase++) {
        coll_rdv_vote(rdv, (enum coll_vote_phase)phase, &ballot);
        verdict = coll_rdv_wait(rdv, (enum coll_vote_phase)phase, until_limit, &limit_ms);
        if (verdict != COLL_VERDICT_GO)
            coll_rdv_reason(rdv, (enum coll_vote_phase)phase, text, sizeof(text));
    }
    printf("rank %d: %s\n", rank, text);
}

/* The process with the place stays until all have left. */
int main(int argc, char **argv)
{
    require(argc == 5);
    const int rank = atoi(argv[3]), ranks = atoi(argv[4]);
    const bool there = strcmp(argv[2], "there") == 0, here = strcmp(argv[2], "here") == 0;
    coll_id id = {"an id of a test"};
    if (rank == 0) {
        coll_unique_id_put(&id);
        leave_id(argv[1], &id);
    }
    id = find_id(argv[1]);
    struct coll_key key = coll_key_of(&id, sizeof(id));
    if (!here)
        coll_unique_id_read(&id, &key.server);
    require(coll_key_has_server(&key) != here);
    struct coll_rdv *rdv = join(&key, rank, ranks);
    require(rdv != NULL);
    decide(rdv, rank, there ? WAIT_MS : ALONE_MS);
    coll_rdv_leave(rdv);
    fflush(stdout);
    if (rank == 0)
        (void)getchar();
    return 0;
}
