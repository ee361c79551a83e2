#include "bench/sources.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/util.h"

bool sources_init(struct sources *sources, int argc)
{
    *sources = (struct sources){.inputs = calloc((size_t)argc + 1, sizeof(sources->inputs[0])),
                                .calibs = calloc((size_t)argc + 1, sizeof(sources->calibs[0]))};
    if (sources->inputs == NULL || sources->calibs == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    return true;
}

void sources_fini(struct sources *sources)
{
    free(sources->inputs);
    free(sources->calibs);
}

bool sources_set(struct sources *sources, int option, const char *text)
{
    switch (option) {
    case OPT_INPUT:
        sources->inputs[sources->input_count++] = text;
        return true;
    case OPT_CALIB:
        sources->calibs[sources->calib_count++] = text;
        return true;
    case OPT_CODEBOOK:
        sources->codebook = text;
        return true;
    default:
        return false;
    }
}

/* ---- The input that comes with the program ----------------------------------------------------------------------- */

/* The folder of the running program, with a trailing slash; empty when unknown. */
static void find_folder(char *folder, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", folder, size - 1);

    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[1] = '\0';
}

static const char *default_input(void)
{
    static const char *const places[] = {"../share/strait/kv-slice.safetensors",
                                         "../../../tests/data/kv-slice.safetensors"};
    static char path[PATH_MAX + 64];
    char folder[PATH_MAX];

    find_folder(folder, sizeof(folder));
    for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", folder, places[i]);
        if (access(path, R_OK) == 0)
            return path;
    }
    print_error(NULL, "no --input, and neither %s nor %s is in %s", places[0], places[1], folder);
    return NULL;
}

bool sources_complete(struct sources *sources)
{
    if (sources->codebook != NULL && sources->calib_count > 0) {
        print_error(NULL, "--codebook and --calib exclude each other");
        return false;
    }
    if (sources->input_count == 0)
        sources->inputs[sources->input_count++] = default_input();
    return sources->inputs[0] != NULL;
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

void names_print(const char *const *names, unsigned count, FILE *stream)
{
    for (unsigned i = 0; i < count; i++)
        fprintf(stream, "%s%s", i > 0 ? ", " : "", names[i]);
}

void sources_print_codebook(const struct sources *sources, FILE *stream)
{
    if (sources->codebook != NULL) {
        fprintf(stream, "; codebook %s", sources->codebook);
        return;
    }
    fprintf(stream, "; codebook calibrated on ");
    if (sources->calib_count > 0)
        names_print(sources->calibs, sources->calib_count, stream);
    else
        fprintf(stream, "the same file%s", sources->input_count > 1 ? "s" : "");
}
