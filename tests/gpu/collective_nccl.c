#include "tests/gpu/collective_nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

struct nccl nccl;

void nccl_open(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) require((*(void **)&nccl.name = dlsym(handle, "nccl" #name)) != NULL)
    FIND(GetUniqueId);
    FIND(CommInitRank);
    FIND(CommInitAll);
    FIND(CommSplit);
    FIND(CommDestroy);
    FIND(CommAbort);
    FIND(CommGetAsyncError);
    FIND(AllGather);
    FIND(AlltoAll);
    FIND(ReduceScatter);
    FIND(AllReduce);
    FIND(Send);
    FIND(Recv);
    FIND(GroupStart);
    FIND(GroupEnd);
    FIND(GetErrorString);
#undef FIND
    *(void **)&nccl.report = dlsym(handle, "strait_coll_report");
}

void require_nccl(coll_result result)
{
    if (result != COLL_SUCCESS && result != COLL_IN_PROGRESS)
        fprintf(stderr, "NCCL: %s\n", nccl.GetErrorString(result));
    require(result == COLL_SUCCESS || result == COLL_IN_PROGRESS);
}

unsigned long long nccl_compressed(coll_comm comm, const char *operation)
{
    static _Thread_local char text[1 << 16];
    unsigned long long found = 0;
    if (nccl.report == NULL)
        return 0;
    require(nccl.report(comm, text, sizeof(text)) <= sizeof(text));
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
        char of[32], type[32];
        unsigned long long compressed;
        if (sscanf(line, "%31s %31s %*u %*u %*u %*u %*u %llu", of, type, &compressed) == 3 &&
            strcmp(of, operation) == 0)
            found += compressed;
    }
    return found;
}
