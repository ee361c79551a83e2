#include "tests/daemon.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/chaos/inject.h"
#include "tests/support.h"

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void rest_ms(uint32_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

bool folder_make(char *folder, const char *name)
{
    const char *place = getenv("TMPDIR");
    if (place == NULL || place[0] != '/' || strlen(place) > 40)
        place = "/tmp";
    snprintf(folder, 64, "%s/strait-%.8s-XXXXXX", place, name);
    return mkdtemp(folder) != NULL;
}

void folder_remove(const char *folder)
{
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;)
        unlinkat(dirfd(entries), entry->d_name, 0);
    if (entries != NULL)
        closedir(entries);
    rmdir(folder);
}

bool codebook_write(const char *folder, const char *name, const struct strait_codebook *codebook)
{
    char path[256];
    size_t size = strait_codebook_serialized_size(codebook);
    void *bytes = malloc(size);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    bool good = bytes != NULL && file != NULL && strait_codebook_serialize(codebook, bytes, size) == STRAIT_OK &&
                fwrite(bytes, 1, size, file) == size;
    if (file != NULL)
        good = fclose(file) == 0 && good;
    free(bytes);
    return good;
}

bool secret_make(const char *folder)
{
    uint8_t secret[32];
    char path[256];
    snprintf(path, sizeof(path), "%s/secret", folder);
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const bool good = fd >= 0 && getrandom(secret, sizeof(secret), 0) == sizeof(secret) &&
                      write(fd, secret, sizeof(secret)) == sizeof(secret);
    if (fd >= 0)
        close(fd);
    return good;
}

/* ---- Processes --------------------------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) become_daemon(const struct daemon_start *start, pid_t parent)
{
    char text[1024];
    if (start->faults != NULL) {
        snprintf(text, sizeof(text), "%s:%d", start->faults, start->side);
        setenv(CHAOS_VARIABLE, text, 1);
    }
    if (start->plugin != NULL) {
        const char *others = getenv("LD_LIBRARY_PATH");
        snprintf(text, sizeof(text), "%s%s%s", start->plugin, others != NULL ? ":" : "", others != NULL ? others : "");
        setenv("LD_LIBRARY_PATH", text, 1);
        setenv(CHAOS_PLUGIN, start->behind, 1);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int out = start->log != NULL ? open(start->log, O_WRONLY | O_CREAT | O_APPEND, 0600) : 1;
    if (getppid() != parent || out < 0 || (out > 2 && (dup2(out, 1) < 0 || dup2(out, 2) < 0)))
        _exit(120);
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    execvp(start->arguments[0], (char **)(uintptr_t)start->arguments);
    fprintf(stderr, "%s: %s\n", start->arguments[0], strerror(errno));
    _exit(121);
}

pid_t daemon_spawn(const struct daemon_start *start)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        become_daemon(start, parent);
    return pid;
}

int process_reap(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

bool process_size_read(pid_t pid, struct process_size *size)
{
    char path[64], line[128];
    unsigned long resident = 0, anonymous = 0;
    *size = (struct process_size){0};
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        size->descriptors += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "VmRSS: %lu", &resident);
        (void)sscanf(line, "RssAnon: %lu", &anonymous);
        (void)sscanf(line, "Threads: %u", &size->threads);
    }
    if (file != NULL)
        fclose(file);
    size->resident = (uint64_t)resident * 1024;
    size->anonymous = (uint64_t)anonymous * 1024;
    return resident != 0;
}

uint64_t process_waited_ms(pid_t pid)
{
    char path[64];
    unsigned long long waited = 0;
    snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%*u %llu", &waited) != 1)
        waited = 0;
    if (file != NULL)
        fclose(file);
    return waited / 1000000;
}

void log_print(const char *path, long begin, const char *what)
{
    char text[4096];
    FILE *log = fopen(path, "re");
    if (log == NULL)
        return;
    if (fseek(log, begin, begin < 0 ? SEEK_END : SEEK_SET) != 0)
        rewind(log);
    fprintf(stderr, "%s:\n", what);
    for (size_t size; (size = fread(text, 1, sizeof(text), log)) > 0;)
        fwrite(text, 1, size, stderr);
    fclose(log);
    fputc('\n', stderr);
}

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

#define TEXT_ROOM (256u * 1024)

char *metrics_fetch(unsigned port, uint32_t ms)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    const struct timeval patience = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    size_t used = 0;
    ssize_t got = -1;
    char *text = malloc(TEXT_ROOM);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (text != NULL && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0)
        while ((got = recv(fd, text + used, TEXT_ROOM - 1 - used, 0)) > 0)
            used += (size_t)got;
    if (fd >= 0)
        close(fd);
    if (got == 0)
        text[used] = 0;
    if (got == 0 && strncmp(text, "HTTP/1.1 200", 12) == 0)
        return text;
    free(text);
    return NULL;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL ? end + 1 : NULL;
}

int64_t metric_read(const char *text, const char *name)
{
    size_t size = strlen(name);
    for (const char *line = text; line != NULL; line = next_line(line))
        if (strncmp(line, name, size) == 0 && line[size] == ' ')
            return atoll(line + size);
    return -1;
}

int64_t metric_sum(const char *text, const char *family)
{
    size_t size = strlen(family);
    int64_t sum = 0, found = 0;
    for (const char *line = text; line != NULL; line = next_line(line)) {
        const char *labels_end = strncmp(line, family, size) == 0 && line[size] == '{' ? strchr(line, '}') : NULL;
        if (labels_end == NULL)
            continue;
        sum += atoll(labels_end + 1);
        found++;
    }
    return found != 0 ? sum : -1;
}

double metric_quantile(const char *text, const char *family, double quantile)
{
    char name[128], bound_text[32];
    size_t size = strlen(family);
    double bound = 0, below = 0, next_below;
    snprintf(name, sizeof(name), "%s_count", family);
    double rank = quantile * (double)metric_read(text, name);
    for (const char *line = text; rank > 0 && line != NULL; line = next_line(line)) {
        if (strncmp(line, family, size) != 0 ||
            sscanf(line + size, "_bucket{le=\"%31[^\"]\"} %lf", bound_text, &next_below) != 2)
            continue;
        double next = strtod(bound_text, NULL); /* "+Inf" too */
        if (next_below >= rank)
            return isinf(next) ? next : bound + (next - bound) * (rank - below) / (next_below - below);
        bound = next;
        below = next_below;
    }
    return -1;
}

const char *metrics_left_over(unsigned port, uint32_t ms, int64_t *value)
{
    static const char *const names[] = {"strait_slots_used",
                                        "strait_slots_quarantined",
                                        "strait_send_slots_used",
                                        "strait_quarantined_pages",
                                        "strait_parked",
                                        "strait_transfers_live{role=\"source\"}",
                                        "strait_transfers_live{role=\"sink\"}"};
    char *text = metrics_fetch(port, ms);
    const char *found = text == NULL ? "metrics" : NULL;
    *value = -1;
    for (int i = 0; found == NULL && i < COUNT(names); i++)
        if ((*value = metric_read(text, names[i])) != 0)
            found = names[i];
    free(text);
    return found;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static void print_usage(FILE *out, const struct program *program)
{
    fprintf(out, "usage: %s [options]\n", program->name);
    for (int i = 0; i < program->count; i++) {
        const struct program_option *option = &program->options[i];
        int width = 20 - (int)strlen(option->name);
        fprintf(out, "  --%s %-*s %s\n", option->name, width, option->value != NULL ? option->value : "", option->help);
    }
}

int program_refuse(const struct program *program, const char *problem)
{
    fprintf(stderr, "%s: %s\n", program->name, problem);
    print_usage(stderr, program);
    return 2;
}

static bool take_option(const struct program_option *option, const char *text)
{
    char *end;
    uint64_t count = 0;
    if (option->flag != NULL) {
        *option->flag = true;
        return true;
    }
    if (option->text != NULL) {
        *option->text = text;
        return true;
    }
    if (option->list != NULL) {
        while (count < option->most && option->list[count] != NULL)
            count++;
        option->list[count] = count < option->most ? text : NULL;
        return count < option->most;
    }
    errno = 0;
    *option->number = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == 0 && *option->number >= option->least &&
           *option->number <= option->most;
}

bool program_take_options(const struct program *program, int argc, char **argv)
{
    struct option known[32] = {{.name = "help", .val = -2}};
    char problem[64];
    require(program->count + 1 < COUNT(known));
    for (int i = 0; i < program->count; i++)
        known[i + 1] = (struct option){program->options[i].name,
                                       program->options[i].flag != NULL ? no_argument : required_argument, NULL, i};
    for (int i; (i = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (i == -2) {
            print_usage(stdout, program);
            exit(0);
        }
        if (i != '?' && take_option(&program->options[i], optarg))
            continue;
        snprintf(problem, sizeof(problem), "--%s: not such a value", i != '?' ? program->options[i].name : "?");
        (void)program_refuse(program, problem);
        return false;
    }
    if (optind < argc)
        (void)program_refuse(program, "what is the rest?");
    return optind == argc;
}
