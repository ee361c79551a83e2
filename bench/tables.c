#include "bench/tables.h"

#include "tools/calibrate.h"
#include "tools/util.h"

bool tables_open(struct tensors *tensors, const char *const *paths, unsigned count)
{
    struct class_rules *rules = class_rules_create();
    bool opened = false;

    if (rules == NULL)
        print_error(NULL, "out of memory");
    else
        opened = tensors_open(tensors, paths, count, tensors_take_safetensors, rules, TENSORS_BF16);
    class_rules_destroy(rules);
    if (opened && tensors->bytes == 0) {
        print_error(paths[0], "no BF16 values");
        tensors_close(tensors);
        opened = false;
    }
    return opened;
}

static struct strait_codebook *tables_calibrate(struct tensors *tensors, unsigned threads)
{
    struct strait_codebook *codebook = NULL;
    struct histograms histograms = {0};
    struct progress progress;
    enum strait_status status = STRAIT_ERR_NO_MEMORY;

    progress_begin(&progress, "calibrating", tensors->bytes, false);
    if (spans_count(&tensors->spans, threads, &progress, &histograms))
        status = histograms_codebook(&histograms, false, &codebook);
    progress_end(&progress);
    histograms_fini(&histograms);
    if (status != STRAIT_OK)
        print_error(NULL, "cannot make a codebook: %s", strait_status_string(status));
    return status == STRAIT_OK ? codebook : NULL;
}

struct strait_codebook *tables_choose(struct tensors *tensors, const char *codebook, const char *const *calibs,
                                      unsigned calib_count, unsigned threads)
{
    struct strait_codebook *chosen = NULL;
    struct tensors calib;

    if (codebook != NULL)
        return codebook_load(codebook, &chosen) ? chosen : NULL;
    if (calib_count == 0)
        return tables_calibrate(tensors, threads);
    if (!tables_open(&calib, calibs, calib_count))
        return NULL;
    chosen = tables_calibrate(&calib, threads);
    tensors_close(&calib);
    return chosen;
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
