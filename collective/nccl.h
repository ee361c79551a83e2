/* NCCL, loaded behind the functions of the same names that this library exports. */
#ifndef STRAIT_COLLECTIVE_NCCL_H
#define STRAIT_COLLECTIVE_NCCL_H

#include "collective/api.h"
#include "collective/settings.h"

/* Functions of NCCL; NULL: not in the installed version. */
struct coll_table {
#define X(returns, name, parameters, arguments, way, ...) COLL_TYPE_##returns(*name) parameters;
    COLL_API(X)
#undef X
};

enum { COLL_PATH_MAX = 512 };

struct coll_library {
    /* The functions named ncclX, and those named pncclX. They differ if another library that overrides some ncclX lies
     * between us and NCCL: it calls pncclX, which must not lead back to it. */
    struct coll_table nccl, pnccl;
    struct coll_settings settings;
    bool found;   /* an NCCL was found */
    bool forward; /* what was found is another copy of this library, which intercepts the calls */
    int version;  /* as ncclGetVersion reports it; 0: unknown */
    char path[COLL_PATH_MAX];
};

/* Loaded in the first call, and never changed: STRAIT_COLL_NCCL, else the next library in link order that has NCCL's
 * functions, else libnccl.so.2 as the loader finds it or has it already. Any thread. */
const struct coll_library *coll_library(void);

/* NULL: not loaded yet. Any thread. */
const struct coll_library *coll_library_if_loaded(void);

/* Around fork, so that the child can load NCCL. */
void coll_library_lock(void);
void coll_library_unlock(void);
void coll_library_unlock_in_child(void);

/* Returns the result of a function that the installed NCCL lacks; reported on stderr once for each function. */
coll_result coll_report_missing(const char *name);

/* ---- Graph capture ----------------------------------------------------------------------------------------------- */

/* Finds the driver, which NCCL has loaded by the time that the first communicator is made. Not done in every call,
 * because the loader must not be called in a process that was just forked. Any thread. */
void coll_capture_prepare(void);

/* Whether work queued on the stream goes into a CUDA graph. False without a driver. Any thread. */
bool coll_is_captured(coll_stream stream);

#endif
