/* The report of what was counted, for people. */
#ifndef STRAIT_COLLECTIVE_REPORT_H
#define STRAIT_COLLECTIVE_REPORT_H

#include <stddef.h>

#include "collective/nccl_types.h"

/* Implements strait_coll_report (include/strait/collective.h). */
size_t coll_report(coll_comm comm, char *dst, size_t dst_capacity);

/* Prints on stderr, if STRAIT_COLL_PRINT is set: for a communicator that ends, and for the process. */
void coll_report_ended(coll_comm comm);
void coll_report_process(void);

#endif
