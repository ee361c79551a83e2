/* Expert parallelism on real GPUs, against the host backend: each rank has two groups, one of memory of its GPU and one
 * of processors, makes the same calls on both, and compares all outputs bit for bit.
 *
 *   gpu_ep [SCENE ...]
 *     shapes   random groups and steps, all layouts, LL and HT
 *     choice   which groups of AUTO have rows of both kinds, and which calls they code
 *     quantize BF16 to E4M3: every value, and random rows; how long it takes for 128 tokens
 *     graphs   1000 replays of an update, dispatch and combine, with new routing each
 *     kill     a rank ends in the middle: the others are told within the time limit, with `mask` they go on
 *     times    p50 and p99 of dispatch and combine, LL 128 and HT 4096 tokens, hidden 7168, top-8 of 256, BF16 and
 *              FP8, which are a graph each; without peer access raw and coded
 *
 * `hosts` before the scenes: ranks are processes that are told to be on a host each, so that all but the own rows goes
 * by TCP; they share the first GPU, under MPS.
 *
 * With several GPUs ranks are processes, one on each of the first 2 and of the first 4, and for shapes threads as well;
 * with one GPU they are two threads, whose kernels fit on it side by side. Each scene runs with peer access and,
 * `host`, without (NCCL_P2P_DISABLE). STRAIT_TEST_SEED, STRAIT_TEST_GROUPS (40), STRAIT_TEST_SMS
 * (16): multiprocessors of `times`. Exit status 77: there is no GPU. */
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "tests/gpu/ep_sides.h"

enum { REPLAYS = 1000, STEPS = 4 };

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* Now and then. */
static bool is_large(struct rng *rng)
{
    return rng_below(rng, 4) == 0 && !setting.alone;
}

/* Drawn by all ranks alike. */
static struct strait_ep_config draw_config(struct rng *rng, uint32_t ranks)
{
    struct strait_ep_config config = {
        .algorithm = rng_below(rng, 2) ? STRAIT_EP_LOW_LATENCY : STRAIT_EP_HIGH_THROUGHPUT, .overflow = STRAIT_EP_DROP};

    config.experts = ranks * (1 + rng_below(rng, is_large(rng) ? 128 : 8));
    config.tokens_max = 1 + rng_below(rng, is_large(rng) ? 3000 : setting.alone ? 30 : 150);
    config.row_bytes_max = 16 * (1 + rng_below(rng, is_large(rng) ? 1000 : 64));
    config.scale_bytes_max = 4 * rng_below(rng, 8);
    config.topk_max = 1 + rng_below(rng, 10);
    config.coding = rng_below(rng, 3);
    if (setting.alone && config.coding == STRAIT_EP_AUTO && rng_below(rng, 2)) { /* large enough for calls to choose */
        config.algorithm = STRAIT_EP_HIGH_THROUGHPUT;
        config.tokens_max = 1100, config.row_bytes_max = 16000, config.topk_max = 1;
        config.sm_budget = rng_below(rng, 2) ? 32 : 0; /* with which calls choose more */
    }
    const uint64_t copies = config.algorithm == STRAIT_EP_LOW_LATENCY ? config.experts : ranks * config.topk_max;
    while (copies * config.tokens_max * config.row_bytes_max > 1u << 27)
        config.tokens_max = (config.tokens_max + 1) / 2;
    config.mask = config.algorithm == STRAIT_EP_LOW_LATENCY && rng_below(rng, 3) == 0;
    config.heap_bytes = rng_below(rng, 2) ? (uint64_t)ranks * config.tokens_max * config.row_bytes_max : 0;
    config.receive_max = rng_below(rng, 3) == 0 ? 1 + rng_below(rng, ranks * config.tokens_max) : 0;
    return config;
}

static struct step_shape draw_shape(struct rng *rng, const struct strait_ep_config *config, uint32_t ranks,
                                    uint32_t rank)
{
    static const enum strait_element types[] = {STRAIT_ELEMENT_BF16, STRAIT_ELEMENT_FP16, STRAIT_ELEMENT_FP32,
                                                STRAIT_ELEMENT_FP8_E4M3};
    const bool ll = config->algorithm == STRAIT_EP_LOW_LATENCY;
    const uint32_t vectors = setting.alone && config->row_bytes_max > 1024 ? 64 : config->row_bytes_max / 16;
    const uint32_t most = setting.alone && config->tokens_max > 30 ? 30 : config->tokens_max;
    struct step_shape shape = {.type = types[rng_below(rng, COUNT(types))],
                               .layout = rng_below(rng, 2) ? STRAIT_EP_EXPERT_MAJOR
                                         : ll              ? STRAIT_EP_RANK_MAJOR
                                                           : STRAIT_EP_FLAT,
                               .topk = 1 + rng_below(rng, config->topk_max),
                               .row_bytes = 16 * (1 + rng_below(rng, vectors)),
                               .weights = rng_below(rng, 3) != 0,
                               .heap = rng_below(rng, 2),
                               .staged = ll && rng_below(rng, 3) == 0,
                               .alignment = 1,
                               .seed = rng_next(rng)};

    if (config->scale_bytes_max != 0)
        shape.scale_bytes = 4 * (1 + rng_below(rng, config->scale_bytes_max / 4));
    if (!ll && shape.layout == STRAIT_EP_EXPERT_MAJOR)
        shape.alignment = 1 + rng_below(rng, 130);
    shape.gradients = !ll && shape.weights;
    for (uint32_t r = 0; r < ranks; r++) {
        const uint32_t tokens = rng_below(rng, 5) == 0 ? 0 : rng_below(rng, most + 1);
        shape.tokens = r == rank ? tokens : shape.tokens;
    }
    return shape;
}

static void run_shapes(struct member *member)
{
    const uint32_t ranks = member->world->ranks;
    struct rng rng = rng_init(setting.seed);
    uint64_t steps = 0, coded = 0;

    for (uint32_t g = 0; g < setting.groups; g++) {
        struct strait_ep_config config = draw_config(&rng, ranks);
        struct side sides[2];
        make_groups(member, config, true, sides);
        for (uint32_t i = 0; i < STEPS; i++) {
            const struct step_shape shape = draw_shape(&rng, &config, ranks, member->rank);
            struct rng own = rng_init(shape.seed + member->rank);
            sides[0].shape = sides[1].shape = shape;
            sides[0].shape.row_count = sides[1].shape.row_count = most_rows(&sides[0].config, &shape);
            make_handles(member, sides);
            draw_inputs(sides, &own);
            world_barrier(member); /* drawing takes longer than ranks wait for each other */
            for (int again = 0; again < 2; again++) {
                step(&sides[1]);
                step(&sides[0]);
                require_cuda(cudaStreamSynchronize(sides[1].stream));
                require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
                compare(sides, "shapes");
                draw_routing(sides, &own);
            }
            drop_handles(member, sides);
            steps += 2;
            coded += config.coding == STRAIT_EP_CODED ? 2 : 0;
        }
        if (member->rank == 0 && g == 0)
            printf("shapes: rows cross %s\n", medium_of(&sides[1]));
        drop_groups(member, sides);
    }
    if (member->rank == 0)
        printf("shapes: %u ranks, %u groups, %llu steps equal, %llu of them coded\n", ranks, setting.groups,
               (unsigned long long)steps, (unsigned long long)coded);
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

static void run_graph(struct member *member, enum strait_ep_algorithm algorithm, enum strait_ep_layout layout,
                      enum strait_ep_coding coding)
{
    const struct strait_ep_config config = {.algorithm = algorithm,
                                            .experts = 16 * member->world->ranks,
                                            .tokens_max = 64,
                                            .row_bytes_max = 1024,
                                            .topk_max = 6,
                                            .coding = coding};
    struct rng own = rng_init(setting.seed + member->rank);
    struct side sides[2];
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    make_groups(member, config, true, sides);
    for (int s = 0; s < 2; s++) {
        sides[s].shape = (struct step_shape){.layout = layout,
                                             .type = STRAIT_ELEMENT_BF16,
                                             .topk = 6,
                                             .tokens = 64,
                                             .row_bytes = 1024,
                                             .alignment = 1,
                                             .weights = true};
        sides[s].shape.row_count = most_rows(&sides[s].config, &sides[s].shape);
    }
    make_handles(member, sides);
    draw_inputs(sides, &own);
    require_cuda(cudaStreamBeginCapture(sides[1].stream, cudaStreamCaptureModeThreadLocal));
    step(&sides[1]);
    require_cuda(cudaStreamEndCapture(sides[1].stream, &graph));
    require_cuda(cudaGraphInstantiate(&exec, graph, 0));
    world_barrier(member);
    for (int replay = 0; replay < REPLAYS; replay++) {
        draw_routing(sides, &own);
        require_cuda(cudaGraphLaunch(exec, sides[1].stream));
        step(&sides[0]);
        require_cuda(cudaStreamSynchronize(sides[1].stream));
        require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
        compare(sides, "graphs");
    }
    world_barrier(member);
    require_cuda(cudaGraphExecDestroy(exec));
    require_cuda(cudaGraphDestroy(graph));
    drop_handles(member, sides);
    drop_groups(member, sides);
}

static void run_graphs(struct member *member)
{
    for (enum strait_ep_coding coding = STRAIT_EP_RAW; coding <= STRAIT_EP_CODED; coding++) {
        run_graph(member, STRAIT_EP_LOW_LATENCY, STRAIT_EP_EXPERT_MAJOR, coding);
        run_graph(member, STRAIT_EP_LOW_LATENCY, STRAIT_EP_RANK_MAJOR, coding);
        run_graph(member, STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_FLAT, coding);
        run_graph(member, STRAIT_EP_HIGH_THROUGHPUT, STRAIT_EP_EXPERT_MAJOR, coding);
    }
    if (member->rank == 0)
        printf("graphs: %u ranks, 4 graphs raw and 4 coded, %d replays each, equal\n", member->world->ranks, REPLAYS);
}

/* ---- Groups whose calls choose ----------------------------------------------------------------------------------- */

/* Whether a group of AUTO is one, with rows of 16 KiB. */
static bool chooses(struct member *member, enum strait_ep_algorithm algorithm, uint32_t tokens)
{
    const struct strait_ep_config config = {.algorithm = algorithm,
                                            .experts = member->world->ranks,
                                            .tokens_max = tokens,
                                            .row_bytes_max = 16384,
                                            .topk_max = 1};
    struct strait_ep_info info = {.size = sizeof(info)};
    struct side sides[2];

    make_groups(member, config, false, sides);
    strait_ep_info(sides[1].group, &info);
    drop_groups(member, sides);
    return info.coded;
}

/* How many calls of a step are coded: rows of a model's size, in a group of AUTO that is large enough. */
static uint64_t coded_calls(struct member *member, uint32_t sm_budget, enum strait_element type,
                            enum strait_ep_layout layout)
{
    const uint32_t ranks = member->world->ranks;
    const struct strait_ep_config config = {.algorithm = STRAIT_EP_HIGH_THROUGHPUT,
                                            .experts = 4 * ranks,
                                            .tokens_max = 1024,
                                            .row_bytes_max = 16384,
                                            .topk_max = 2,
                                            .sm_budget = sm_budget};
    const uint32_t row_bytes = type == STRAIT_ELEMENT_FP8_E4M3 ? 7168 : 14336;
    const struct step_shape shape = {
        .type = type, .layout = layout, .tokens = 9, .topk = 2, .row_bytes = row_bytes, .alignment = 1};
    struct rng own = rng_init(member->rank + 1);
    struct strait_ep_info info = {.size = sizeof(info)};
    struct side sides[2];

    make_groups(member, config, true, sides);
    sides[0].shape = sides[1].shape = shape;
    sides[0].shape.row_count = sides[1].shape.row_count = most_rows(&sides[0].config, &shape);
    make_handles(member, sides);
    draw_inputs(sides, &own);
    world_barrier(member);
    step(&sides[1]);
    step(&sides[0]);
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
    compare(sides, "choice");
    drop_handles(member, sides);
    strait_ep_info(sides[1].group, &info);
    drop_groups(member, sides);
    return info.coded_calls;
}

/* Groups: from 16 MiB on, HT, through memory of the host; without room for rows of both kinds the group is made for raw
 * ones. Their calls: BF16, and with 32 multiprocessors E4M3, of FLAT. */
static void run_choice(struct member *member)
{
    const bool far = setting.no_peers && setting.hosts == 0;

    require(coded_calls(member, 16, STRAIT_ELEMENT_BF16, STRAIT_EP_FLAT) == (far ? 2 : 0));
    require(coded_calls(member, 31, STRAIT_ELEMENT_FP8_E4M3, STRAIT_EP_FLAT) == 0);
    require(coded_calls(member, 32, STRAIT_ELEMENT_FP8_E4M3, STRAIT_EP_FLAT) == (far ? 1 : 0));
    require(coded_calls(member, 32, STRAIT_ELEMENT_FP16, STRAIT_EP_FLAT) == 0);
    require(coded_calls(member, 32, STRAIT_ELEMENT_BF16, STRAIT_EP_EXPERT_MAJOR) == 0);
    require(!chooses(member, STRAIT_EP_HIGH_THROUGHPUT, 1023));
    require(chooses(member, STRAIT_EP_HIGH_THROUGHPUT, 1024) == far);
    require(!chooses(member, STRAIT_EP_LOW_LATENCY, 1024));
    if (!setting.alone || !far || SANITIZED)
        return;
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file != NULL && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
    require(chooses(member, STRAIT_EP_HIGH_THROUGHPUT, 16384)); /* of 256 MiB: more than five of them */
    const struct rlimit limit = {.rlim_cur = pages * 4096 + (800ul << 20), .rlim_max = RLIM_INFINITY};
    require(setrlimit(RLIMIT_AS, &limit) == 0);
    require(!chooses(member, STRAIT_EP_HIGH_THROUGHPUT, 16384));
}

/* ---- A rank that ends -------------------------------------------------------------------------------------------- */

static double seconds_until_failed(struct strait_ep_group *group, enum strait_status *status, uint32_t *rank)
{
    const double began = clock_s();

    while ((*status = strait_ep_async_error(group, rank)) == STRAIT_OK && clock_s() - began < 10)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return clock_s() - began;
}

/* The last rank goes after three steps, killed where it is a process. */
static void run_kill_of(struct member *member, enum strait_ep_algorithm algorithm, bool mask,
                        enum strait_ep_coding coding)
{
    const struct strait_ep_config config = {.algorithm = algorithm,
                                            .experts = 8 * member->world->ranks,
                                            .tokens_max = 32,
                                            .row_bytes_max = 512,
                                            .topk_max = 4,
                                            .mask = mask,
                                            .coding = coding,
                                            .timeout_ns = 1000000000};
    const uint32_t last = member->world->ranks - 1;
    struct rng own = rng_init(setting.seed + member->rank);
    struct side sides[2];
    enum strait_status status;
    uint32_t rank = ~0u;

    make_groups(member, config, true, sides);
    for (int s = 0; s < 2; s++) {
        sides[s].shape = (struct step_shape){.layout = STRAIT_EP_EXPERT_MAJOR,
                                             .type = STRAIT_ELEMENT_FP32,
                                             .topk = 4,
                                             .tokens = 32,
                                             .row_bytes = 512,
                                             .alignment = 1};
        sides[s].shape.row_count = most_rows(&sides[s].config, &sides[s].shape);
    }
    make_handles(member, sides);
    draw_inputs(sides, &own);
    for (int i = 0; i < 3; i++)
        step(&sides[1]);
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    world_barrier(member);
    if (member->rank == last && !setting.threads)
        raise(SIGKILL);
    if (member->rank == last) {
        world_barrier(member);
        world_barrier(member);
        return; /* its memory stays, as others may still write to it */
    }
    step(&sides[1]);
    const double seconds = seconds_until_failed(sides[1].group, &status, &rank);
    require(status == STRAIT_ERR_TIMEOUT && rank == last && seconds < 10);
    require_cuda(cudaStreamSynchronize(sides[1].stream));
    if (mask) {
        int32_t active[STRAIT_EP_RANKS_MAX];
        require(strait_ep_mask_get(sides[1].group, active, sides[1].stream) == STRAIT_OK);
        for (uint32_t r = 0; r <= last; r++)
            require(active[r] == (r != last));
        strait_ep_error_clear(sides[1].group);
        for (int i = 0; i < 5; i++)
            step(&sides[1]);
        require_cuda(cudaStreamSynchronize(sides[1].stream));
        require_good(&sides[1], strait_ep_async_error(sides[1].group, NULL));
    } else {
        require(update(&sides[1]) == STRAIT_ERR_TIMEOUT);
    }
    if (setting.threads)
        world_barrier(member), world_barrier(member);
    if (member->rank == 0)
        printf("kill: %s%s%s: told after %.2f s\n", algorithm == STRAIT_EP_LOW_LATENCY ? "LL" : "HT",
               coding == STRAIT_EP_CODED ? " coded" : "", mask ? " with mask, went on" : "", seconds);
}

static void run_kill_low_latency(struct member *member)
{
    run_kill_of(member, STRAIT_EP_LOW_LATENCY, false, STRAIT_EP_RAW);
}

static void run_kill_masked(struct member *member)
{
    run_kill_of(member, STRAIT_EP_LOW_LATENCY, true, STRAIT_EP_RAW);
}

static void run_kill_coded_masked(struct member *member)
{
    run_kill_of(member, STRAIT_EP_LOW_LATENCY, true, STRAIT_EP_CODED);
}

static void run_kill_high_throughput(struct member *member)
{
    run_kill_of(member, STRAIT_EP_HIGH_THROUGHPUT, false, STRAIT_EP_RAW);
}

static void run_kill_coded(struct member *member)
{
    run_kill_of(member, STRAIT_EP_HIGH_THROUGHPUT, false, STRAIT_EP_CODED);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

struct scene {
    const char *name;
    member_run *run;
    bool threads_too; /* also as threads where there are several GPUs */
};

static const struct scene scenes[] = {{"shapes", run_shapes, true},
                                      {"choice", run_choice, false},
                                      {"quantize", run_quantize, false},
                                      {"graphs", run_graphs, false},
                                      {"kill", run_kill_low_latency, false},
                                      {"kill", run_kill_masked, false},
                                      {"kill", run_kill_high_throughput, false},
                                      {"kill", run_kill_coded_masked, false},
                                      {"kill", run_kill_coded, false},
                                      {"times", run_times, false}};

/* In a process of its own, which has not used CUDA. */
static void play(const struct scene *scene, uint32_t ranks, bool threads, bool no_peers)
{
    int status;

    fflush(NULL);
    const pid_t pid = fork();
    require(pid >= 0);
    if (pid == 0) {
        end_with_parent();
        setting.threads = threads;
        setting.no_peers = no_peers;
        if (no_peers)
            require(setenv("NCCL_P2P_DISABLE", "1", 1) == 0);
        printf("%s: %u ranks, %s%s\n", scene->name, ranks, threads ? "threads" : "processes",
               setting.hosts > 1 ? " on hosts of their own"
               : no_peers        ? ", without peer access"
                                 : "");
        if (setting.hosts > 1)
            world_run_hosts(ranks, setting.hosts, scene->run, NULL);
        else
            world_run(ranks, !threads, scene->run, NULL);
        fflush(NULL);
        _exit(0);
    }
    require(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "%s failed\n", scene->name);
        exit(1);
    }
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* ranks that are threads: none waits in a queue behind another */
    setting.devices = count_devices();
    setting.seed = number_of("STRAIT_TEST_SEED", 1);
    setting.groups = (uint32_t)number_of("STRAIT_TEST_GROUPS", 40);
    setting.multiprocessors = (uint32_t)number_of("STRAIT_TEST_SMS", 16);
    if (setting.devices == 0) {
        printf("skipped: there is no GPU\n");
        return 77;
    }
    if (argc == 2 && strcmp(argv[1], "--alone") == 0) {
        setting.alone = true;
        play(&scenes[0], 1, true, false);
        play(&scenes[0], 1, true, true);
        play(&scenes[1], 1, true, false);
        play(&scenes[1], 1, true, true);
        play(&scenes[2], 1, true, false);
        play(&scenes[COUNT(scenes) - 1], 1, true, false);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--hosts") == 0) {
        setting.alone = true;
        setting.hosts = 2;
        play(&scenes[0], 2, false, false);
        play(&scenes[0], 3, false, false);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "hosts") == 0) {
        setting.hosts = 2;
        setting.devices = 1;
        argv++, argc--;
    }
    for (int s = 0; s < COUNT(scenes); s++)
        for (int no_peers = 0; no_peers < 2 && is_named(scenes[s].name, argc - 1, argv + 1); no_peers++) {
            if (setting.devices == 1) {
                if (setting.hosts == 0 || no_peers == 0)
                    play(&scenes[s], 2, setting.hosts == 0, no_peers);
                continue;
            }
            for (uint32_t ranks = 2; ranks <= 4 && (int)ranks <= setting.devices; ranks += 2) {
                play(&scenes[s], ranks, false, no_peers);
                if (scenes[s].threads_too)
                    play(&scenes[s], ranks, true, no_peers);
            }
        }
    printf("ok\n");
    return 0;
}
