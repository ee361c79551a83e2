#include "tests/soak/scene.h"

bool scene_init(struct scene *scene, const char *program, const struct daemon_options *options, const struct form *form)
{
    const struct world_plan plan = {.daemon_count = 2,
                                    .worker_count = 2,
                                    .form_count = 1,
                                    .daemons = {*options, *options},
                                    .worker_nodes = {0, 1},
                                    .forms = form};
    if (!world_init(&scene->world, program, &plan))
        return false;
    scene->ways[0] = world_route(&scene->world, 0, 1, 0);
    scene->ways[1] = world_route(&scene->world, 1, 0, 0);
    return scene->ways[0] != NULL && scene->ways[1] != NULL;
}

void scene_fini(struct scene *scene)
{
    world_fini(&scene->world);
}
