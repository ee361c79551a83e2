/* What the scenarios have in common: two daemons with a worker each, and ways in both directions. */
#ifndef STRAIT_TESTS_SOAK_SCENE_H
#define STRAIT_TESTS_SOAK_SCENE_H

#include "tests/soak/group.h"

struct scene {
    struct world world;
    const struct route *ways[2];
};

/* False: complained. scene_fini in any case. */
bool scene_init(struct scene *scene, const char *program, const struct daemon_options *options,
                const struct form *form);
void scene_fini(struct scene *scene);

#endif
