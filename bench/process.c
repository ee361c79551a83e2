/* Programs that the bench runs: daemons, the tools that shape a link, and ucx_perftest and iperf3 to compare with. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/daemons.h"
#include "tools/util.h"

#define STOP_MS        10000u
#define TOOL_MS        5000u
#define LOOK_MS        20u
#define BUCKET_LATENCY "20ms" /* of the queue before the bucket, like the buffer of a switch port */
#define TRIES          40u    /* attempts until the server listens, */
#define TRY_MS         50u    /* this far apart */
#define CLIENT_MS      60000u
#define OUTPUT_MAX     65536u
#define LAT_ROUNDS     "500"
#define LAT_WARM_UP    "50"

extern char **environ;

/* ---- Interrupts ------------------------------------------------------------------------------------------------ */

static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
#define ENDS (sizeof(end_signals) / sizeof(end_signals[0]))

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
}

/* A signal that the parent process had ignored (nohup) stays ignored. If the reader of the report goes away, namespaces
 * must still be removed. */
void interrupts_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal}, before;

    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(end_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(end_signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

void interrupts_obey(void)
{
    if (caught == 0)
        return;
    signal(caught, SIG_DFL);
    raise(caught);
}

bool interrupted(void)
{
    return caught != 0;
}

void sleep_ms(unsigned ms)
{
    if (!interrupted())
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* ---- Starting -------------------------------------------------------------------------------------------------- */

void command_add(struct command *command, const char *word)
{
    if (command->count + 1 >= PROCESS_ARGS_MAX)
        abort();
    command->words[command->count++] = word;
}

static void clean_environment(void)
{
    char name[64];

    for (char **at = environ; *at != NULL;) {
        size_t length = strcspn(*at, "=");
        if (strncmp(*at, "STRAITD_", 8) != 0 || length >= sizeof(name)) {
            at++;
            continue;
        }
        memcpy(name, *at, length);
        name[length] = '\0';
        unsetenv(name);
        at = environ;
    }
}

/* In a child: signals that the bench records end the child, also those that came while they were blocked. */
static void signals_reset(const sigset_t *before)
{
    struct sigaction now;

    for (size_t i = 0; i < ENDS; i++)
        if (sigaction(end_signals[i], NULL, &now) == 0 && now.sa_handler == on_signal)
            signal(end_signals[i], SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, before, NULL);
}

/* Runs in the child. Ctrl-C must reach only the bench, which then ends its children. */
static void become(const struct command *command, int output, pid_t parent)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    setpgid(0, 0);
    clean_environment();
    for (unsigned i = 0; command->environment != NULL && command->environment[i] != NULL; i++)
        putenv((char *)(uintptr_t)command->environment[i]);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && dup2(null, STDIN_FILENO) >= 0 &&
        dup2(output < 0 ? null : output, STDOUT_FILENO) >= 0 && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0)
        execvp(command->words[0], (char *const *)(uintptr_t)command->words);
    dprintf(STDERR_FILENO, "%s: %s\n", command->words[0], strerror(errno));
    _exit(127);
}

static pid_t spawn(const struct command *command, int output)
{
    pid_t parent = getpid(), pid;
    sigset_t set, before;

    sigemptyset(&set);
    for (size_t i = 0; i < ENDS; i++)
        sigaddset(&set, end_signals[i]);
    sigprocmask(SIG_BLOCK, &set, &before); /* a child must not record the signal that is to end it */
    pid = fork();
    if (pid == 0) {
        signals_reset(&before);
        become(command, output, parent);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return pid < 0 ? 0 : pid;
}

pid_t process_start(const struct command *command, const char *output)
{
    int file = output == NULL ? -1 : open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_t pid = 0;

    if (output == NULL || file >= 0)
        pid = spawn(command, file);
    if (file >= 0)
        close(file);
    return pid;
}

/* ---- Ending ---------------------------------------------------------------------------------------------------- */

bool process_runs(pid_t *pid, int *status)
{
    if (*pid != 0 && waitpid(*pid, status, WNOHANG) != 0)
        *pid = 0;
    return *pid != 0;
}

int process_stop(pid_t *pid)
{
    int status = 0;

    if (!process_runs(pid, &status))
        return status;
    kill(*pid, SIGTERM);
    for (unsigned waited = 0; process_runs(pid, &status); waited += 2) {
        if (waited == STOP_MS)
            kill(*pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return status;
}

/* Reads until the end of the pipe, the deadline or an interrupt. False: the end was not reached. */
static bool read_all(int from, uint64_t deadline, char *text, size_t size)
{
    char rest[512];
    size_t used = 0;

    for (;;) {
        uint64_t now = clock_ns();
        struct pollfd fd = {.fd = from, .events = POLLIN};
        if (now >= deadline || interrupted() || poll(&fd, 1, (int)((deadline - now) / 1000000) + 1) < 0)
            return false;
        if (fd.revents == 0)
            continue;
        bool full = used + 1 == size;
        ssize_t got = read(from, full ? rest : text + used, full ? sizeof(rest) : size - 1 - used);
        if (got <= 0)
            return got == 0;
        used += full ? 0 : (size_t)got;
        text[used] = '\0';
    }
}

static bool process_run(const struct command *command, unsigned timeout_ms, char *text, size_t size)
{
    int ends[2], status = -1;
    bool ended;
    pid_t pid;

    text[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid = spawn(command, ends[1]);
    close(ends[1]);
    ended = pid != 0 && read_all(ends[0], clock_ns() + timeout_ms * 1000000ull, text, size);
    close(ends[0]);
    if (ended)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    else
        process_stop(&pid);
    return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- Looking --------------------------------------------------------------------------------------------------- */

/* Fields 14 and 15 of /proc/PID/stat. The name before them may contain anything, but ends with the last ')'. */
uint64_t process_cpu_ms(pid_t pid)
{
    unsigned long long user = 0, system = 0;
    char path[64], line[1024] = "";
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof(line), file) == NULL)
        line[0] = '\0';
    fclose(file);
    const char *at = strrchr(line, ')');
    if (at == NULL || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return 0;
    return (user + system) * 1000 / (unsigned long long)sysconf(_SC_CLK_TCK);
}

static bool process_exists(const char *name)
{
    const char *folders = getenv("PATH");
    char path[PATH_MAX];

    while (folders != NULL && *folders != '\0') {
        int length = (int)strcspn(folders, ":");
        snprintf(path, sizeof(path), "%.*s/%s", length, folders, name);
        if (access(path, X_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

/* ---- The link ---------------------------------------------------------------------------------------------------- */

/* Runs a command line without a shell, split into words at blanks. */
static bool run_line(char *why, size_t why_size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static bool run_line(char *why, size_t why_size, const char *format, ...)
{
    struct command command = {0};
    char line[256], *rest = line;
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        command_add(&command, word);
    if (process_run(&command, TOOL_MS, why, why_size))
        return true;
    why[strcspn(why, "\n")] = '\0';
    if (why[0] == '\0')
        snprintf(why, why_size, "%s failed", command.words[0]);
    return false;
}

static bool make_end(const struct bench_link_end *end, char *why, size_t why_size)
{
    return run_line(why, why_size, "ip -n %s address add %s/30 dev %s", end->space, end->address, end->device) &&
           run_line(why, why_size, "ip -n %s link set %s up", end->space, end->device) &&
           run_line(why, why_size, "ip -n %s link set lo up", end->space);
}

/* The kernel reports a device as running only after a moment, and UCX uses only running ones. */
static bool wait_running(const struct bench_link_end *end, char *why, size_t why_size)
{
    char text[512];

    for (unsigned waited = 0; waited < TOOL_MS && !interrupted(); waited += LOOK_MS) {
        if (run_line(text, sizeof(text), "ip -n %s link show dev %s", end->space, end->device) &&
            strstr(text, " state UP ") != NULL)
            return true;
        sleep_ms(LOOK_MS);
    }
    snprintf(why, why_size, "%s does not come up", end->device);
    return false;
}

static bool make(const struct bench_link *link, char *why, size_t why_size)
{
    const struct bench_link_end *a = &link->ends[0], *b = &link->ends[1];

    return run_line(why, why_size, "ip netns add %s", a->space) &&
           run_line(why, why_size, "ip netns add %s", b->space) &&
           run_line(why, why_size, "ip link add %s netns %s type veth peer name %s netns %s", a->device, a->space,
                    b->device, b->space) &&
           make_end(a, why, why_size) && make_end(b, why, why_size) && wait_running(a, why, why_size) &&
           wait_running(b, why, why_size);
}

bool bench_link_open(struct bench_link *link, char *why, size_t why_size)
{
    int id = (int)getpid();

    *link = (struct bench_link){.ends = {{.address = "10.199.0.1"}, {.address = "10.199.0.2"}}};
    for (int i = 0; i < 2; i++) {
        snprintf(link->ends[i].space, LINK_NAME_BYTES, "strait-%d-%c", id, 'a' + i);
        snprintf(link->ends[i].device, LINK_NAME_BYTES, "sb%d%c", id, 'a' + i); /* at most 15 bytes */
    }
    if (geteuid() != 0 || !process_exists("ip") || !process_exists("tc")) {
        snprintf(why, why_size, "%s", geteuid() != 0 ? "needs root" : "needs ip and tc (iproute2)");
        return false;
    }
    link->made = true;
    if (make(link, why, why_size))
        return true;
    bench_link_close(link);
    return false;
}

bool bench_link_shape(const struct bench_link *link, uint64_t kilobits, uint64_t burst)
{
    char why[256];

    for (int i = 0; i < 2; i++) {
        if (!run_line(why, sizeof(why),
                      "tc -n %s qdisc replace dev %s root tbf rate %llukbit burst %llu latency " BUCKET_LATENCY,
                      link->ends[i].space, link->ends[i].device, (unsigned long long)kilobits,
                      (unsigned long long)burst)) {
            print_error(NULL, "the link cannot be shaped: %s", why);
            return false;
        }
    }
    return true;
}

/* Must run to its end even after an interrupt. */
void bench_link_close(struct bench_link *link)
{
    for (int i = 0; link->made && i < 2; i++) {
        struct command command = {0};
        command_add(&command, "ip");
        command_add(&command, "netns");
        command_add(&command, "delete");
        command_add(&command, link->ends[i].space);
        pid_t pid = process_start(&command, NULL);
        for (unsigned waited = 0; process_runs(&pid, NULL) && waited < TOOL_MS; waited += 2)
            usleep(2000);
    }
    link->made = false;
}

/* ---- Servers and clients ----------------------------------------------------------------------------------------- */

/* A port that was free a moment ago; 0: none. */
static unsigned free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unsigned port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void explain(char *why, size_t why_size, const char *tool, const char *said)
{
    int length = (int)strcspn(said, "\n");
    snprintf(why, why_size, "%s: %.*s", tool, length > 0 ? length : 6, length > 0 ? said : "failed");
}

/* Runs a client against a server, repeatedly until the server listens. */
static bool run_pair(const struct command *server, const struct command *client, char *text, size_t size)
{
    pid_t pid = process_start(server, NULL);
    bool good = false;

    for (unsigned i = 0; pid != 0 && !good && i < TRIES && !interrupted(); i++) {
        sleep_ms(TRY_MS);
        good = process_run(client, CLIENT_MS, text, size);
        if (!good && !process_runs(&pid, NULL)) /* the server has served a client, or never listened */
            break;
    }
    process_stop(&pid);
    return good;
}

static const char *const ucx_environment[] = {"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", NULL};

/* ---- UCX --------------------------------------------------------------------------------------------------------- */

/* Number `index`, from 0, of the line after the heading: "  64,4.165,8920.062,...". */
static bool csv_number(const char *text, unsigned index, double *number)
{
    const char *line = strstr(text, "iterations,");

    line = line == NULL ? NULL : strchr(line, '\n');
    for (; line != NULL && index > 0; index--) {
        line = strchr(line + 1, ',');
    }
    return line != NULL && sscanf(line + 1, "%lf", number) == 1 && *number > 0;
}

/* ucx_perftest -t TEST -s SIZE -n COUNT -w WARM_UP -R RANK, at both ends; the figure is one of its columns, in us. */
struct ucx_test {
    const char *test, *count, *warm_up, *rank;
    uint64_t size;
    unsigned column;
};

static bool ucx_run(const struct ucx_test *test, double *us, char *why, size_t why_size)
{
    struct command server = {.environment = ucx_environment}, client = {.environment = ucx_environment};
    char port[16], size[24], text[4096] = "";
    const char *const words[] = {"ucx_perftest", "127.0.0.1",   "-t", test->test, "-s", size, "-n", test->count,
                                 "-w",           test->warm_up, "-R", test->rank, "-f", "-v", "-p", port};

    snprintf(port, sizeof(port), "%u", free_port());
    snprintf(size, sizeof(size), "%llu", (unsigned long long)test->size);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        command_add(&client, words[i]);
    command_add(&server, "ucx_perftest");
    command_add(&server, "-p");
    command_add(&server, port);
    if (!process_exists("ucx_perftest")) {
        snprintf(why, why_size, "ucx_perftest is not installed");
        return false;
    }
    if (run_pair(&server, &client, text, sizeof(text)) && csv_number(text, test->column, us))
        return true;
    explain(why, why_size, "ucx_perftest", text);
    return false;
}

bool tool_ucx_bandwidth(uint32_t messages, uint64_t *ns, char *why, size_t why_size)
{
    char count[16];
    struct ucx_test test = {"ucp_am_bw", count, "8", "50", UCX_MESSAGE_BYTES, 3};
    double us;

    snprintf(count, sizeof(count), "%u", (unsigned)messages);
    if (!ucx_run(&test, &us, why, why_size))
        return false;
    *ns = (uint64_t)(us * 1000 * messages);
    return true;
}

bool tool_ucx_latency(uint64_t bytes, uint64_t *p50_ns, uint64_t *p99_ns, char *why, size_t why_size)
{
    struct ucx_test test = {"ucp_am_lat", LAT_ROUNDS, LAT_WARM_UP, "50", bytes, 1};
    double p50, p99;

    if (!ucx_run(&test, &p50, why, why_size))
        return false;
    test.rank = "99";
    if (!ucx_run(&test, &p99, why, why_size))
        return false;
    *p50_ns = (uint64_t)(p50 * 1000);
    *p99_ns = (uint64_t)(p99 * 1000);
    return true;
}

/* ---- iperf3 ------------------------------------------------------------------------------------------------------ */

static bool read_iperf(const char *text, uint64_t *bytes, uint64_t *ns)
{
    cJSON *root = cJSON_Parse(text);
    const cJSON *end = cJSON_GetObjectItemCaseSensitive(root, "end");
    const cJSON *sum = cJSON_GetObjectItemCaseSensitive(end, "sum_received");
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(sum, "bytes");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(sum, "seconds");
    bool good = cJSON_IsNumber(count) && cJSON_IsNumber(seconds) && count->valuedouble > 0 && seconds->valuedouble > 0;

    if (good) {
        *bytes = (uint64_t)count->valuedouble;
        *ns = (uint64_t)(seconds->valuedouble * 1e9);
    }
    cJSON_Delete(root);
    return good;
}

bool tool_iperf(const struct bench_link *link, uint64_t *bytes, uint64_t *ns, char *why, size_t why_size)
{
    const char *const server_words[] = {"ip", "netns", "exec", link->ends[1].space, "iperf3", "-s", "-1"};
    const char *const client_words[] = {
        "ip", "netns", "exec", link->ends[0].space, "iperf3", "-c", link->ends[1].address, "-t", "1", "-J"};
    struct command server = {0}, client = {0};
    char *text = malloc(OUTPUT_MAX);
    bool good = false;

    for (size_t i = 0; i < sizeof(server_words) / sizeof(server_words[0]); i++)
        command_add(&server, server_words[i]);
    for (size_t i = 0; i < sizeof(client_words) / sizeof(client_words[0]); i++)
        command_add(&client, client_words[i]);
    if (!process_exists("iperf3"))
        snprintf(why, why_size, "iperf3 is not installed");
    else if (text == NULL)
        snprintf(why, why_size, "out of memory");
    else if (!run_pair(&server, &client, text, OUTPUT_MAX) || !read_iperf(text, bytes, ns))
        explain(why, why_size, "iperf3", text[0] == '{' ? "unexpected output" : text);
    else
        good = true;
    free(text);
    return good;
}
