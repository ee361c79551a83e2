/* One rank of `strait bench ep`: a process with a group of its own for each row. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/ep.h"
#include "tools/util.h"

#define ALIGNMENT  256u
#define TEXT_BYTES 256u
#define TIMEOUT_NS UINT64_C(60000000000)

/* ---- Memory of the host ------------------------------------------------------------------------------------------ */

static bool host_count(unsigned *ranks)
{
    *ranks = *ranks == 0 ? 2 : *ranks;
    return true;
}

static bool host_open(unsigned rank)
{
    (void)rank;
    return true;
}

static void *host_alloc(uint64_t bytes)
{
    void *memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (memory != NULL)
        memset(memory, 0xA5, bytes); /* it is there before time is measured */
    return memory;
}

static bool host_copy(void *to, const void *from, uint64_t bytes)
{
    memcpy(to, from, bytes);
    return true;
}

static bool host_finish(void)
{
    return true;
}

static struct CUstream_st *host_stream(void)
{
    return NULL;
}

static const char *host_name(void)
{
    return "host";
}

const struct ep_memory ep_host_memory = {
    .kind = STRAIT_EP_HOST,
    .count = host_count,
    .open = host_open,
    .alloc = host_alloc,
    .free = free,
    .write = host_copy,
    .read = host_copy,
    .finish = host_finish,
    .stream = host_stream,
    .name = host_name,
};

/* ---- Results, shared by the ranks -------------------------------------------------------------------------------- */

struct ep_result *ep_result_of(const struct ep_shared *shared, unsigned row)
{
    return (struct ep_result *)(shared->results + row * shared->result_bytes);
}

uint64_t *ep_ns_of(const struct ep_plan *plan, struct ep_result *result, unsigned repeat, enum ep_phase phase,
                   unsigned rank)
{
    return &result->ns[((size_t)repeat * EP_PHASES + phase) * plan->ranks + rank];
}

/* ---- The rank ---------------------------------------------------------------------------------------------------- */

struct rank {
    const struct ep_plan *plan;
    struct ep_shared *shared;
    unsigned number;
};

/* A tensor, in the group's heap or not. */
struct place {
    void *data;
    uint64_t bytes;
    bool in_heap;
};

/* The row that is being measured. */
struct row_run {
    struct rank *rank;
    const struct ep_plan *plan;
    const struct ep_memory *memory;
    const struct ep_row *row;
    struct ep_result *result;
    struct ep_routing routing;
    struct strait_ep_group *group;
    struct strait_ep_handle *handle;
    struct place topk, weights, tokens, scales;           /* own */
    struct place received, received_scales, counts, made; /* made: what is combined; none: received is */
    struct place plain, sums;                             /* plain: own tokens in the type that is combined */
};

static bool meet(struct rank *rank)
{
    return ranks_wait(&rank->shared->barrier, rank->plan->ranks);
}

/* strait_ep_all_gather. */
static int gather(void *context, const void *send, void *receive, size_t bytes)
{
    struct rank *rank = context;
    uint8_t *all = receive;

    if (bytes > EP_GATHER_BYTES)
        return -1;
    memcpy(rank->shared->gathered[rank->number], send, bytes);
    if (!meet(rank))
        return -1;
    for (unsigned i = 0; i < rank->plan->ranks; i++)
        memcpy(all + i * bytes, rank->shared->gathered[i], bytes);
    return meet(rank) ? 0 : -1;
}

static bool ep_ok(enum strait_status status, const char *what, const char *text)
{
    if (status != STRAIT_OK)
        print_error(NULL, "%s: %s%s%s", what, strait_status_string(status), text[0] != '\0' ? ": " : "", text);
    return status == STRAIT_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
}

static uint64_t received_bytes(const struct row_run *run, enum ep_type type)
{
    return run->routing.most_rows * ep_row_bytes(run->plan, type);
}

/* What peers read and write without a copy in between (HT). */
static uint64_t heap_bytes(const struct row_run *run)
{
    const enum ep_type type = run->row->type, combined = ep_combined(type);

    if (run->plan->options->own || run->row->algorithm == STRAIT_EP_LOW_LATENCY)
        return 0;
    return padded(received_bytes(run, type)) + (combined != type ? padded(received_bytes(run, combined)) : 0) +
           ((uint64_t)1 << 20);
}

static bool make(struct row_run *run, struct place *place, uint64_t bytes, bool in_heap)
{
    bytes = bytes == 0 ? ALIGNMENT : bytes;
    in_heap = in_heap && heap_bytes(run) > 0;
    *place = (struct place){in_heap ? strait_ep_alloc(run->group, bytes) : run->memory->alloc(bytes), bytes, in_heap};
    if (place->data == NULL)
        print_error(NULL, "out of memory");
    return place->data != NULL;
}

static void drop(const struct row_run *run, struct place *place)
{
    if (place->data != NULL && place->in_heap)
        strait_ep_free(run->group, place->data);
    else if (place->data != NULL)
        run->memory->free(place->data);
    *place = (struct place){0};
}

static bool make_tensors(struct row_run *run)
{
    const struct ep_plan *plan = run->plan;
    const struct ep_row *row = run->row;
    const enum ep_type combined = ep_combined(row->type);
    const uint64_t topk = (uint64_t)row->tokens * plan->options->topk;
    const uint32_t scales = ep_scale_bytes(plan, row->type);

    return make(run, &run->topk, topk * sizeof(int32_t), false) &&
           make(run, &run->weights, topk * sizeof(float), false) &&
           make(run, &run->tokens, (uint64_t)row->tokens * ep_row_bytes(plan, row->type), false) &&
           make(run, &run->received, received_bytes(run, row->type), true) &&
           make(run, &run->sums, (uint64_t)row->tokens * ep_row_bytes(plan, combined), false) &&
           make(run, &run->counts, plan->local * sizeof(int32_t), false) &&
           (scales == 0 || (make(run, &run->scales, (uint64_t)row->tokens * scales, false) &&
                            make(run, &run->received_scales, run->routing.most_rows * scales, false))) &&
           (combined == row->type ||
            (make(run, &run->plain, (uint64_t)row->tokens * ep_row_bytes(plan, combined), false) &&
             make(run, &run->made, received_bytes(run, combined), true)));
}

static void drop_tensors(struct row_run *run)
{
    struct place *places[] = {&run->topk,     &run->weights,         &run->tokens, &run->scales, &run->sums,
                              &run->received, &run->received_scales, &run->counts, &run->plain,  &run->made};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        drop(run, places[i]);
}

/* Writes rows of the own tokens, made one by one. */
static bool fill_rows(const struct row_run *run, const struct place *place, enum ep_type type, bool scales)
{
    const uint32_t size = scales ? ep_scale_bytes(run->plan, type) : ep_row_bytes(run->plan, type);
    const uint64_t bytes = (uint64_t)run->row->tokens * size;
    uint8_t *rows = malloc(bytes + 1);

    if (rows == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (uint32_t t = 0; t < run->row->tokens; t++)
        (scales ? ep_fill_scales : ep_fill_row)(run->plan, type, run->rank->number, t, rows + (uint64_t)t * size);
    const bool good = run->memory->write(place->data, rows, bytes);
    free(rows);
    return good;
}

static bool fill(const struct row_run *run)
{
    const uint64_t own = (uint64_t)run->row->tokens * run->plan->options->topk, at = own * run->rank->number;

    return run->memory->write(run->topk.data, run->routing.topk + at, own * sizeof(int32_t)) &&
           run->memory->write(run->weights.data, run->routing.weights + at, own * sizeof(float)) &&
           fill_rows(run, &run->tokens, run->row->type, false) &&
           (run->scales.data == NULL || fill_rows(run, &run->scales, run->row->type, true)) &&
           (run->plain.data == NULL || fill_rows(run, &run->plain, ep_combined(run->row->type), false));
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static struct strait_ep_tensor tensor(const struct row_run *run, const struct place *place, enum ep_type type)
{
    return (struct strait_ep_tensor){place->data, ep_row_bytes(run->plan, type), ep_element(type)};
}

static struct strait_ep_tensor scale_tensor(const struct row_run *run, const struct place *place)
{
    return (struct strait_ep_tensor){place->data, ep_scale_bytes(run->plan, run->row->type), STRAIT_ELEMENT_FP32};
}

static bool call_update(const struct row_run *run)
{
    const struct strait_ep_routing routing = {
        .size = sizeof(routing), .topk = run->topk.data, .tokens = run->row->tokens, .topk_bytes = sizeof(int32_t)};

    return ep_ok(strait_ep_update(run->handle, &routing, run->memory->stream()), "update", "");
}

/* Of the row's type; or, for `made`, in the type that is combined. */
static bool dispatch(const struct row_run *run, bool made)
{
    const bool ll = run->row->algorithm == STRAIT_EP_LOW_LATENCY;
    const bool experts = run->row->layout == STRAIT_EP_EXPERT_MAJOR;
    const enum ep_type type = made ? ep_combined(run->row->type) : run->row->type;
    const bool scaled = !made && run->scales.data != NULL;
    const struct strait_ep_dispatch_in in = {.size = sizeof(in),
                                             .tokens = tensor(run, made ? &run->plain : &run->tokens, type),
                                             .weights = run->weights.data,
                                             .scales = scaled ? scale_tensor(run, &run->scales)
                                                              : (struct strait_ep_tensor){0}};
    const struct strait_ep_dispatch_out out = {
        .size = sizeof(out),
        .tokens = tensor(run, made ? &run->made : &run->received, type),
        .scales = scaled ? scale_tensor(run, &run->received_scales) : (struct strait_ep_tensor){0},
        .expert_counts = ll && experts ? run->counts.data : NULL,
        .rows = (uint32_t)(run->routing.most_rows > 0 ? run->routing.most_rows : 1)};

    return ep_ok(strait_ep_dispatch(run->handle, &in, &out, 0, run->memory->stream()), "dispatch", "");
}

static bool call_dispatch(const struct row_run *run)
{
    return dispatch(run, false);
}

static bool call_combine(const struct row_run *run)
{
    const enum ep_type type = ep_combined(run->row->type);
    const struct strait_ep_combine_in in = {
        .size = sizeof(in), .tokens = tensor(run, run->made.data != NULL ? &run->made : &run->received, type)};
    const struct strait_ep_combine_out out = {.size = sizeof(out), .tokens = tensor(run, &run->sums, type)};

    return ep_ok(strait_ep_combine(run->handle, &in, &out, 0, run->memory->stream()), "combine", "");
}

static bool (*const calls[EP_PHASES])(const struct row_run *run) = {call_update, call_dispatch, call_combine};

/* Starts together with the other ranks; *ns: of one call. */
static bool time_calls(const struct row_run *run, enum ep_phase phase, uint32_t count, uint64_t *ns)
{
    if (!meet(run->rank))
        return false;
    const uint64_t began = clock_ns();
    for (uint32_t i = 0; i < count; i++)
        if (!calls[phase](run))
            return false;
    if (!run->memory->finish())
        return false;
    *ns = (clock_ns() - began) / count + 1;
    return ep_ok(strait_ep_async_error(run->group, NULL), "the group", "");
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

/* A copy on the host. NULL: failed. */
static uint8_t *read_back(const struct row_run *run, const struct place *place)
{
    uint8_t *copy = malloc(place->bytes);

    if (copy != NULL && run->memory->read(copy, place->data, place->bytes))
        return copy;
    print_error(NULL, "results cannot be read");
    free(copy);
    return NULL;
}

static bool flip(const struct row_run *run)
{
    uint8_t byte;

    if (run->plan->options->common.fault.count == 0 || run->rank->number != 0 || run->row != run->plan->rows)
        return true;
    if (!run->memory->read(&byte, run->sums.data, 1))
        return false;
    byte ^= 1;
    return run->memory->write(run->sums.data, &byte, 1);
}

static bool check(const struct row_run *run)
{
    if (!run->memory->finish() || !flip(run))
        return false;
    uint8_t *rows = read_back(run, &run->received), *sums = read_back(run, &run->sums);
    uint8_t *scales = run->received_scales.data != NULL ? read_back(run, &run->received_scales) : NULL;
    const bool good = rows != NULL && sums != NULL;

    if (good)
        atomic_fetch_add(&run->result->wrong,
                         ep_wrong_rows(run->plan, run->row, &run->routing, run->rank->number, rows, scales) +
                             ep_wrong_sums(run->plan, run->row, &run->routing, run->rank->number, sums));
    free(rows);
    free(sums);
    free(scales);
    return good;
}

/* ---- A row ------------------------------------------------------------------------------------------------------- */

static bool open_group(struct row_run *run)
{
    const struct ep_plan *plan = run->plan;
    const struct ep_row *row = run->row;
    const uint32_t bytes = ep_row_bytes(plan, row->type), combined = ep_row_bytes(plan, ep_combined(row->type));
    const struct strait_ep_config config = {
        .size = sizeof(config),
        .all_gather = gather,
        .context = run->rank,
        .rank = run->rank->number,
        .rank_count = plan->ranks,
        .algorithm = row->algorithm,
        .memory = run->memory->kind,
        .experts = (uint32_t)plan->options->experts,
        .tokens_max = row->tokens,
        .row_bytes_max = bytes > combined ? bytes : combined,
        .scale_bytes_max = ep_scale_bytes(plan, row->type),
        .topk_max = (uint32_t)plan->options->topk,
        .sm_budget = (uint32_t)plan->options->sms,
        .coding = row->coding,
        .timeout_ns = TIMEOUT_NS,
        .heap_bytes = heap_bytes(run),
    };
    const struct strait_ep_handle_config handle = {
        .size = sizeof(handle), .layout = row->layout, .topk = (uint32_t)plan->options->topk};
    char text[TEXT_BYTES] = "";

    if (!ep_ok(strait_ep_group_create(&config, &run->group, text, sizeof(text)), "a group", text)) {
        run->group = NULL;
        return false;
    }
    if (ep_ok(strait_ep_handle_create(run->group, &handle, &run->handle), "a handle", ""))
        return true;
    run->handle = NULL;
    return false;
}

/* The first calls, whose results are checked. */
static bool run_first(const struct row_run *run)
{
    return meet(run->rank) && call_update(run) && call_dispatch(run) &&
           (run->made.data == NULL || dispatch(run, true)) && call_combine(run) && check(run);
}

static bool run_repeats(const struct row_run *run)
{
    const struct ep_options *options = run->plan->options;
    uint64_t ns;

    for (enum ep_phase phase = 0; phase < EP_PHASES; phase++)
        if (!time_calls(run, phase, (uint32_t)options->warmups, &ns))
            return false;
    for (unsigned repeat = 0; repeat < options->repeats; repeat++)
        for (enum ep_phase phase = 0; phase < EP_PHASES; phase++)
            if (!time_calls(run, phase, run->plan->iterations,
                            ep_ns_of(run->plan, run->result, repeat, phase, run->rank->number)))
                return false;
    return true;
}

static void tell(const struct row_run *run)
{
    struct strait_ep_info info = {.size = sizeof(info)};

    strait_ep_info(run->group, &info);
    atomic_fetch_add(&run->result->sent_bytes, info.sent_bytes);
    atomic_fetch_add(&run->result->raw_bytes, info.raw_bytes);
    if (run->rank->number != 0)
        return;
    run->result->rows = run->routing.rows;
    run->result->selections = run->routing.selections;
    run->result->arena_bytes = info.arena_bytes;
    run->result->coded = info.coded;
    snprintf(run->result->medium, sizeof(run->result->medium), "%s", info.medium);
}

static bool run_row(struct rank *rank, unsigned index)
{
    struct row_run run = {.rank = rank,
                          .plan = rank->plan,
                          .memory = rank->plan->memory,
                          .row = &rank->plan->rows[index],
                          .result = ep_result_of(rank->shared, index)};

    bool good = ep_routing_init(&run.routing, rank->plan, run.row) && open_group(&run) && make_tensors(&run) &&
                fill(&run) && run_first(&run) && run_repeats(&run);
    if (good)
        tell(&run);
    good = good && meet(rank);
    drop_tensors(&run);
    if (run.handle != NULL)
        strait_ep_handle_destroy(run.handle);
    strait_ep_group_destroy(run.group);
    ep_routing_fini(&run.routing);
    if (good)
        atomic_fetch_add(&run.result->done, 1);
    return good;
}

/* Goes to the host that the rank is to be on, in this process. */
static bool be_on_host(const struct ep_plan *plan, unsigned number)
{
    const unsigned host = (unsigned)(number * plan->options->hosts / plan->ranks);
    char name[32], path[64];
    int space;

    if (plan->options->hosts == 1)
        return true;
    snprintf(name, sizeof(name), "host-%u", host);
    if (setenv("NCCL_HOSTID", name, 1) != 0)
        return false;
    if (!plan->link.made)
        return true;
    snprintf(path, sizeof(path), "/run/netns/%s", plan->link.ends[host].space);
    space = open(path, O_RDONLY | O_CLOEXEC);
    const bool good = space >= 0 && setns(space, CLONE_NEWNET) == 0;
    if (!good)
        print_error(path, "%s", strerror(errno));
    if (space >= 0)
        close(space);
    return good;
}

bool ep_rank_run(const struct ep_plan *plan, struct ep_shared *shared, unsigned number)
{
    struct rank rank = {plan, shared, number};
    bool good = be_on_host(plan, number) && plan->memory->open(number);

    if (good && number == 0)
        snprintf(shared->device, sizeof(shared->device), "%s", plan->memory->name());
    for (unsigned i = 0; good && i < plan->row_count; i++)
        good = run_row(&rank, i);
    if (!good)
        atomic_store(&shared->barrier.failed, true);
    return good;
}
