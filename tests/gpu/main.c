/* Transfers between pools in memory of real GPUs, through daemons of their own. Each scene runs in a process of its
 * own:
 *
 *   gpu_pools STRAITD              all scenes
 *   gpu_pools STRAITD SCENE ...    some of them
 *   gpu_pools STRAITD --run SCENE  this one, here */
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/scenes.h"

#define SECONDS_MAX 120u

extern char **environ;

static const struct scene *scene_find(const char *name)
{
    for (int i = 0; i < scene_count; i++)
        if (strcmp(scenes[i].name, name) == 0)
            return &scenes[i];
    return NULL;
}

static int run_here(const char *name)
{
    const struct scene *scene = scene_find(name);
    require(scene != NULL);
    setpgid(0, 0); /* its daemons are in its group */
    alarm(SECONDS_MAX * (unsigned)patience());
    world_begin();
    scene->run();
    world_end();
    printf("%s: passed\n", name);
    return 0;
}

/* 0: passed. */
static int run_apart(const char *program, const char *name)
{
    char *arguments[] = {(char *)program, (char *)straitd_path, "--run", (char *)name, NULL};
    pid_t pid;
    int status = -1;
    fflush(stdout);
    require(posix_spawn(&pid, program, NULL, NULL, arguments, environ) == 0);
    require(waitpid(pid, &status, 0) == pid);
    kill(-pid, SIGKILL); /* what it left behind */
    if (status != 0)
        printf("%s: FAILED, status %x\n", name, (unsigned)status);
    return status != 0;
}

int main(int argc, char **argv)
{
    require(argc >= 2);
    straitd_path = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[2], "--run") == 0)
        return run_here(argv[3]);
    if (count_devices() == 0) {
        printf("skipped: no GPU here\n");
        return 77;
    }
    int failed = 0;
    for (int i = 0; i < scene_count; i++)
        if (is_named(scenes[i].name, argc - 2, argv + 2))
            failed += run_apart(argv[0], scenes[i].name);
    return failed != 0;
}
