#include "bench/transfer_counters.h"

#include <stdio.h>

#include <cjson/cJSON.h>

const char *const bench_stage_names[BENCH_STAGES] = {"queue", "encode", "wire", "decode", "copy"};

static uint64_t number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) && item->valuedouble > 0 ? (uint64_t)item->valuedouble : 0;
}

static void copy_string(char *to, size_t size, const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    if (text != NULL && text[0] != '\0')
        snprintf(to, size, "%s", text);
}

static struct stage_figures read_stage(const cJSON *stages, const char *name)
{
    const cJSON *stage = cJSON_GetObjectItemCaseSensitive(stages, name);
    return (struct stage_figures){.count = number(stage, "count"), .sum_us = number(stage, "sum_us")};
}

static void read_all(struct node_figures *figures, const cJSON *root)
{
    const cJSON *counters = cJSON_GetObjectItemCaseSensitive(root, "counters"), *peer;
    const cJSON *stages = cJSON_GetObjectItemCaseSensitive(root, "stages");

    figures->raw_bytes = number(counters, "raw_bytes_sent");
    figures->wire_bytes = number(counters, "wire_bytes_sent");
    figures->local_bytes = number(counters, "local_bytes");
    for (unsigned i = 0; i < BENCH_STAGES; i++)
        figures->stages[i] = read_stage(stages, bench_stage_names[i]);
    cJSON_ArrayForEach(peer, cJSON_GetObjectItemCaseSensitive(root, "peers"))
    {
        copy_string(figures->transport, sizeof(figures->transport), peer, "transport");
        copy_string(figures->policy, sizeof(figures->policy), peer, "coding");
    }
}

bool node_figures_read(struct node_figures *figures, const char *text, size_t size)
{
    cJSON *root = cJSON_ParseWithLength(text, size);

    *figures = (struct node_figures){0};
    if (root != NULL)
        read_all(figures, root);
    cJSON_Delete(root);
    return root != NULL;
}

static void add_stage(struct stage_figures *used, const struct stage_figures *now, uint64_t sign)
{
    used->count += sign * now->count;
    used->sum_us += sign * now->sum_us;
}

void node_figures_add(struct node_figures *used, const struct node_figures *now, uint64_t sign)
{
    for (unsigned i = 0; i < BENCH_STAGES; i++)
        add_stage(&used->stages[i], &now->stages[i], sign);
    used->raw_bytes += sign * now->raw_bytes;
    used->wire_bytes += sign * now->wire_bytes;
    used->local_bytes += sign * now->local_bytes;
}
