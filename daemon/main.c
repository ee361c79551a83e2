/* straitd, the daemon of a node. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "daemon/base/inherited.h"
#include "daemon/base/option_table.h"
#include "daemon/base/service_manager.h"
#include "daemon/check.h"
#include "daemon/examine.h"
#include "daemon/handover.h"
#include "daemon/reload.h"

extern char **environ;

struct program {
    uv_loop_t loop;
    uv_signal_t terminate, interrupt;
    struct node *node;
    struct log *log;
    const struct command *command;
    uv_timer_t watchdog;
    int hangups; /* signalfd */
    struct watch *hangup_watch;
    struct watch_count watches;
    struct handover handover; /* of the daemon whose place this one takes */
    uv_work_t reload_work;
    bool reloading, reload_again; /* reload_again: SIGHUP came meanwhile */
    struct reload reload;
    enum strait_status reload_status;
    char reload_why[512];
    bool asked; /* a stop was requested; a second request does not wait for transfers */
    int status; /* exit status */
};

#define STATUS_GPU_FAILED 3
#define END_SECONDS       15

static int usage(FILE *out)
{
    fprintf(out, "usage: straitd [--config FILE] [options]\n\n"
                 "Moves KV-cache pages between the workers of this node and of others.\n\noptions:\n");
    for (size_t i = 0; i < option_command_count; i++) {
        const struct option_command *command = &option_commands[i];
        const bool help = strcmp(command->name, "help") == 0;
        const int size =
            fprintf(out, "  %s--%s%s%s", help ? "-h, " : "", command->name, command->argument != NULL ? " " : "",
                    command->argument != NULL ? command->argument : "");
        fprintf(out, "%*s%s\n", 19 - size, "", command->help);
    }
    options_help(out);
    return out == stdout ? 0 : 2;
}

static int needs(const char *what)
{
    fprintf(stderr, "straitd: %s\n", what);
    return 2;
}

/* The command line. Options are read from it, from the environment and from the file again when SIGHUP comes. */
struct command {
    const char *config; /* NULL: no file */
    char **flags;
    int flag_count;
    bool print, check, replace, examine;
    const char **probes; /* control ports of other daemons to be examined */
    unsigned probe_count;
};

/* Returns -1 to go on, else the exit status. The caller frees command->flags. */
static int read_command(int argc, char **argv, struct command *command)
{
    const char *config = getenv("STRAITD_CONFIG");
    *command = (struct command){.config = config != NULL && config[0] != 0 ? config : NULL, /* empty: not set */
                                .flags = calloc((size_t)argc + 1, sizeof(char *)),
                                .flag_count = 1, /* as in argv, the program's name comes first */
                                .probes = calloc((size_t)argc + 1, sizeof(char *))};
    if (command->flags == NULL || command->probes == NULL)
        return 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout);
        if (strcmp(argv[i], "--sample-config") == 0) {
            options_sample(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("straitd %s\n", strait_version());
            return 0;
        }
        if (strcmp(argv[i], "--print-config") == 0)
            command->print = true;
        else if (strcmp(argv[i], "--replace") == 0)
            command->replace = true;
        else if (strcmp(argv[i], "--check-config") == 0)
            command->check = true;
        else if (strcmp(argv[i], "--examine") == 0)
            command->examine = true;
        else if (strcmp(argv[i], "--probe") == 0 && i + 1 == argc)
            return needs("--probe: needs an address");
        else if (strcmp(argv[i], "--probe") == 0)
            command->probes[command->probe_count++] = argv[++i];
        else if ((strcmp(argv[i], "--config") == 0 && i + 1 == argc) || strcmp(argv[i], "--config=") == 0)
            return needs("--config: needs a file");
        else if (strcmp(argv[i], "--config") == 0)
            command->config = argv[++i];
        else if (strncmp(argv[i], "--config=", 9) == 0)
            command->config = argv[i] + 9;
        else
            command->flags[command->flag_count++] = argv[i];
    }
    return -1;
}

/* Defaults < file < environment < flags. */
static enum strait_status read_options(const struct command *command, struct node_options *options,
                                       struct option_error *error)
{
    options_default(options);
    enum strait_status status = command->config != NULL ? options_file(options, command->config, error) : STRAIT_OK;
    if (status == STRAIT_OK)
        status = options_environment(options, environ, error);
    if (status == STRAIT_OK)
        status = options_flags(options, command->flag_count, command->flags, error);
    if (status == STRAIT_OK)
        status = options_check(options, error);
    return status;
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *handle, int number)
{
    struct program *program = handle->data;
    (void)number;
    (void)service_notify("STOPPING=1\nSTATUS=%s", program->asked ? "stopping" : "waiting for live transfers");
    node_stop(program->node, !program->asked);
    program->asked = true;
}

/* SIGHUP is blocked in all threads from the start and read from a descriptor: at no moment does it end the process. */
static void block_hangups(void)
{
    sigset_t hangup;
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &hangup, NULL);
    signal(SIGHUP, SIG_DFL); /* one that is ignored, as under nohup, would not reach the descriptor */
}

static void reload_work(uv_work_t *work)
{
    struct program *program = work->data;
    struct option_error error;
    struct node_options options;
    program->reload_status = read_options(program->command, &options, &error);
    if (program->reload_status != STRAIT_OK)
        snprintf(program->reload_why, sizeof(program->reload_why), "%s", error.text);
    else
        program->reload_status =
            reload_read(&options, &program->reload, program->reload_why, sizeof(program->reload_why));
}

static void notify_ready(void)
{
    (void)service_notify("READY=1\nSTATUS=ready, version %s", strait_version());
}

static void reload_begin(struct program *program);

static void reload_done(uv_work_t *work, int cancelled)
{
    struct program *program = work->data;
    char why[2 * sizeof(program->reload_why)];
    program->reloading = false;
    if (cancelled != 0)
        return;
    if (program->reload_status == STRAIT_OK)
        program->reload_status =
            node_reload(program->node, &program->reload, program->reload_why, sizeof(program->reload_why));
    if (program->reload_status != STRAIT_OK)
        log_write(program->log, LOG_ERROR, "msg=\"not reloaded: everything stays as it is\" error=%s",
                  log_quote(why, sizeof(why), program->reload_why, strlen(program->reload_why)));
    if (program->reload_again)
        reload_begin(program);
    else if (!program->asked)
        notify_ready();
}

/* Files are read on a worker: their file system may be slow. */
static void reload_begin(struct program *program)
{
    program->reload_again = program->reloading;
    if (program->reloading || program->asked)
        return;
    (void)service_notify("RELOADING=1\nMONOTONIC_USEC=%" PRIu64, service_monotonic_us());
    program->reload_work.data = program;
    program->reloading = uv_queue_work(&program->loop, &program->reload_work, reload_work, reload_done) == 0;
}

static void on_hangup(void *owner, uint32_t events)
{
    struct program *program = owner;
    struct signalfd_siginfo info;
    (void)events;
    while (read(program->hangups, &info, sizeof(info)) == (ssize_t)sizeof(info))
        continue;
    reload_begin(program);
}

static enum strait_status watch_hangups(struct program *program)
{
    sigset_t hangup;
    sigemptyset(&hangup);
    sigaddset(&hangup, SIGHUP);
    program->hangups = signalfd(-1, &hangup, SFD_NONBLOCK | SFD_CLOEXEC);
    enum strait_status status = STRAIT_ERR_IO;
    if (program->hangups >= 0)
        status =
            watch_open(&program->loop, program->hangups, on_hangup, program, &program->watches, &program->hangup_watch);
    if (status == STRAIT_OK)
        watch_for(program->hangup_watch, WATCH_READ);
    return status;
}

static void on_stopped(void *owner)
{
    struct program *program = owner;
    uv_close((uv_handle_t *)&program->terminate, NULL);
    uv_close((uv_handle_t *)&program->interrupt, NULL);
    uv_close((uv_handle_t *)&program->watchdog, NULL);
    watch_close(program->hangup_watch);
    handover_close(&program->handover);
}

/* The driver of a failed GPU may never return: then SIGALRM ends the process. */
static void on_gpu_failed(void *owner)
{
    struct program *program = owner;
    program->status = STATUS_GPU_FAILED;
    alarm(END_SECONDS);
}

/* The loop itself answers for its life: when it hangs, nothing is sent. */
static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    (void)service_notify("WATCHDOG=1");
}

static void watchdog_start(struct program *program)
{
    const uint64_t half_ms = service_watchdog_us() / 2000;
    if (half_ms == 0)
        return;
    uv_timer_start(&program->watchdog, on_watchdog, 0, half_ms);
    uv_unref((uv_handle_t *)&program->watchdog);
}

/* libuv reads the size of its thread pool once, from the environment. */
static void set_workers(const struct node_options *options)
{
    char count[32];
    long workers = options->workers != 0 ? options->workers : sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(count, sizeof(count), "%ld", workers < 2 ? 2 : workers);
    setenv("UV_THREADPOOL_SIZE", count, 1);
}

/* What an operator looks for first: which process, with which file, is reached where, and by what it codes. */
static void log_ready(const struct program *program)
{
    const struct node *node = program->node;
    const struct node_options *options = &node->options;
    const struct strait_codebook *codebook = node_codebook(node);
    char id[2 * STRAIT_CODEBOOK_ID_BYTES + 1] = "none";
    for (size_t i = 0; codebook != NULL && i < STRAIT_CODEBOOK_ID_BYTES; i++)
        snprintf(id + 2 * i, 3, "%02x", strait_codebook_id(codebook)[i]);
    log_write(program->log, LOG_INFO,
              "msg=ready version=%s pid=%d config=\"%s\" socket=%s address=%s transports=\"%s\" codec=%s codebook=%s "
              "arena_bytes=%llu",
              strait_version(), (int)getpid(), program->command->config != NULL ? program->command->config : "",
              options->socket, node->peers != NULL ? peers_address(node->peers) : "",
              node->peers != NULL ? peers_offered(node->peers) : "", strait_codec_name(strait_codec_get(NULL)), id,
              (unsigned long long)options->arena_bytes);
}

static int run(const struct command *command, const struct node_options *options)
{
    struct program program = {.command = command, .hangups = -1};
    char why[512] = "";
    if (log_create(STDERR_FILENO, log_level_of(options->log_level), &program.log) != STRAIT_OK ||
        uv_loop_init(&program.loop) != 0 || watch_hangups(&program) != STRAIT_OK) {
        fprintf(stderr, "straitd: out of memory\n");
        return 1;
    }
    uv_timer_init(&program.loop, &program.watchdog);
    uv_signal_init(&program.loop, &program.terminate);
    uv_signal_init(&program.loop, &program.interrupt);
    program.terminate.data = program.interrupt.data = &program;
    uv_signal_start(&program.terminate, on_signal, SIGTERM);
    uv_signal_start(&program.interrupt, on_signal, SIGINT);
    struct channel *running = NULL; /* daemon whose place this one takes */
    enum strait_status made = STRAIT_OK;
    inherited_from_manager();
    if (command->replace)
        made = handover_ask(options->socket, &running, why, sizeof(why));
    if (made == STRAIT_OK)
        made =
            node_create(&program.loop, options, program.log, -1, on_stopped, &program, &program.node, why, sizeof(why));
    const uint32_t unused = inherited_close();
    if (made == STRAIT_OK && unused > 0)
        log_write(program.log, LOG_WARN, "msg=\"sockets not used\" count=%u", unused);
    if (made == STRAIT_OK && running != NULL)
        handover_ready(&program.handover, running, &program.loop, &program.watches, program.log);
    else
        channel_destroy(running);
    if (program.node == NULL)
        on_stopped(&program);
    else if (made != STRAIT_OK)
        node_stop(program.node, false);
    if (program.node != NULL)
        program.node->gpu_failed = on_gpu_failed;
    program.asked |= made != STRAIT_OK;
    if (made == STRAIT_OK) {
        notify_ready();
        watchdog_start(&program);
        log_ready(&program);
    } else {
        fprintf(stderr, "straitd: %s\n", why);
    }
    uv_run(&program.loop, UV_RUN_DEFAULT);
    node_destroy(program.node);
    (void)uv_loop_close(&program.loop);
    if (made == STRAIT_OK)
        log_write(program.log, LOG_INFO, "msg=stopped");
    log_destroy(program.log);
    return made == STRAIT_OK ? program.status : 1;
}

int main(int argc, char **argv)
{
    block_hangups();
    struct command command;
    struct node_options options;
    struct option_error error = {.text = ""};
    int status = read_command(argc, argv, &command);
    if (status < 0 && read_options(&command, &options, &error) != STRAIT_OK) {
        fprintf(stderr, "straitd: %s\n", error.text);
        status = 2;
    }
    if (status < 0 && command.print) {
        options_print(&options, stdout);
        status = 0;
    }
    if (status < 0 && (command.examine || command.probe_count > 0)) {
        transport_leave_signals();
        status = node_examine(&options, command.probes, command.probe_count, stdout) ? 0 : 1;
    }
    if (status < 0 && command.check) {
        transport_leave_signals();
        status = node_check(&options, stderr) == 0 ? 0 : 1;
        if (status == 0)
            printf("straitd: the configuration is good\n");
    }
    if (status < 0) {
        transport_leave_signals();
        signal(SIGPIPE, SIG_IGN);
        set_workers(&options);
        status = run(&command, &options);
    }
    free(command.flags);
    free(command.probes);
    return status;
}
