#include "tests/nccl_ep/ranks.h"

#include <check.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective/api.h"

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

coll_result ncclGetUniqueId(coll_id *id);
coll_result ncclCommInitRank(coll_comm *made, int ranks, coll_id id, int rank);
coll_result ncclCommDestroy(coll_comm comm);

const unsigned token_counts[RANKS] = {6, 0, 3, 5};

void run_ranks(unsigned ranks, void (*run)(unsigned rank, nep_comm comm))
{
    pid_t pids[RANKS];
    coll_id id;

    require(ncclGetUniqueId(&id) == COLL_SUCCESS);
    for (unsigned rank = 0; rank < ranks; rank++) {
        pids[rank] = fork();
        require(pids[rank] >= 0);
        if (pids[rank] != 0)
            continue;
        coll_comm comm;
        require(ncclCommInitRank(&comm, (int)ranks, id, (int)rank) == COLL_SUCCESS);
        run(rank, comm);
        require(ncclCommDestroy(comm) == COLL_SUCCESS);
        _exit(0);
    }
    for (unsigned rank = 0; rank < ranks; rank++) {
        int status = -1;
        require(waitpid(pids[rank], &status, 0) == pids[rank]);
        if (status != 0) /* the others would wait for it */
            for (unsigned other = rank + 1; other < ranks; other++)
                kill(pids[other], SIGKILL);
        ck_assert_msg(status == 0, "rank %u: status %x", rank, (unsigned)status);
    }
}

/* ---- What ranks route -------------------------------------------------------------------------------------------- */

int64_t expert_of(unsigned rank, unsigned token, unsigned k)
{
    if ((rank + token) % 7 == 5 || (k == 2 && (rank + token) % 3 == 0))
        return -1;
    return (rank * 3 + token * 5 + k * (1 + token % 2)) % EXPERTS;
}

float weight_of(unsigned rank, unsigned token, unsigned k)
{
    return 0.5f + (float)(rank + token + k) / 4.0f;
}

bool is_on(unsigned rank, unsigned token, unsigned d)
{
    for (unsigned k = 0; k < TOPK; k++)
        if (expert_of(rank, token, k) >= 0 && (unsigned)expert_of(rank, token, k) / LOCAL == d)
            return true;
    return false;
}

unsigned ranks_of(unsigned rank, unsigned token)
{
    unsigned count = 0;
    for (unsigned d = 0; d < RANKS; d++)
        count += is_on(rank, token, d);
    return count;
}

unsigned rows_of_expert(unsigned expert)
{
    unsigned count = 0;
    for (unsigned s = 0; s < RANKS; s++)
        for (unsigned t = 0; t < token_counts[s]; t++)
            for (unsigned k = 0; k < TOPK; k++)
                count += expert_of(s, t, k) == expert;
    return count;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

struct nep_tensor *shape(struct shaped *shaped, int type, void *data, size_t a, size_t b, size_t c)
{
    *shaped = (struct shaped){.sizes = {a, b, c}};
    shaped->tensor = (struct nep_tensor){.head = {sizeof(shaped->tensor), NEP_TENSOR_MAGIC},
                                         .dims = c != 0   ? 3
                                                 : b != 0 ? 2
                                                          : 1,
                                         .type = type,
                                         .data = data,
                                         .sizes = shaped->sizes};
    return &shaped->tensor;
}
