#include "bench/gpu_pairs.h"

#include <stdlib.h>
#include <string.h>

#include "bench/transfer_process.h"
#include "tools/util.h"

#define SAMPLE_BYTES   (64u * 1024)
#define SAMPLE_WAIT_MS 10000u

bool gpu_pairs_can_choose(const struct bench_site *site)
{
    struct command command = {0};
    char *text = malloc(SAMPLE_BYTES);
    bool can;

    command_add(&command, site->straitd);
    command_add(&command, "--sample-config");
    can = text != NULL && process_run(&command, SAMPLE_WAIT_MS, text, SAMPLE_BYTES) && strstr(text, "gpu-peer") != NULL;
    free(text);
    return can;
}

/* A daemon that does not know the option looks at what switches this off in NCCL, or has one way only. One that does
 * not know NCCL or UCX there does not start with its option, and says why. */
static bool open_path(struct gpu_pair *pair, enum gpu_wire wire, bool can_choose, const struct bench_site *site)
{
    static const char *const options[GPU_WIRES][2] = {
        {"--gpu-peer=yes"}, {"--gpu-peer=no"}, {"--gpu-wires=nccl"}, {"--gpu-wires=ucx"}};
    static const char *const environment[] = {"NCCL_P2P_DISABLE=1", NULL};
    struct path_setup setup = {.name = gpu_wire_names[wire], .metrics = true};

    if (can_choose || wire == GPU_WIRE_NCCL || wire == GPU_WIRE_UCX)
        setup.options = options[wire];
    else if (wire == GPU_WIRE_PINNED)
        setup.environment = environment;
    return bench_path_open(&pair->path, PATH_SHM, &setup, site);
}

static bool add_pool(const struct gpu_data *data, const struct gpu_memory *memory, struct bench_side *side,
                     struct strait_pool **pool)
{
    struct strait_pool_region *regions = calloc(data->layout.regions, sizeof(regions[0]));
    bool added = false;

    if (regions == NULL) {
        print_error(NULL, "out of memory");
    } else {
        gpu_data_regions(data, memory, regions);
        added = bench_side_register(side, regions, data->layout.regions, pool);
    }
    free(regions);
    return added;
}

bool gpu_pair_open(struct gpu_pair *pair, enum gpu_wire wire, bool can_choose, const struct gpu_data *data,
                   const struct bench_site *site)
{
    return open_path(pair, wire, can_choose, site) &&
           add_pool(data, &data->source, &pair->path.source, &pair->pools.source) &&
           add_pool(data, &data->sink, &pair->path.sink, &pair->pools.sink) &&
           bench_path_introduce(&pair->path, &pair->pools);
}

void gpu_pair_close(struct gpu_pair *pair)
{
    bench_path_close(&pair->path);
}

bool gpu_pair_count(struct gpu_pair *pair, struct gpu_counted *counted)
{
    return bench_path_figures(&pair->path, &counted->source, &counted->sink) &&
           bench_side_wires(&pair->path.source, &counted->wires);
}
