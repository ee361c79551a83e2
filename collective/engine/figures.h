/* Figures of a communicator for reports (collective/report_file.h). */
#ifndef STRAIT_COLLECTIVE_ENGINE_FIGURES_H
#define STRAIT_COLLECTIVE_ENGINE_FIGURES_H

#include "collective/engine.h"

/* As coll_engine_ops.figures. */
void ccomm_figures(struct coll_ccomm *ccomm, bool look, struct coll_figures *figures);

#endif
