/* caller [--local|--global LIBRARY] [--pnccl] SUBJECT: calls NCCL. Built three ways: linked with it, as a module that
 * is linked with it and opened by another program, and linked with nothing, opening it by name.
 *
 * Environment: FAKE_NCCL: the path of the fake that is to be reached in the end. */
#include "tests/collective/caller.h"

#include <dlfcn.h>
#include <string.h>

struct caller nccl;

/* ---- Finding it ----------------------------------------------------------------------------------------------------
 */

static void *opened = RTLD_DEFAULT;

static void *find(const char *prefix, const char *name)
{
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "%s%s", prefix, name);
    return dlsym(opened, symbol);
}

static void open_library(const char *path, int flag)
{
    opened = dlopen(path, RTLD_NOW | flag);
    if (opened == NULL)
        fprintf(stderr, "%s\n", dlerror());
    require(opened != NULL);
}

static void find_functions(const char *prefix)
{
#define X(name) *(void **)&nccl.name = find(prefix, #name);
    FAKE_NAMES(X)
#undef X
}

#ifdef CALLER_LINKED
static void link_functions(void)
{
#define X(name) nccl.name = nccl##name;
    FAKE_NAMES(X)
#undef X
}
#endif

static void find_fake(void)
{
    const char *path = getenv("FAKE_NCCL");
    void *fake = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (fake == NULL)
        return;
    *(void **)&nccl.take = dlsym(fake, "fake_take");
    *(void **)&nccl.answer = dlsym(fake, "fake_answer");
    *(void **)&nccl.last_error = dlsym(fake, "fake_last_error");
    require(nccl.take != NULL && nccl.answer != NULL && nccl.last_error != NULL);
}

static void find_strait(void)
{
    *(void **)&nccl.report = find("strait_coll_", "report");
    *(void **)&nccl.pin = find("strait_coll_", "pin");
    *(void **)&nccl.nccl = find("strait_coll_", "nccl");
    *(void **)&nccl.version = find("strait_coll_", "version");
}

/* Before the fake is opened here by its path: else it would be found as what the process has already. */
static void let_it_look(void)
{
    const char *path;
    int version;
    if (nccl.nccl != NULL)
        (void)nccl.nccl(&path, &version);
}

/* ---- Reports -------------------------------------------------------------------------------------------------------
 */

/* With single spaces. To be freed. */
static char *report_of(coll_comm comm)
{
    size_t size = nccl.report(comm, NULL, 0), used = 0;
    char *text = malloc(size + 1);
    require(size > 0 && text != NULL && nccl.report(comm, text, size) == size && strlen(text) == size - 1);
    for (const char *from = text; *from != '\0'; from++)
        if (*from != ' ' || (used > 0 && text[used - 1] != ' '))
            text[used++] = *from;
    text[used] = '\0';
    return text;
}

bool report_has(coll_comm comm, const char *part)
{
    char *text = report_of(comm);
    bool has = strstr(text, part) != NULL;
    free(text);
    return has;
}

void require_row(coll_comm comm, const char *operation, const char *type, const char *numbers)
{
    char row[256];
    snprintf(row, sizeof(row), "\n%s %s %s 0 0 raw: ", operation, type, numbers);
    if (!report_has(comm, row)) {
        char *text = report_of(comm);
        fprintf(stderr, "no such row: %s\nin:\n%s", row + 1, text);
        free(text);
        exit(1);
    }
}

/* ---- The program ---------------------------------------------------------------------------------------------------
 */

static const struct {
    const char *name;
    void (*check)(void);
} subjects[] = {
    {"every", check_every}, {"older", check_older},   {"missing", check_missing}, {"groups", check_groups},
    {"comms", check_comms}, {"counts", check_counts}, {"capture", check_capture}, {"threads", check_threads},
    {"fork", check_fork},   {"real", check_real},
};

static void run(const char *name)
{
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++)
        if (strcmp(subjects[i].name, name) == 0) {
            subjects[i].check();
            return;
        }
    fprintf(stderr, "no subject %s\n", name);
    exit(1);
}

FAKE_VISIBLE int caller_main(int argc, char **argv);
int caller_main(int argc, char **argv)
{
    const char *prefix = "nccl";
    int i = 1;
    for (; i < argc - 1; i++) {
        if (strcmp(argv[i], "--pnccl") == 0)
            prefix = "pnccl";
        else if (strcmp(argv[i], "--local") == 0)
            open_library(argv[++i], RTLD_LOCAL);
        else if (strcmp(argv[i], "--global") == 0)
            open_library(argv[++i], RTLD_GLOBAL);
    }
    require(i < argc);
#ifdef CALLER_LINKED
    if (i == 1) /* nothing was asked for by name */
        link_functions();
#endif
    if (nccl.AllReduce == NULL)
        find_functions(prefix);
    find_strait();
    if (strcmp(argv[i], "threads") != 0)
        let_it_look();
    find_fake();
    run(argv[i]);
    return 0;
}

#ifndef CALLER_MODULE
int main(int argc, char **argv)
{
    return caller_main(argc, argv);
}
#endif
