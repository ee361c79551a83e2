/* Ranks of a program that calls NCCL EP's functions: processes with a fake NCCL whose device is the host, what they
 * route, and descriptors. */
#ifndef STRAIT_TESTS_NCCL_EP_RANKS_H
#define STRAIT_TESTS_NCCL_EP_RANKS_H

#include "ep/nccl_ep/abi.h"
#include "tests/support.h"

enum { RANKS = 4, EXPERTS = 8, LOCAL = EXPERTS / RANKS, TOPK = 3, TOKENS_MAX = 6 };
extern const unsigned token_counts[RANKS];

/* Runs `run` in as many processes; each has to return. */
void run_ranks(unsigned ranks, void (*run)(unsigned rank, nep_comm comm));

/* ---- What ranks route -------------------------------------------------------------------------------------------- */

/* Distinct experts; one token has none, some have fewer than TOPK. */
int64_t expert_of(unsigned rank, unsigned token, unsigned k);
float weight_of(unsigned rank, unsigned token, unsigned k);
/* Whether the token goes to rank d. */
bool is_on(unsigned rank, unsigned token, unsigned d);
unsigned ranks_of(unsigned rank, unsigned token);
unsigned rows_of_expert(unsigned expert);

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

struct shaped {
    struct nep_tensor tensor;
    size_t sizes[3];
};

/* Dimensions of 0 at the end are left out. */
struct nep_tensor *shape(struct shaped *shaped, int type, void *data, size_t a, size_t b, size_t c);

#define STRUCT(type, ...) ((struct type){.head = {sizeof(struct type), NEP_MAGIC}, __VA_ARGS__})

#endif
