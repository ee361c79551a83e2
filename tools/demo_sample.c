#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/classes.h"
#include "tools/demo.h"
#include "tools/histograms.h"
#include "tools/tensors.h"
#include "tools/util.h"

#define WINDOW_STEP 97u /* values between the beginnings of successive pages; odd, so that pages differ */

/* ---- The file --------------------------------------------------------------------------------------------------- */

/* Path of the sample, relative to the program's folder in an installation, or in a build tree. The caller frees it. */
static char *find_sample(void)
{
    static const char place[] = "../share/strait/kv-slice.safetensors";
    char program[PATH_MAX], *path = NULL;
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[size > 0 ? size : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    if (asprintf(&path, "%s/%s", program, place) < 0) {
        print_error(NULL, "out of memory");
        return NULL;
    }
    if (access(path, R_OK) == 0)
        return path;
    print_error(path, "%s: is the installation complete?", strerror(errno));
    free(path);
    return NULL;
}

/* ---- Pages ------------------------------------------------------------------------------------------------------ */

/* Fills the page from a window of the tensor, taken as a ring. Every page has another window, so that a misplaced page
 * is noticed. */
static void fill_page(uint8_t *page, const struct span *span, uint32_t index)
{
    uint64_t size = 2 * span->values, at = 2 * ((uint64_t)index * WINDOW_STEP % span->values);
    for (uint64_t done = 0, part; done < DEMO_PAGE_BYTES; done += part) {
        part = size - at < DEMO_PAGE_BYTES - done ? size - at : DEMO_PAGE_BYTES - done;
        memcpy(page + done, span->data + at, part);
        at = 0;
    }
}

static bool fill_pages(struct demo_sample *sample, const struct spans *spans)
{
    sample->region_count = (uint32_t)spans->count;
    sample->page_count = DEMO_BYTES / DEMO_PAGE_BYTES / sample->region_count;
    sample->classes = calloc(sample->region_count, sizeof(sample->classes[0]));
    if (sample->classes == NULL || strait_alloc(demo_bytes(sample), &sample->memory) != STRAIT_OK) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t region = 0; region < sample->region_count; region++) {
        sample->classes[region] = spans->list[region].class;
        for (uint32_t page = 0; page < sample->page_count; page++)
            fill_page(demo_page(&sample->memory, sample, region, page), &spans->list[region], page);
    }
    return true;
}

/* ---- Codebook --------------------------------------------------------------------------------------------------- */

static enum strait_status serialize(const struct strait_codebook *codebook, struct demo_sample *sample)
{
    sample->set_size = strait_codebook_serialized_size(codebook);
    sample->set = malloc(sample->set_size);
    return sample->set == NULL ? STRAIT_ERR_NO_MEMORY
                               : strait_codebook_serialize(codebook, sample->set, sample->set_size);
}

static bool calibrate(struct demo_sample *sample, struct spans *spans)
{
    struct histograms histograms = {0};
    struct progress progress;
    struct strait_codebook *codebook = NULL;
    progress_begin(&progress, "counting", PROGRESS_TOTAL_UNKNOWN, true);
    enum strait_status status = spans_count(spans, 1, &progress, &histograms) ? STRAIT_OK : STRAIT_ERR_NO_MEMORY;
    progress_end(&progress);
    if (status == STRAIT_OK)
        status = histograms_codebook(&histograms, false, &codebook);
    if (status == STRAIT_OK)
        status = serialize(codebook, sample);
    if (status != STRAIT_OK)
        print_error(NULL, "calibration of the sample: %s", strait_status_string(status));
    strait_codebook_destroy(codebook);
    histograms_fini(&histograms);
    return status == STRAIT_OK;
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

static bool take(struct demo_sample *sample, struct tensors *tensors)
{
    size_t count = tensors->spans.count;
    if (count == 0 || count > DEMO_BYTES / DEMO_PAGE_BYTES) {
        print_error(sample->path, "not a sample for this: %zu BF16 tensors", count);
        return false;
    }
    return calibrate(sample, &tensors->spans) && fill_pages(sample, &tensors->spans);
}

bool demo_sample_init(struct demo_sample *sample)
{
    struct tensors tensors;
    *sample = (struct demo_sample){.path = find_sample(), .memory.fd = -1};
    struct class_rules *rules = class_rules_create();
    if (rules == NULL)
        print_error(NULL, "out of memory");
    bool taken = rules != NULL && sample->path != NULL &&
                 tensors_open(&tensors, &sample->path, 1, tensors_take_safetensors, rules, TENSORS_BF16);
    if (taken) {
        taken = take(sample, &tensors);
        tensors_close(&tensors);
    }
    class_rules_destroy(rules);
    return taken;
}

void demo_sample_fini(struct demo_sample *sample)
{
    if (sample->memory.base != NULL)
        strait_free(&sample->memory);
    free(sample->classes);
    free(sample->set);
    free((char *)(uintptr_t)sample->path);
    *sample = (struct demo_sample){.memory.fd = -1};
}
