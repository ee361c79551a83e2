#include "bench/collective_plan.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/util.h"

#define UNIT      16u                   /* bytes */
#define FOOTPRINT ((uint64_t)256 << 20) /* of the buffers that are used in turn: several times a GPU's L2 */
#define SLOTS_MAX 16u

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

static unsigned count_slots(uint64_t bytes)
{
    uint64_t slots = FOOTPRINT / bytes;

    return slots < 1 ? 1 : slots > SLOTS_MAX ? SLOTS_MAX : (unsigned)slots;
}

struct collective_shape collective_shape_of(const struct collective_row *row, unsigned ranks)
{
    const uint64_t part = row->size / (UNIT * ranks) * UNIT, whole = part * ranks;
    const double others = (double)(ranks - 1) / ranks;
    static const bool sends_whole[] = {false, true, true, true, true};
    static const bool receives_whole[] = {true, true, false, true, true};
    const double bus[] = {others, others, others, 2 * others, 1};
    struct collective_shape shape = {
        .bytes = whole,
        .send_bytes = sends_whole[row->op] ? whole : part,
        .receive_bytes = receives_whole[row->op] ? whole : part,
        .count = (row->op == COLLECTIVE_ALL_REDUCE || row->op == COLLECTIVE_SENDRECV ? whole : part) /
                 collective_type_bytes[row->type],
        .bus = bus[row->op],
        .handed = row->op == COLLECTIVE_ALL_GATHER                                           ? part
                  : row->op == COLLECTIVE_ALL_TO_ALL || row->op == COLLECTIVE_REDUCE_SCATTER ? whole - part
                                                                                             : whole,
        .reduces = row->op == COLLECTIVE_REDUCE_SCATTER || row->op == COLLECTIVE_ALL_REDUCE,
    };

    shape.slots = count_slots(shape.send_bytes + shape.receive_bytes);
    return shape;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static void add_row(struct collective_plan *plan, struct collective_row row)
{
    struct collective_shape shape = collective_shape_of(&row, plan->ranks);
    uint64_t send = shape.slots * shape.send_bytes, receive = shape.slots * shape.receive_bytes;

    plan->rows[plan->row_count++] = row;
    plan->send_bytes = send > plan->send_bytes ? send : plan->send_bytes;
    plan->receive_bytes = receive > plan->receive_bytes ? receive : plan->receive_bytes;
}

static void add_rows(struct collective_plan *plan, enum collective_data data, enum collective_type type)
{
    const struct collective_options *options = plan->options;

    for (enum collective_op op = 0; op < COLLECTIVE_OPS; op++)
        for (unsigned i = 0; options->ops[op] && i < options->size_count; i++)
            add_row(plan, (struct collective_row){data, type, op, options->sizes[i]});
}

static bool has_data(const struct collective_plan *plan, enum collective_data data)
{
    bool found = false;

    for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++)
        found |= plan->values[data][type].bytes != NULL;
    if (!found)
        print_error(NULL, "--input: no values for %s of the types that are wanted", collective_data_names[data]);
    return found;
}

static bool has_type(const struct collective_plan *plan, enum collective_type type)
{
    bool found = false;

    for (enum collective_data data = 0; data < COLLECTIVE_DATAS; data++)
        found |= plan->values[data][type].bytes != NULL;
    if (!found)
        print_error(NULL, "--input: no values for type %s", collective_type_names[type]);
    return found;
}

/* Whether everything that was asked for has rows. */
static bool has_all(const struct collective_plan *plan)
{
    const struct collective_options *options = plan->options;
    bool all = true;

    for (enum collective_type type = 0; all && type < COLLECTIVE_TYPES; type++)
        all = !options->types[type] || has_type(plan, type);
    for (enum collective_data data = 0; all && data < COLLECTIVE_DATAS; data++)
        all = options->kinds || !options->datas[data] || has_data(plan, data);
    return all;
}

bool collective_plan_init(struct collective_plan *plan, const struct collective_options *options, unsigned ranks,
                          unsigned gpus)
{
    *plan = (struct collective_plan){.options = options, .ranks = ranks, .gpus = gpus};
    plan->rows = calloc((size_t)COLLECTIVE_DATAS * COLLECTIVE_TYPES * COLLECTIVE_OPS * COLLECTIVE_SIZES_MAX,
                        sizeof(plan->rows[0]));
    if (plan->rows == NULL) {
        print_error(NULL, "out of memory");
        return false;
    }
    for (enum collective_data data = 0; data < COLLECTIVE_DATAS; data++)
        for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++) {
            if (!options->datas[data] || !options->types[type])
                continue;
            if (!collective_values_init(&plan->values[data][type], data, type, &options->sources))
                return false;
            if (plan->values[data][type].bytes != NULL)
                add_rows(plan, data, type);
        }
    return has_all(plan);
}

void collective_plan_fini(struct collective_plan *plan)
{
    for (enum collective_data data = 0; data < COLLECTIVE_DATAS; data++)
        for (enum collective_type type = 0; type < COLLECTIVE_TYPES; type++)
            collective_values_fini(&plan->values[data][type]);
    free(plan->rows);
    *plan = (struct collective_plan){0};
}

/* ---- Between the processes --------------------------------------------------------------------------------------- */

static size_t result_bytes(const struct collective_plan *plan)
{
    return sizeof(struct collective_result) +
           (size_t)(plan->options->repeats + plan->options->singles) * COLLECTIVE_WAYS * plan->ranks * sizeof(uint64_t);
}

static size_t shared_bytes(const struct collective_plan *plan)
{
    return sizeof(struct collective_shared) + plan->row_count * result_bytes(plan);
}

struct collective_shared *collective_shared_create(const struct collective_plan *plan)
{
    struct collective_shared *shared =
        mmap(NULL, shared_bytes(plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED) {
        print_error(NULL, "out of memory");
        return NULL;
    }
    shared->result_bytes = result_bytes(plan);
    return shared;
}

void collective_shared_destroy(struct collective_shared *shared, const struct collective_plan *plan)
{
    if (shared != NULL)
        munmap(shared, shared_bytes(plan));
}

struct collective_result *collective_result_of(const struct collective_shared *shared, unsigned row)
{
    return (struct collective_result *)(shared->results + row * shared->result_bytes);
}

uint64_t *collective_ns_of(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                           enum collective_way way, unsigned rank)
{
    return &result->ns[((size_t)repeat * COLLECTIVE_WAYS + way) * plan->ranks + rank];
}

/* Each barrier is a round of `ranks` arrivals; the last rank to arrive releases the round. */
bool collective_meet(struct collective_shared *shared, unsigned ranks)
{
    uint32_t round = atomic_fetch_add(&shared->arrived, 1) / ranks + 1;

    if (atomic_load(&shared->arrived) >= round * ranks)
        atomic_store(&shared->passed, round);
    while (atomic_load(&shared->passed) < round) {
        if (atomic_load(&shared->failed))
            return false;
        sched_yield();
    }
    return !atomic_load(&shared->failed);
}
