/* What the daemon says of itself, and straitd of its options, ports and peers. */
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal/default_socket.h"
#include "tools/ask.h"
#include "tools/doctor.h"
#include "tools/util.h"

#define ARGUMENTS_MAX 512u
#define CMDLINE_MAX   65536u

static const cJSON *part_of(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* ---- Asking the daemon ------------------------------------------------------------------------------------------- */

/* The daemon's process as this one sees it: in another pid namespace the number is somebody else's. */
static int process_of_daemon(const cJSON *status)
{
    const int pid = (int)number_of(status, "pid");
    char path[64], name[32] = "";
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    const bool read = fgets(name, sizeof(name), file) != NULL;
    fclose(file);
    return read && strcmp(name, "straitd\n") == 0 ? pid : 0;
}

void doctor_ask_daemon(struct doctor *doctor)
{
    static char own[SOCKET_PATH_MAX + 1];
    const char *of_options = text_of(part_of(doctor->examination, "options"), "socket");
    if (doctor->socket == NULL)
        doctor->socket = of_options[0] != '\0' ? of_options : socket_find(own);
    struct asked daemon = {.path = doctor->socket};
    char *text = daemon_ask(&daemon, ASK_PATIENCE_MS);
    doctor->status = text != NULL ? cJSON_Parse(text) : NULL;
    free(text);
    daemon_leave(&daemon);
    if (doctor->status == NULL) {
        const bool there = access(doctor->socket, F_OK) == 0;
        doctor_find(doctor, there ? LEVEL_ERROR : LEVEL_WARNING, "daemon",
                    there ? "systemctl status straitd, journalctl -u straitd" : "systemctl start straitd, or --socket",
                    "%s: %s", doctor->socket, daemon.why);
        return;
    }
    doctor->pid = process_of_daemon(doctor->status);
    doctor_find(doctor, LEVEL_OK, "daemon", NULL, "%s: straitd %s answers, up %.0f s", doctor->socket,
                text_of(doctor->status, "version"), number_of(doctor->status, "uptime_seconds"));
}

/* ---- Running straitd --examine ----------------------------------------------------------------------------------- */

struct arguments {
    char *list[ARGUMENTS_MAX + 2];
    unsigned count;
    char cmdline[CMDLINE_MAX];
};

static void add_argument(struct arguments *arguments, const char *text)
{
    if (arguments->count < ARGUMENTS_MAX)
        arguments->list[arguments->count++] = (char *)text;
}

/* Takes the options of the daemon that runs, from its command line. */
static bool add_options_of(struct arguments *arguments, int pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const size_t size = fread(arguments->cmdline, 1, sizeof(arguments->cmdline) - 1, file);
    fclose(file);
    const char *at = arguments->cmdline + strnlen(arguments->cmdline, size) + 1;
    for (; at < arguments->cmdline + size; at += strlen(at) + 1)
        if (strcmp(at, "--replace") != 0)
            add_argument(arguments, at);
    return size > 0;
}

static void add_usual_config(struct arguments *arguments)
{
    static const char *const places[] = {"/etc/strait/straitd.conf", "/usr/local/etc/strait/straitd.conf"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && getenv("STRAITD_CONFIG") == NULL; i++)
        if (access(places[i], F_OK) == 0) {
            add_argument(arguments, "--config");
            add_argument(arguments, places[i]);
            return;
        }
}

static void make_arguments(const struct doctor *doctor, const char *straitd, struct arguments *arguments)
{
    add_argument(arguments, straitd);
    if (doctor->config != NULL) {
        add_argument(arguments, "--config");
        add_argument(arguments, doctor->config);
    } else if (doctor->pid == 0 || !add_options_of(arguments, doctor->pid)) {
        add_usual_config(arguments);
    }
    if (doctor->socket != NULL && doctor->pid == 0) {
        add_argument(arguments, "--socket");
        add_argument(arguments, doctor->socket);
    }
    add_argument(arguments, "--examine");
    for (unsigned i = 0; i < doctor->peer_count; i++) {
        add_argument(arguments, "--probe");
        add_argument(arguments, doctor->peers[i]);
    }
    arguments->list[arguments->count] = NULL;
}

/* In the child: relative paths in the daemon's options are of its folder. */
static void become(const struct doctor *doctor, struct arguments *arguments, int out, int err)
{
    char folder[64];
    snprintf(folder, sizeof(folder), "/proc/%d/cwd", doctor->pid);
    if (doctor->pid != 0 && doctor->config == NULL && chdir(folder) != 0)
        dprintf(err, "straitd: the daemon's folder cannot be entered: %s\n", strerror(errno));
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(arguments->list[0], arguments->list);
    dprintf(STDERR_FILENO, "%s: %s\n", arguments->list[0], strerror(errno));
    _exit(127);
}

/* All that was written to the memfd, NUL-terminated, which it closes; malloc'ed, or NULL. */
static char *take_text(int fd)
{
    struct stat file;
    char *text = NULL;
    if (fd >= 0 && fstat(fd, &file) == 0 && (text = calloc(1, (size_t)file.st_size + 1)) != NULL &&
        pread(fd, text, (size_t)file.st_size, 0) != file.st_size)
        text[0] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

/* Returns the exit status; -1: it was not run. */
static int run(const struct doctor *doctor, struct arguments *arguments, char **output, char **errors)
{
    const int out = memfd_create("straitd-out", MFD_CLOEXEC), err = memfd_create("straitd-err", MFD_CLOEXEC);
    const pid_t child = out >= 0 && err >= 0 ? fork() : -1;
    int status = -1;
    if (child == 0)
        become(doctor, arguments, out, err);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    *output = take_text(out);
    *errors = take_text(err);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void doctor_examine(struct doctor *doctor)
{
    static struct arguments arguments;
    char *output = NULL, *errors = NULL, *found = find_straitd();
    char *straitd = found != NULL ? realpath(found, NULL) : NULL; /* it is run in another folder */
    free(found);
    if (straitd == NULL) {
        doctor_find(doctor, LEVEL_ERROR, "straitd", "install it, or STRAITD=PATH",
                    "there is no straitd beside this program: its configuration and limits are not examined");
        return;
    }
    arguments.count = 0;
    make_arguments(doctor, straitd, &arguments);
    const int status = run(doctor, &arguments, &output, &errors);
    doctor->examination = status == 0 && output != NULL ? cJSON_Parse(output) : NULL;
    if (doctor->examination == NULL) {
        if (errors != NULL)
            errors[strcspn(errors, "\n")] = '\0';
        doctor_find(doctor, LEVEL_ERROR, "configuration", "what the line says; straitd --help explains each option",
                    "%s", errors != NULL && errors[0] != '\0' ? errors : "straitd --examine says nothing");
    }
    free(output);
    free(errors);
    free(straitd);
}

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

void doctor_configuration(struct doctor *doctor)
{
    const cJSON *problem, *problems = part_of(doctor->examination, "problems"),
                          *options = part_of(doctor->examination, "options");
    if (doctor->examination == NULL)
        return;
    cJSON_ArrayForEach(problem, problems)
        doctor_find(doctor, LEVEL_ERROR, "configuration", "what the line says; straitd --check-config says the same",
                    "%s", cJSON_GetStringValue(problem));
    if (cJSON_GetArraySize(problems) == 0)
        doctor_find(doctor, LEVEL_OK, "configuration", NULL, "straitd %s would start with it",
                    text_of(doctor->examination, "version"));
    if (text_of(options, "codebook")[0] == '\0')
        doctor_find(doctor, LEVEL_WARNING, "codebook", "strait calibrate makes a set; name it with codebook =",
                    "no codebook set is configured: pages are coded without tables");
    if (strcmp(text_of(options, "credentials"), "none") == 0)
        doctor_find(doctor, LEVEL_NOTE, "credentials", "secret-file, or tls-certificate, for peers on other nodes",
                    "neither a secret nor certificates: peers do not prove who they are");
}

/* ---- Ports ------------------------------------------------------------------------------------------------------- */

/* Splits "10.0.0.7:7350" or "[::1]:7350" and binds there. Returns 0 or errno. */
static int try_bind(const char *text, unsigned *port)
{
    char host[300];
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *found;
    const char *colon = strrchr(text, ':');
    const bool brackets = text[0] == '[';
    if (colon == NULL)
        return EINVAL;
    *port = (unsigned)strtoul(colon + 1, NULL, 10);
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - (brackets ? 2 : 0), text + brackets);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return EINVAL;
    const int one = 1, fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd >= 0 && found->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) != 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return error;
}

/* Inode of a socket that listens at this port, in /proc/net/tcp or tcp6; 0: there is none. */
static unsigned long listening_inode(const char *table, unsigned port)
{
    char line[512];
    unsigned local, state;
    unsigned long inode = 0, found = 0;
    FILE *file = fopen(table, "re");
    while (file != NULL && found == 0 && fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu", &local, &state,
                   &inode) == 3 &&
            local == port && state == 0x0a)
            found = inode;
    if (file != NULL)
        fclose(file);
    return found;
}

static bool holds(const char *pid, const char *link)
{
    char path[300], target[64];
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    bool found = false;
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        const ssize_t size = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
        target[size > 0 ? size : 0] = '\0';
        found = strcmp(target, link) == 0;
    }
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* The process that has the port; 0: this user may not see it. */
static int holder_of(unsigned port)
{
    char link[64];
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    if (inode == 0)
        inode = listening_inode("/proc/net/tcp6", port);
    snprintf(link, sizeof(link), "socket:[%lu]", inode);
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    int pid = 0;
    while (processes != NULL && inode != 0 && pid == 0 && (entry = readdir(processes)) != NULL)
        if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9' && holds(entry->d_name, link))
            pid = atoi(entry->d_name);
    if (processes != NULL)
        closedir(processes);
    return pid;
}

static void name_of(int pid, char *name, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    FILE *file = fopen(path, "re");
    name[0] = '\0';
    if (file != NULL && fgets(name, (int)size, file) != NULL)
        name[strcspn(name, "\n")] = '\0';
    if (file != NULL)
        fclose(file);
}

static void check_port(struct doctor *doctor, const char *option, const char *address)
{
    unsigned port = 0;
    char name[32];
    const int error = try_bind(address, &port);
    if (port == 0)
        return; /* any free one */
    if (error != EADDRINUSE) {
        doctor_find(doctor, error == 0 ? LEVEL_OK : LEVEL_ERROR, option,
                    error == 0 ? NULL : "another address, or the right to use this one", "%s is %s", address,
                    error == 0 ? "free" : strerror(error));
        return;
    }
    const int pid = holder_of(port);
    if (doctor->status != NULL && (pid == 0 || pid == doctor->pid)) {
        doctor_find(doctor, LEVEL_OK, option, NULL, "%s is %s", address,
                    pid != 0 ? "the daemon's" : "in use, by the look of it by the daemon that answers");
        return;
    }
    name_of(pid, name, sizeof(name));
    if (pid != 0)
        doctor_find(doctor, LEVEL_ERROR, option, "end that process, or choose another port", "%s is held by %s, pid %d",
                    address, name, pid);
    else
        doctor_find(doctor, LEVEL_ERROR, option, "as root, strait doctor names it",
                    "%s is held by a process of another user", address);
}

void doctor_ports(struct doctor *doctor)
{
    static const char *const options[] = {"listen", "metrics"};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const cJSON *address;
        cJSON_ArrayForEach(address, part_of(doctor->examination, options[i]))
            check_port(doctor, options[i], cJSON_GetStringValue(address));
    }
}

/* ---- State of the daemon ----------------------------------------------------------------------------------------- */

static void check_version(struct doctor *doctor)
{
    const char *installed = text_of(doctor->examination, "version"), *runs = text_of(doctor->status, "version");
    if (installed[0] != '\0' && strcmp(installed, runs) != 0)
        doctor_find(doctor, LEVEL_WARNING, "version", "systemctl restart straitd, or straitd --replace",
                    "straitd %s runs, %s is installed", runs, installed);
}

/* Figures that are 0 in a daemon with which all is well. */
static void check_figures(struct doctor *doctor)
{
    static const struct {
        const char *part, *name;
        enum level level;
        const char *text, *change;
    } figures[] = {
        {"gauges", "gpus_failed", LEVEL_ERROR, "GPUs that cannot be used any more", "dmesg for Xid; restart straitd"},
        {"gauges", "slots_quarantined", LEVEL_WARNING, "receive slots in quarantine",
         "end or continue the stopped process that shares memory"},
        {"gauges", "quarantined_pages", LEVEL_WARNING, "pages of failed transfers that are not drained",
         "as for slots in quarantine"},
        {"counters", "chunks_forged", LEVEL_ERROR, "encrypted chunks that were not what the peer had encrypted",
         "docs/runbook.md, StraitChunksForged"},
        {"counters", "auth_failures", LEVEL_WARNING, "attempts that could not prove who they are",
         "the log names the addresses: secrets that differ, or a stranger"},
        {"counters", "accept_rests_clients", LEVEL_WARNING, "times that clients waited for a descriptor",
         "raise LimitNOFILE"},
        {"counters", "accept_rests_peers", LEVEL_WARNING, "times that peers waited for a descriptor",
         "raise LimitNOFILE"},
        {"counters", "withdrawals_lost", LEVEL_NOTE, "ends of requests that the other side was not told", ""},
    };
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        const double value = number_of(part_of(doctor->status, figures[i].part), figures[i].name);
        if (value > 0)
            doctor_find(doctor, figures[i].level, "figures", figures[i].change, "%.0f %s", value, figures[i].text);
    }
}

/* Whether another connection with the same peer is up: it was dialled by both. */
static bool is_up_otherwise(const cJSON *connections, const cJSON *connection)
{
    const cJSON *other;
    cJSON_ArrayForEach(other, connections) if (other != connection && strcmp(text_of(other, "state"), "up") == 0 &&
                                               strcmp(text_of(other, "address"), text_of(connection, "address")) ==
                                                   0) return true;
    return false;
}

#define SKEW_MAX_US 1e6 /* certificates and logs of two nodes go together up to here */

/* What two daemons told each other of themselves. */
static void check_facts(struct doctor *doctor, const char *check, const char *peer, const cJSON *facts, const char *own)
{
    const char *version = text_of(facts, "version");
    const double skew = number_of(facts, "clock_skew_us");
    if (version[0] != '\0' && strcmp(version, own) != 0)
        doctor_find(doctor, LEVEL_NOTE, check, NULL, "%s runs straitd %s, and this node %s", peer, version, own);
    if (skew > SKEW_MAX_US || skew < -SKEW_MAX_US)
        doctor_find(doctor, LEVEL_WARNING, check, "chrony or another NTP client on both nodes",
                    "the clock of %s is %.1f s %s", peer, (skew > 0 ? skew : -skew) / 1e6, skew > 0 ? "fast" : "slow");
}

static void check_connection(struct doctor *doctor, const cJSON *connections, const cJSON *connection)
{
    const char *address = text_of(connection, "address"), *transport = text_of(connection, "transport");
    if (strcmp(text_of(connection, "state"), "up") != 0) {
        if (text_of(connection, "why")[0] != '\0' && !is_up_otherwise(connections, connection))
            doctor_find(doctor, LEVEL_WARNING, "peer", "strait doctor --peer ADDRESS tries it now",
                        "%s is not connected: %s", address, text_of(connection, "why"));
        return;
    }
    if (strcmp(transport, "tcp") == 0 && number_of(part_of(doctor->status, "gauges"), "rdma_active") > 0)
        doctor_find(doctor, LEVEL_WARNING, "peer",
                    "the check ucx, here and on that node; transports in the log at the start says what was missing",
                    "%s is reached by TCP, and this node has RDMA", address);
    else
        doctor_find(doctor, LEVEL_OK, "peer", NULL, "%s is reached by %s, %s", address, transport,
                    text_of(connection, "coding"));
    check_facts(doctor, "peer", address, connection, text_of(doctor->status, "version"));
    if (is_true(doctor->status, "codebook") && !is_true(connection, "codebook_matches") &&
        !is_true(connection, "codebook_known"))
        doctor_find(doctor, LEVEL_WARNING, "peer", "the same codebook set on all nodes, and SIGHUP",
                    "%s has %s codebook set and has not fetched this one: pages are coded without tables", address,
                    is_true(connection, "has_codebook") ? "another" : "no");
}

void doctor_status(struct doctor *doctor)
{
    const cJSON *connection, *connections = part_of(doctor->status, "peers");
    if (doctor->status == NULL)
        return;
    check_version(doctor);
    if (is_true(doctor->status, "draining"))
        doctor_find(doctor, LEVEL_WARNING, "daemon", "wait for its end, and start it again",
                    "it is stopping, and takes no new requests");
    if (!is_true(doctor->status, "codebook") && text_of(part_of(doctor->examination, "options"), "codebook")[0] != '\0')
        doctor_find(doctor, LEVEL_WARNING, "codebook", "systemctl reload straitd",
                    "a codebook set is configured, and the daemon has none: it was started before");
    if (text_of(doctor->status, "transports_left_out")[0] != '\0')
        doctor_find(doctor, LEVEL_WARNING, "transports", "what the reason says, or leave it out of transports",
                    "left out: %s", text_of(doctor->status, "transports_left_out"));
    check_figures(doctor);
    cJSON_ArrayForEach(connection, connections) check_connection(doctor, connections, connection);
}

/* ---- Peers that were named --------------------------------------------------------------------------------------- */

void doctor_peers(struct doctor *doctor)
{
    const cJSON *probe;
    cJSON_ArrayForEach(probe, part_of(doctor->examination, "peers"))
    {
        const char *peer = text_of(probe, "peer"), *why = text_of(probe, "why");
        if (!is_true(probe, "reached"))
            doctor_find(doctor, LEVEL_ERROR, "probe", "straitd there, its option listen, firewalls between",
                        "%s cannot be reached: %s", peer, why);
        else if (!is_true(probe, "proved"))
            doctor_find(doctor, LEVEL_ERROR, "probe", "the same secret-file, or certificates of one CA, on both nodes",
                        "%s is reached (%.0f us), and does not let this node in: %s", peer,
                        number_of(probe, "connect_us"), why);
        else if (!is_true(probe, "fits"))
            doctor_find(doctor, LEVEL_ERROR, "probe", "the same version, and the same encrypt-pages, on both nodes",
                        "%s lets this node in, and the two do not fit: %s", peer, why);
        else
            doctor_find(doctor, LEVEL_OK, "probe", NULL,
                        "%s lets this node in: straitd %s, protocol %.0f, clock %+.1f ms, connected in %.0f us, hello "
                        "in %.0f us",
                        peer, text_of(probe, "version"), number_of(probe, "protocol"),
                        number_of(probe, "clock_skew_us") / 1000, number_of(probe, "connect_us"),
                        number_of(probe, "hello_us"));
        check_facts(doctor, "probe", peer, probe, text_of(doctor->examination, "version"));
    }
}
