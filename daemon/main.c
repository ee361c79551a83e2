/* straitd, the daemon of a node. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/node.h"

extern char **environ;

struct program {
    uv_loop_t loop;
    uv_signal_t terminate, interrupt;
    struct node *node;
    struct log *log;
    bool asked; /* a stop was requested; a second request does not wait for transfers */
    int status; /* exit status */
};

#define STATUS_GPU_FAILED 3
#define END_SECONDS       15

static int usage(FILE *out)
{
    fprintf(out, "usage: straitd [--config FILE] [options]\n\n"
                 "Moves KV-cache pages between the workers of this node and of others.\n\noptions:\n"
                 "  --config FILE    read options from a file of \"name = value\" lines first\n"
                 "  --print-config   print the options in force as such a file, and end\n"
                 "  --sample-config  print a file with every option explained, and end\n"
                 "  --version        print the version, and end\n"
                 "  -h, --help       print this, and end\n");
    options_help(out);
    return out == stdout ? 0 : 2;
}

static int no_file(char **flags)
{
    fprintf(stderr, "straitd: --config: needs a file\n");
    free(flags);
    return 2;
}

/* Reads the options: defaults < file < environment < flags. Returns -1 to go on, else the exit status. */
static int read_options(int argc, char **argv, struct node_options *options)
{
    struct option_error error = {.text = ""};
    bool print = false;
    int kept = 1; /* as in argv, the program's name comes first */
    char **flags = calloc((size_t)argc + 1, sizeof(*flags));
    const char *config = getenv("STRAITD_CONFIG");
    if (flags == NULL)
        return 1;
    if (config != NULL && config[0] == 0) /* empty counts as not set */
        config = NULL;
    for (int i = 1; i < argc; i++) {
        bool help = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
        if (help || strcmp(argv[i], "--version") == 0 || strcmp(argv[i], "--sample-config") == 0) {
            free(flags);
            if (help)
                return usage(stdout);
            if (argv[i][2] == 's')
                options_sample(stdout);
            else
                printf("straitd %s\n", strait_version());
            return 0;
        }
        if (strcmp(argv[i], "--print-config") == 0)
            print = true;
        else if (strcmp(argv[i], "--config") == 0 && i + 1 == argc)
            return no_file(flags);
        else if (strcmp(argv[i], "--config") == 0)
            config = argv[++i];
        else if (strcmp(argv[i], "--config=") == 0)
            return no_file(flags);
        else if (strncmp(argv[i], "--config=", 9) == 0)
            config = argv[i] + 9;
        else
            flags[kept++] = argv[i];
    }
    options_default(options);
    enum strait_status status = config != NULL ? options_file(options, config, &error) : STRAIT_OK;
    if (status == STRAIT_OK)
        status = options_environment(options, environ, &error);
    if (status == STRAIT_OK)
        status = options_flags(options, kept, flags, &error);
    if (status == STRAIT_OK)
        status = options_check(options, &error);
    free(flags);
    if (status != STRAIT_OK) {
        fprintf(stderr, "straitd: %s\n", error.text);
        return 2;
    }
    if (!print)
        return -1;
    options_print(options, stdout);
    return 0;
}

static enum log_level level_of(const char *text)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum log_level)i;
    return LOG_INFO;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct program *program = handle->data;
    (void)number;
    node_stop(program->node, !program->asked);
    program->asked = true;
}

static void on_stopped(void *owner)
{
    struct program *program = owner;
    uv_close((uv_handle_t *)&program->terminate, NULL);
    uv_close((uv_handle_t *)&program->interrupt, NULL);
}

/* The driver of a failed GPU may never return: then SIGALRM ends the process. */
static void on_gpu_failed(void *owner)
{
    struct program *program = owner;
    program->status = STATUS_GPU_FAILED;
    alarm(END_SECONDS);
}

int main(int argc, char **argv)
{
    struct program program = {.node = NULL};
    struct node_options options;
    int status = read_options(argc, argv, &options);
    if (status >= 0)
        return status;
    transport_leave_signals();
    signal(SIGPIPE, SIG_IGN);
    /* libuv reads the size of its thread pool once, from the environment. */
    char count[32];
    long workers = options.workers != 0 ? options.workers : sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(count, sizeof(count), "%ld", workers < 2 ? 2 : workers);
    setenv("UV_THREADPOOL_SIZE", count, 1);
    char why[512] = "";
    if (log_create(STDERR_FILENO, level_of(options.log_level), &program.log) != STRAIT_OK ||
        uv_loop_init(&program.loop) != 0) {
        fprintf(stderr, "straitd: out of memory\n");
        return 1;
    }
    uv_signal_init(&program.loop, &program.terminate);
    uv_signal_init(&program.loop, &program.interrupt);
    program.terminate.data = program.interrupt.data = &program;
    uv_signal_start(&program.terminate, on_signal, SIGTERM);
    uv_signal_start(&program.interrupt, on_signal, SIGINT);
    enum strait_status made =
        node_create(&program.loop, &options, program.log, -1, on_stopped, &program, &program.node, why, sizeof(why));
    if (program.node == NULL)
        on_stopped(&program);
    else if (made != STRAIT_OK)
        node_stop(program.node, false);
    if (program.node != NULL)
        program.node->gpu_failed = on_gpu_failed;
    if (made == STRAIT_OK)
        log_write(program.log, LOG_INFO, "msg=ready version=%s codec=%s socket=%s", strait_version(),
                  strait_codec_name(strait_codec_get(NULL)), options.socket);
    else
        fprintf(stderr, "straitd: %s\n", why);
    uv_run(&program.loop, UV_RUN_DEFAULT);
    node_destroy(program.node);
    (void)uv_loop_close(&program.loop);
    if (made == STRAIT_OK)
        log_write(program.log, LOG_INFO, "msg=stopped");
    log_destroy(program.log);
    return made == STRAIT_OK ? program.status : 1;
}
