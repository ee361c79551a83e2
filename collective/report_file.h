/* Reports for programs: with STRAIT_COLL_REPORT=FOLDER, each process that has made a communicator keeps one file there,
 * strait-coll-HOST-PROCESS-TIME.json, which `strait collectives report` reads. docs/collectives.md has its fields.
 *
 * A thread of the library writes it every few seconds if anything has changed, and when a communicator ends; the
 * process writes it a last time when it exits. A file is renamed to its name when it is whole. The text is made here
 * and not by a JSON library, as what is preloaded under every program links nothing but the system. */
#ifndef STRAIT_COLLECTIVE_REPORT_FILE_H
#define STRAIT_COLLECTIVE_REPORT_FILE_H

#include "collective/comm.h"

#define COLL_REPORT_SCHEMA  "strait-coll report"
#define COLL_REPORT_VERSION 1

enum {
    COLL_REPORT_EVERY_S = 5,
    COLL_REPORT_ENDED_MAX = 256, /* communicators that have ended; of more, the oldest are only counted */
};

/* Called when the process has made a communicator: from then on it has a file. Nothing is done without the setting. */
void coll_report_begin(void);

/* As coll_comm_detach, of a communicator that its program ends: what it did stays in the file. */
struct coll_comm_entry *coll_report_detach(coll_comm comm);

/* Around fork: a child begins with no file. */
void coll_report_lock(void);
void coll_report_unlock(void);
void coll_report_unlock_in_child(void);

#endif
