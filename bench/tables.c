#include "bench/tables.h"

#include <stdlib.h>
#include <string.h>

#include "tools/histograms.h"

static enum strait_status create_set(const struct histograms *histograms, struct strait_codebook **codebook)
{
    uint32_t count = histograms->count + 1;
    uint64_t total[256];
    uint8_t(*rankings)[256] = calloc(count, sizeof(*rankings));
    struct strait_class *classes = calloc(count, sizeof(*classes));
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    if (rankings == NULL || classes == NULL)
        goto out;
    histograms_total(histograms, total);
    strait_histogram_rank(rankings[0], total);
    for (uint32_t t = 1; t < count; t++) {
        strait_histogram_rank(rankings[t], histograms->list[t - 1].counts);
        classes[t] = histograms->list[t - 1].class;
    }
    status = strait_codebook_create((const uint8_t(*)[256])rankings, classes, count, codebook);
out:
    free(classes);
    free(rankings);
    return status;
}

struct strait_codebook *tables_calibrate(struct tensors *tensors, unsigned threads)
{
    struct strait_codebook *codebook = NULL;
    struct histograms histograms = {0};
    struct progress progress;
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    progress_begin(&progress, "calibrating", tensors->bytes, false);
    if (spans_count(&tensors->spans, threads, &progress, &histograms))
        status = create_set(&histograms, &codebook);
    progress_end(&progress);
    histograms_fini(&histograms);
    if (status != STRAIT_OK)
        print_error(NULL, "cannot make a codebook: %s", strait_status_string(status));
    return status == STRAIT_OK ? codebook : NULL;
}

unsigned tables_common_escapes(const struct strait_codebook *codebook, uint8_t exponents[256])
{
    bool frequent[256] = {false};
    unsigned count = 0;

    for (uint32_t t = 0; t < strait_codebook_count(codebook); t++)
        for (unsigned r = 0; r < TIERED_ESCAPE_RANK; r++)
            frequent[strait_codebook_ranking(codebook, t)[r]] = true;
    for (unsigned e = 0; e < 256; e++)
        if (!frequent[e])
            exponents[count++] = (uint8_t)e;
    return count;
}
