/* strait demo */
#include "tools/commands.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/demo.h"
#include "tools/util.h"

static const char usage[] =
    "usage: strait demo [--json] [--fault flip]\n"
    "\n"
    "Starts two straitd on this machine, gives each a worker, moves a real KV cache from one to the other, on every\n"
    "path and in every coding that there is, and compares the hash of each page at its source and where it landed.\n"
    "Everything is on loopback and in a folder of its own; nothing is left behind.\n"
    "\n"
    "  --json               report as JSON\n"
    "  --fault flip         turn over a bit of a page that has landed, to see the comparison fail\n"
    "  -h, --help           print this\n"
    "\n"
    "Exit status: 0 every page is what was sent, 1 not so, 2 bad usage.\n";

#define ROWS_MAX 8u

struct demo {
    bool json, flip;
    char *straitd;
    char folder[DEMO_PATH_MAX];
    char set[DEMO_PATH_MAX];
    struct demo_sample sample;
    struct strait_memory landing;
    struct demo_plan plan;
    struct demo_row rows[ROWS_MAX];
    uint32_t row_count;
};

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

static bool add_row(struct demo *demo, const struct demo_pair *pair, struct demo_row row)
{
    struct demo_row *next = &demo->rows[demo->row_count];
    *next = row;
    if (!demo_move(pair, &demo->plan, next))
        return false;
    demo->row_count++;
    if (!demo->json)
        demo_print_row(next, &demo->sample, stdout);
    return true;
}

/* A fault is injected on the first path only. */
static bool move_coded(struct demo *demo, const struct demo_pair *pair, const char *path)
{
    bool flip = demo->flip && demo->row_count == 0;
    return add_row(demo, pair, (struct demo_row){.path = path, .coding = "raw", .pin = STRAIT_CODING_RAW}) &&
           add_row(demo, pair, (struct demo_row){.path = path, .coding = "top16", .pin = STRAIT_CODING_TOP16}) &&
           add_row(demo, pair,
                   (struct demo_row){.path = path, .coding = "tiered", .pin = STRAIT_CODING_TIERED, .flip = flip});
}

/* Moves between a source and a sink of the same daemon. */
static bool move_local(struct demo *demo, struct demo_side *source)
{
    struct demo_side sink = {0};
    struct demo_pair pair = {source, &sink};
    bool moved = demo_side_open(&sink, source->daemon, &demo->sample, &demo->landing) &&
                 add_row(demo, &pair, (struct demo_row){.path = "local", .coding = "none", .pin = STRAIT_CODING_AUTO});
    demo_side_close(&sink);
    return moved;
}

/* ---- Daemons ----------------------------------------------------------------------------------------------------- */

static bool move_between(struct demo *demo, struct demo_daemon daemons[2], const char *path, bool local)
{
    struct demo_side source = {0}, sink = {0};
    struct demo_pair pair = {&source, &sink};
    bool moved = demo_side_open(&source, &daemons[0], &demo->sample, &demo->sample.memory) &&
                 demo_side_open(&sink, &daemons[1], &demo->sample, &demo->landing) && move_coded(demo, &pair, path) &&
                 (!local || move_local(demo, &source));
    demo_side_close(&sink);
    demo_side_close(&source);
    return moved;
}

/* Prints what the daemons logged about a failure. If one died, that was printed before. */
static void print_logs(struct demo_daemon daemons[2])
{
    for (int i = 0; i < 2; i++)
        if (daemons[i].pid != 0)
            demo_daemon_print_log(&daemons[i]);
}

/* A path is measured with a pair of daemons that have this transport only. */
static bool move_path(struct demo *demo, const char *path, const char *transport, bool local)
{
    struct demo_daemon daemons[2] = {{0}};
    bool moved = demo_daemon_start(&daemons[0], demo->straitd, demo->folder, "source", transport, demo->set) &&
                 demo_daemon_start(&daemons[1], demo->straitd, demo->folder, "sink", transport, demo->set) &&
                 move_between(demo, daemons, path, local);
    if (!moved && !demo_interrupted())
        print_logs(daemons);
    bool ended = demo_daemon_stop(&daemons[1]);
    ended = demo_daemon_stop(&daemons[0]) && ended;
    return moved && ended;
}

/* ---- All of it ------------------------------------------------------------------------------------------------- */

static bool prepare(struct demo *demo)
{
    demo->straitd = demo_straitd();
    if (demo->straitd == NULL || !demo_sample_init(&demo->sample) || !demo_folder_create(demo->folder))
        return false;
    snprintf(demo->set, sizeof(demo->set), "%.64s/kv.set", demo->folder);
    if (strait_alloc(demo_bytes(&demo->sample), &demo->landing) != STRAIT_OK) {
        print_error(NULL, "out of memory");
        return false;
    }
    return demo_file_write(demo->set, demo->sample.set, demo->sample.set_size) &&
           demo_plan_init(&demo->plan, &demo->sample, &demo->landing);
}

static bool move_all(struct demo *demo)
{
    if (!demo->json)
        demo_print_head(&demo->sample, stdout);
#ifdef STRAIT_DEMO_NETWORK
    if (!move_path(demo, "network", STRAIT_DEMO_NETWORK, false))
        return false;
#endif
    return move_path(demo, "shm", "shm", true);
}

static void clean_up(struct demo *demo)
{
    demo_plan_fini(&demo->plan);
    if (demo->landing.base != NULL)
        strait_free(&demo->landing);
    demo_folder_remove(demo->folder);
    demo_sample_fini(&demo->sample);
    free(demo->straitd);
}

static bool report(const struct demo *demo, bool complete)
{
    struct demo_report report = {.sample = &demo->sample,
                                 .rows = demo->rows,
                                 .row_count = demo->row_count,
                                 .complete = complete,
                                 .flip = demo->flip};
    if (!demo->json) {
        demo_print_end(&report, stdout);
#ifndef STRAIT_DEMO_NETWORK
        puts("(This build has no UCX, so that there is no network path.)");
#endif
    }
    return (!demo->json || demo_print_json(&report, stdout)) && demo_verified(&report);
}

static bool run(struct demo *demo)
{
    demo_signals_catch();
    if (demo->json)
        errors_keep();
    bool complete = prepare(demo) && move_all(demo);
    bool verified = !demo_interrupted() && report(demo, complete);
    clean_up(demo);
    demo_signals_obey();
    return verified;
}

/* ---- Options --------------------------------------------------------------------------------------------------- */

enum { OPT_JSON = 256, OPT_FAULT };

static const struct option long_options[] = {
    {"json", no_argument, NULL, OPT_JSON},
    {"fault", required_argument, NULL, OPT_FAULT},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static bool set_option(struct demo *demo, int option, const char *text)
{
    if (option == OPT_JSON)
        return demo->json = true;
    if (option == OPT_FAULT && strcmp(text, "flip") == 0)
        return demo->flip = true;
    if (option == OPT_FAULT)
        print_error(NULL, "--fault knows flip, not '%s'", text);
    return false;
}

int cmd_demo(int argc, char **argv)
{
    static char name[] = "strait demo";
    static struct demo demo = {.sample.memory.fd = -1};
    int option;
    command_begin(argv, name);
    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
        if (option == 'h') {
            fputs(usage, stdout);
            return EXIT_CODE_OK;
        }
        if (!set_option(&demo, option, optarg))
            return EXIT_CODE_USAGE;
    }
    if (optind != argc) {
        print_error(NULL, "takes no arguments; see strait demo --help");
        return EXIT_CODE_USAGE;
    }
    return run(&demo) ? EXIT_CODE_OK : EXIT_CODE_DATA;
}
