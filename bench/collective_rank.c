/* One rank of `strait bench collective`: a process, a GPU, NCCL, and libstrait-coll in front of the same NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/collective.h"
#include "bench/device.h"

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
    const uint64_t part = row->size / (COLLECTIVE_UNIT * ranks) * COLLECTIVE_UNIT, whole = part * ranks;
    const double others = (double)(ranks - 1) / ranks;
    static const bool sends_whole[] = {false, true, true, true, true, true};
    static const bool receives_whole[] = {true, true, false, true, true, true};
    const double bus[] = {others, others, others, 2 * others, 1, 1};
    const bool in_parts =
        row->op != COLLECTIVE_ALL_REDUCE && row->op != COLLECTIVE_SENDRECV && row->op != COLLECTIVE_BROADCAST;
    struct collective_shape shape = {
        .bytes = whole,
        .send_bytes = sends_whole[row->op] ? whole : part,
        .receive_bytes = receives_whole[row->op] ? whole : part,
        .count = (in_parts ? part : whole) / collective_type_bytes[row->type],
        .bus = bus[row->op],
        .handed = row->op == COLLECTIVE_ALL_GATHER                                           ? part
                  : row->op == COLLECTIVE_ALL_TO_ALL || row->op == COLLECTIVE_REDUCE_SCATTER ? whole - part
                                                                                             : whole,
        .reduces = row->op == COLLECTIVE_REDUCE_SCATTER || row->op == COLLECTIVE_ALL_REDUCE,
    };

    shape.slots = count_slots(shape.send_bytes + shape.receive_bytes);
    return shape;
}

/* ---- Results, shared by the ranks -------------------------------------------------------------------------------- */

struct collective_result *collective_result_of(const struct collective_shared *shared, unsigned row)
{
    return (struct collective_result *)(shared->results + row * shared->result_bytes);
}

uint64_t *collective_ns_of(const struct collective_plan *plan, struct collective_result *result, unsigned repeat,
                           enum collective_way way, unsigned rank)
{
    return &result->ns[((size_t)repeat * COLLECTIVE_WAYS + way) * plan->ranks + rank];
}

/* ---- Libraries --------------------------------------------------------------------------------------------------- */

/* NCCL, or libstrait-coll in its place, opened by path: both are in one process, independently of each other. */
struct library {
    const char *path; /* where the loader found it */
    coll_result (*GetVersion)(int *version);
    coll_result (*GetUniqueId)(coll_id *id);
    coll_result (*CommInitRank)(coll_comm *made, int ranks, coll_id id, int rank);
    coll_result (*CommDestroy)(coll_comm comm);
    coll_result (*AllGather)(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                             coll_stream stream);
    coll_result (*AlltoAll)(const void *send, void *receive, size_t count, coll_type type, coll_comm comm,
                            coll_stream stream);
    coll_result (*ReduceScatter)(const void *send, void *receive, size_t count, coll_type type,
                                 coll_reduction reduction, coll_comm comm, coll_stream stream);
    coll_result (*AllReduce)(const void *send, void *receive, size_t count, coll_type type, coll_reduction reduction,
                             coll_comm comm, coll_stream stream);
    coll_result (*Broadcast)(const void *send, void *receive, size_t count, coll_type type, int root, coll_comm comm,
                             coll_stream stream);
    coll_result (*Send)(const void *send, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream);
    coll_result (*Recv)(void *receive, size_t count, coll_type type, int peer, coll_comm comm, coll_stream stream);
    coll_result (*GroupStart)(void);
    coll_result (*GroupEnd)(void);
    const char *(*GetErrorString)(coll_result result);
    const char *(*GetLastError)(coll_comm comm);                      /* NULL: it has none */
    size_t (*report)(coll_comm comm, char *dst, size_t dst_capacity); /* of libstrait-coll; NULL: it is NCCL */
};

static bool find(void *handle, const char *file, const char *name, void **function)
{
    *function = dlsym(handle, name);
    if (*function == NULL)
        print_error(file, "has no %s", name);
    return *function != NULL;
}

static bool find_all(struct library *library, void *handle, const char *file)
{
#define FIND(name) find(handle, file, "nccl" #name, (void **)&library->name)
    return FIND(GetVersion) && FIND(GetUniqueId) && FIND(CommInitRank) && FIND(CommDestroy) && FIND(AllGather) &&
           FIND(AlltoAll) && FIND(ReduceScatter) && FIND(AllReduce) && FIND(Broadcast) && FIND(Send) && FIND(Recv) &&
           FIND(GroupStart) && FIND(GroupEnd) && FIND(GetErrorString);
#undef FIND
}

static bool open_library(struct library *library, const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    Dl_info info;

    *library = (struct library){.path = name};
    if (handle == NULL) {
        print_error(NULL, "%s", dlerror());
        return false;
    }
    if (!find_all(library, handle, name))
        return false;
    *(void **)&library->GetLastError = dlsym(handle, "ncclGetLastError");
    *(void **)&library->report = dlsym(handle, "strait_coll_report");
    if (dladdr(*(void **)&library->GetUniqueId, &info) != 0 && info.dli_fname != NULL)
        library->path = info.dli_fname;
    return true;
}

static bool nccl_ok(const struct library *library, coll_result result, const char *what)
{
    if (result == COLL_SUCCESS)
        return true;
    print_error(NULL, "%s of %s: %s: %s", what, library->path, library->GetErrorString(result),
                library->GetLastError != NULL ? library->GetLastError(NULL) : "");
    return false;
}

/* ---- How calls went ---------------------------------------------------------------------------------------------- */

#define REPORT_BYTES ((size_t)64 << 10)
#define LAST         "the last: "
#define NUMBERS_MAX  9u

/* Indexes of the columns of numbers, after operation and type. The way, which may contain blanks, comes last. */
enum { CALLS = 0, COMPRESSED = 5, WIRE_BYTES = 6 };

/* Returns how many numbers there are and advances *text past them. */
static unsigned read_numbers(const char **text, uint64_t numbers[NUMBERS_MAX])
{
    unsigned count = 0;
    char *end;

    while (count < NUMBERS_MAX) {
        numbers[count] = strtoull(*text, &end, 10);
        if (end == *text)
            break;
        *text = end;
        count++;
    }
    return count;
}

static void read_way(const char *text, char name[WAY_TEXT_BYTES])
{
    text += strspn(text, " ");
    if (strncmp(text, LAST, strlen(LAST)) == 0)
        text += strlen(LAST);
    snprintf(name, WAY_TEXT_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
}

static bool parse_line(const char *line, const char *operation, const char *type, struct collective_wire *wire)
{
    uint64_t numbers[NUMBERS_MAX] = {0};
    char words[2][32];
    int words_end = 0;

    if (sscanf(line, "%31s %31s%n", words[0], words[1], &words_end) != 2 || strcmp(words[0], operation) != 0 ||
        strcmp(words[1], type) != 0)
        return false;
    line += words_end;
    if (read_numbers(&line, numbers) <= CALLS)
        return false;
    wire->calls = numbers[CALLS];
    wire->compressed = numbers[COMPRESSED];
    wire->bytes = numbers[WIRE_BYTES];
    read_way(line, wire->name);
    return true;
}

void collective_wire_parse(const char *report, enum collective_op op, enum collective_type type,
                           struct collective_wire *wire)
{
    const char *operation = op == COLLECTIVE_SENDRECV ? "send" : collective_op_names[op];
    const char *name = type == COLLECTIVE_FP32_BF16 ? "fp32" : collective_type_names[type];

    *wire = (struct collective_wire){.name = "-"};
    for (const char *line = report; line != NULL; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        if (parse_line(line, operation, name, wire))
            return;
    }
}

static void read_wire_of(const struct library *library, coll_comm comm, enum collective_op op,
                         enum collective_type type, struct collective_wire *wire)
{
    char *text = library->report != NULL ? malloc(REPORT_BYTES) : NULL;

    *wire = (struct collective_wire){.name = "-"};
    if (text != NULL && library->report(comm, text, REPORT_BYTES) > 0)
        collective_wire_parse(text, op, type, wire);
    free(text);
}

static void wire_since(struct collective_wire *wire, const struct collective_wire *before)
{
    wire->calls -= before->calls;
    wire->compressed -= before->compressed;
    wire->bytes -= before->bytes;
}

/* ---- The rank ---------------------------------------------------------------------------------------------------- */

#define REPEAT_NS      20000000u
#define ITERATIONS_MAX 100u
#define PROBES         3u
#define READ_BYTES     ((uint64_t)4 << 20)

struct rank {
    const struct collective_plan *plan;
    struct collective_shared *shared;
    unsigned number;
    struct library libraries[COLLECTIVE_WAYS];
    coll_comm comms[COLLECTIVE_WAYS];
    coll_stream stream;
    struct gpu_memory send, receive[COLLECTIVE_WAYS];
};

/* The row that is being measured. */
struct row_run {
    struct rank *rank;
    const struct collective_row *row;
    struct collective_shape shape;
    const struct collective_values *values;
    struct collective_result *result;
    uint32_t iterations;
};

static void set_phase(struct rank *rank, enum collective_phase phase, enum collective_way way)
{
    atomic_store(&rank->shared->positions[rank->number].way, way);
    atomic_store(&rank->shared->positions[rank->number].phase, phase);
}

static bool barrier(struct rank *rank)
{
    return ranks_wait(&rank->shared->barrier, rank->plan->ranks);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static coll_type type_of(enum collective_type type)
{
    static const coll_type types[] = {9, 6, 7, 7}; /* ncclBfloat16, ncclFloat16, ncclFloat32 */

    return types[type];
}

static coll_result send_and_receive(const struct library *library, const struct row_run *run, const void *send,
                                    void *receive, coll_comm comm)
{
    const struct rank *rank = run->rank;
    const int ranks = (int)rank->plan->ranks, next = ((int)rank->number + 1) % ranks,
              previous = ((int)rank->number + ranks - 1) % ranks;
    const coll_type type = type_of(run->row->type);
    coll_result sent, received, ended;

    if (library->GroupStart() != COLL_SUCCESS)
        return COLL_INVALID_USAGE;
    sent = library->Send(send, run->shape.count, type, next, comm, rank->stream);
    received = library->Recv(receive, run->shape.count, type, previous, comm, rank->stream);
    ended = library->GroupEnd();
    return sent != COLL_SUCCESS ? sent : received != COLL_SUCCESS ? received : ended;
}

static bool call(const struct row_run *run, enum collective_way way, unsigned slot)
{
    const struct rank *rank = run->rank;
    const struct library *library = &rank->libraries[way];
    const void *send = rank->send.base + slot * run->shape.send_bytes;
    void *receive = rank->receive[way].base + slot * run->shape.receive_bytes;
    const coll_type type = type_of(run->row->type);
    const coll_comm comm = rank->comms[way];
    const uint64_t count = run->shape.count;
    const int sum = 0, root = 0;
    coll_result result = COLL_INVALID_USAGE;

    switch (run->row->op) {
    case COLLECTIVE_ALL_GATHER:
        result = library->AllGather(send, receive, count, type, comm, rank->stream);
        break;
    case COLLECTIVE_ALL_TO_ALL:
        result = library->AlltoAll(send, receive, count, type, comm, rank->stream);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        result = library->ReduceScatter(send, receive, count, type, sum, comm, rank->stream);
        break;
    case COLLECTIVE_ALL_REDUCE:
        result = library->AllReduce(send, receive, count, type, sum, comm, rank->stream);
        break;
    case COLLECTIVE_BROADCAST:
        result = library->Broadcast(send, receive, count, type, root, comm, rank->stream);
        break;
    default:
        result = send_and_receive(library, run, send, receive, comm);
    }
    return nccl_ok(library, result, collective_op_names[run->row->op]);
}

/* Starts together with the other ranks, from an idle GPU; *ns: nanoseconds of one call. */
static bool run_calls(const struct row_run *run, enum collective_way way, uint32_t count, uint64_t *ns)
{
    struct rank *rank = run->rank;

    if (!barrier(rank))
        return false;
    uint64_t began = clock_ns();
    for (uint32_t i = 0; i < count; i++)
        if (!call(run, way, i % run->shape.slots))
            return false;
    if (!gpu_finish(rank->send.gpu))
        return false;
    *ns = (clock_ns() - began) / count + 1;
    return true;
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

/* Fills the buffers before the calls, differently for both ways, so that bytes that neither writes are noticed. */
static bool wipe(const struct row_run *run, enum collective_way way)
{
    return gpu_fill(&run->rank->receive[way], 0, run->shape.slots * run->shape.receive_bytes,
                    way == COLLECTIVE_PLAIN ? 0xFF : 0xA5);
}

static unsigned slots_used(const struct row_run *run)
{
    return run->iterations < run->shape.slots ? run->iterations : run->shape.slots;
}

/* Of so many bytes of the results, from `at` on. */
static bool differences_from_plain(const struct row_run *run, uint64_t at, uint64_t size, uint64_t *differences)
{
    const struct gpu_memory *receive = run->rank->receive;

    return gpu_differences(&receive[COLLECTIVE_PLAIN], at, &receive[COLLECTIVE_STRAIT], at, size, differences);
}

static bool compare_with_plain(const struct row_run *run)
{
    uint64_t differences;

    if (!differences_from_plain(run, 0, slots_used(run) * run->shape.receive_bytes, &differences))
        return false;
    atomic_fetch_add(&run->result->wrong, differences);
    return true;
}

/* The documented order: by host where these have the same number of ranks, but for the last values of an all_reduce,
 * which are too few for parts. */
static void sum_in_order(const struct row_run *run, unsigned slot, uint64_t index, uint64_t count, uint8_t *dst)
{
    const enum collective_type type = run->row->type;
    const uint64_t ranks = run->rank->plan->ranks, hosts = run->rank->plan->options->hosts;
    const uint64_t each = hosts > 0 && ranks % hosts == 0 ? ranks / hosts : ranks;
    const uint64_t whole =
        run->row->op == COLLECTIVE_ALL_REDUCE ? run->shape.count / ranks / 8 * 8 * ranks : UINT64_MAX;
    const uint64_t before = index >= whole ? 0 : count < whole - index ? count : whole - index;

    collective_values_sum(run->values, type, (unsigned)ranks, (unsigned)each, slot, index, before, dst);
    collective_values_sum(run->values, type, (unsigned)ranks, (unsigned)ranks, slot, index + before, count - before,
                          dst + before * collective_type_bytes[type]);
}

/* Counts the wrong sums in a part of a slot's result; `expected` has room for as many bytes. */
static uint64_t count_wrong_sums(const struct row_run *run, unsigned slot, const uint8_t *got, uint64_t offset,
                                 uint64_t size, uint8_t *expected)
{
    const unsigned bytes = collective_type_bytes[run->row->type];
    const bool scattered = run->row->op == COLLECTIVE_REDUCE_SCATTER;
    const uint64_t first = (scattered ? run->rank->number * run->shape.receive_bytes : 0) + offset;
    uint64_t wrong = 0;

    sum_in_order(run, slot, first / bytes, size / bytes, expected);
    if (memcmp(got, expected, size) == 0)
        return 0;
    for (uint64_t at = 0; at < size; at += bytes)
        wrong += memcmp(got + at, expected + at, bytes) != 0;
    return wrong;
}

/* With the sums in the order of the ranks. */
static bool compare_with_order(const struct row_run *run, unsigned slot)
{
    const struct gpu_memory *receive = &run->rank->receive[COLLECTIVE_STRAIT];
    const uint64_t begin = slot * run->shape.receive_bytes;
    uint8_t *got = malloc(READ_BYTES), *expected = malloc(READ_BYTES);
    bool good = got != NULL && expected != NULL;

    if (!good)
        print_error(NULL, "out of memory");
    for (uint64_t at = 0, size; good && at < run->shape.receive_bytes; at += size) {
        size = run->shape.receive_bytes - at < READ_BYTES ? run->shape.receive_bytes - at : READ_BYTES;
        good = gpu_read(receive, begin + at, got, size);
        if (good)
            atomic_fetch_add(&run->result->wrong, count_wrong_sums(run, slot, got, at, size, expected));
    }
    free(got);
    free(expected);
    return good;
}

/* With more than two ranks, NCCL adds in other orders: right is either, in each slot, as each call may have gone either
 * way. */
static bool compare_sums(const struct row_run *run)
{
    const uint64_t size = run->shape.receive_bytes;
    bool good = true;

    for (unsigned slot = 0; slot < slots_used(run) && good; slot++) {
        uint64_t differences;
        good = differences_from_plain(run, slot * size, size, &differences) &&
               (differences == 0 || compare_with_order(run, slot));
    }
    return good;
}

/* Sums are checked only in the last repeat, because the CPU computes them. */
static bool check(const struct row_run *run, uint32_t repeat)
{
    const struct collective_plan *plan = run->rank->plan;
    const bool last = repeat + 1 == plan->options->repeats;

    if (plan->options->common.fault.count > 0 && last && run->rank->number == 0 && run->row == plan->rows &&
        !gpu_flip(&run->rank->receive[COLLECTIVE_STRAIT], run->shape.receive_bytes / 2))
        return false;
    if (run->shape.reduces && plan->ranks > 2)
        return !last || compare_sums(run);
    return compare_with_plain(run);
}

/* ---- A row ------------------------------------------------------------------------------------------------------- */

static bool fill(const struct row_run *run)
{
    const struct collective_values *values = run->values;

    for (unsigned slot = 0; slot < run->shape.slots; slot++)
        if (!gpu_tile(&run->rank->send, slot * run->shape.send_bytes, run->shape.send_bytes,
                      values->bytes + collective_values_start(values, run->rank->number, slot), values->period))
            return false;
    return true;
}

/* The first rank decides for all ranks. */
static bool choose_iterations(struct row_run *run)
{
    const uint32_t asked = run->rank->plan->options->iterations;
    uint64_t ns;

    if (!run_calls(run, COLLECTIVE_PLAIN, PROBES, &ns))
        return false;
    if (run->rank->number == 0) {
        uint64_t count = REPEAT_NS / ns;
        run->result->iterations = asked > 0                ? asked
                                  : count < PROBES         ? PROBES
                                  : count > ITERATIONS_MAX ? ITERATIONS_MAX
                                                           : (uint32_t)count;
    }
    if (!barrier(run->rank))
        return false;
    run->iterations = run->result->iterations;
    return true;
}

static bool run_repeat(struct row_run *run, uint32_t repeat)
{
    struct rank *rank = run->rank;

    for (unsigned i = 0; i < COLLECTIVE_WAYS; i++) {
        enum collective_way way = (i + repeat) % COLLECTIVE_WAYS;
        set_phase(rank, COLLECTIVE_MEASURING, way);
        if (!wipe(run, way) ||
            !run_calls(run, way, run->iterations, collective_ns_of(rank->plan, run->result, repeat, way, rank->number)))
            return false;
    }
    set_phase(rank, COLLECTIVE_CHECKING, COLLECTIVE_STRAIT);
    return check(run, repeat);
}

/* A call with zeros connects the ranks, which takes long and does not depend on values. After it every call is timed,
 * from the first, which may be the one that does not fit. */
static bool run_singles(struct row_run *run)
{
    const struct collective_options *options = run->rank->plan->options;
    struct rank *rank = run->rank;
    uint64_t ns;

    if (options->singles == 0 || !gpu_fill(&rank->send, 0, run->shape.slots * run->shape.send_bytes, 0))
        return options->singles == 0;
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        set_phase(rank, COLLECTIVE_WARMING, way);
        if (!run_calls(run, way, options->warmups, &ns))
            return false;
    }
    if (!fill(run))
        return false;
    for (uint32_t i = 0; i < options->singles * COLLECTIVE_WAYS; i++) {
        enum collective_way way = i % COLLECTIVE_WAYS;
        set_phase(rank, COLLECTIVE_MEASURING, way);
        if (!run_calls(
                run, way, 1,
                collective_ns_of(rank->plan, run->result, options->repeats + i / COLLECTIVE_WAYS, way, rank->number)))
            return false;
    }
    return true;
}

static void read_wire(const struct row_run *run, struct collective_wire *wire)
{
    read_wire_of(&run->rank->libraries[COLLECTIVE_STRAIT], run->rank->comms[COLLECTIVE_STRAIT], run->row->op,
                 run->row->type, wire);
}

static bool run_row(struct rank *rank, unsigned index)
{
    const struct collective_plan *plan = rank->plan;
    const struct collective_row *row = &plan->rows[index];
    struct row_run run = {.rank = rank,
                          .row = row,
                          .shape = collective_shape_of(row, plan->ranks),
                          .values = &plan->values[row->data][row->type],
                          .result = collective_result_of(rank->shared, index)};
    struct collective_wire before;
    uint64_t ns;

    read_wire(&run, &before);
    atomic_store(&rank->shared->positions[rank->number].row, index);
    if (!run_singles(&run) || !fill(&run))
        return false;
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++) {
        set_phase(rank, COLLECTIVE_WARMING, way);
        if (!run_calls(&run, way, plan->options->warmups, &ns))
            return false;
    }
    if (!choose_iterations(&run))
        return false;
    for (uint32_t repeat = 0; repeat < plan->options->repeats; repeat++)
        if (!run_repeat(&run, repeat))
            return false;
    if (rank->number == 0) {
        read_wire(&run, &run.result->wire);
        wire_since(&run.result->wire, &before);
    }
    atomic_fetch_add(&run.result->done, 1);
    return true;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* Opens NCCL first and names it to libstrait-coll, unless the user does. */
static bool open_libraries(struct rank *rank)
{
    const struct collective_options *options = rank->plan->options;
    struct library *plain = &rank->libraries[COLLECTIVE_PLAIN];

    if (!open_library(plain, options->nccl))
        return false;
    if (plain->report != NULL) {
        print_error(plain->path, "is libstrait-coll, not NCCL: --nccl names NCCL");
        return false;
    }
    setenv("STRAIT_COLL_NCCL", plain->path, 0);
    return open_library(&rank->libraries[COLLECTIVE_STRAIT], options->library);
}

static bool open_gpu(struct rank *rank)
{
    struct collective_shared *shared = rank->shared;
    const int gpu = (int)(rank->number % rank->plan->gpus);
    struct gpu_about about;
    int version = 0;

    if (!gpu_open(gpu, gpu, &about))
        return false;
    if (rank->number == 0) {
        rank->libraries[COLLECTIVE_PLAIN].GetVersion(&version);
        snprintf(shared->gpu, sizeof(shared->gpu), "%s", about.names[0]);
        snprintf(shared->nccl, sizeof(shared->nccl), "%s", rank->libraries[COLLECTIVE_PLAIN].path);
        shared->nccl_version = version;
        shared->driver = about.driver;
        shared->runtime = about.runtime;
    }
    rank->stream = gpu_stream(gpu);
    return gpu_alloc(&rank->send, gpu, rank->plan->send_bytes) &&
           gpu_alloc(&rank->receive[COLLECTIVE_PLAIN], gpu, rank->plan->receive_bytes) &&
           gpu_alloc(&rank->receive[COLLECTIVE_STRAIT], gpu, rank->plan->receive_bytes);
}

static bool connect_way(struct rank *rank, enum collective_way way)
{
    const struct library *library = &rank->libraries[way];
    coll_id *id = &rank->shared->ids[way];

    set_phase(rank, COLLECTIVE_CONNECTING, way);
    if (rank->number == 0 && !nccl_ok(library, library->GetUniqueId(id), "ncclGetUniqueId"))
        return false;
    return barrier(rank) &&
           nccl_ok(library, library->CommInitRank(&rank->comms[way], (int)rank->plan->ranks, *id, (int)rank->number),
                   "ncclCommInitRank");
}

static bool run_rows(struct rank *rank)
{
    if (!open_libraries(rank) || !open_gpu(rank) || !connect_way(rank, COLLECTIVE_PLAIN) ||
        !connect_way(rank, COLLECTIVE_STRAIT))
        return false;
    for (unsigned i = 0; i < rank->plan->row_count; i++)
        if (!run_row(rank, i))
            return false;
    if (!barrier(rank))
        return false;
    set_phase(rank, COLLECTIVE_ENDING, COLLECTIVE_PLAIN);
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++)
        if (!nccl_ok(&rank->libraries[way], rank->libraries[way].CommDestroy(rank->comms[way]), "ncclCommDestroy"))
            return false;
    return true;
}

bool collective_rank_run(const struct collective_plan *plan, struct collective_shared *shared, unsigned number)
{
    struct rank rank = {.plan = plan, .shared = shared, .number = number};

    if (!run_rows(&rank)) {
        atomic_store(&shared->barrier.failed, true);
        return false; /* pending GPU work ends with the process */
    }
    gpu_free(&rank.send);
    for (enum collective_way way = 0; way < COLLECTIVE_WAYS; way++)
        gpu_free(&rank.receive[way]);
    set_phase(&rank, COLLECTIVE_ENDED, COLLECTIVE_PLAIN);
    return true;
}
