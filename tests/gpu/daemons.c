#include "tests/gpu/world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/chaos/shared.h"

extern char **environ;

const char *straitd_path = "straitd";
char world_folder[64];

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t patience(void)
{
    return getenv("GPU_TEST_UNDER") != NULL ? 10 : 1;
}

/* ---- The folder -------------------------------------------------------------------------------------------------- */

static void write_codebook(void)
{
    char path[96];
    uint8_t ranking[1][256];
    struct strait_codebook *codebook;
    for (unsigned i = 0; i < 256; i++)
        ranking[0][i] = (uint8_t)(0x7f - i);
    require(strait_codebook_create((const uint8_t(*)[256])ranking, NULL, 1, &codebook) == STRAIT_OK);
    size_t size = strait_codebook_serialized_size(codebook);
    void *bytes = malloc(size);
    require(strait_codebook_serialize(codebook, bytes, size) == STRAIT_OK);
    snprintf(path, sizeof(path), "%s/codebook", world_folder);
    FILE *file = fopen(path, "w");
    require(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
    free(bytes);
    strait_codebook_destroy(codebook);
}

void world_begin(void)
{
    strcpy(world_folder, "/tmp/strait-gpu-XXXXXX");
    require(mkdtemp(world_folder) != NULL);
    write_codebook();
}

void world_end(void)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -rf '%s'", world_folder);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", world_folder);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

enum { ARGUMENTS = 32, VARIABLES = 512 };

static uint32_t add_words(char **arguments, char *words, uint32_t most)
{
    uint32_t count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word != NULL && count < most; word = strtok_r(NULL, " ", &rest))
        arguments[count++] = word;
    return count;
}

/* Of a daemon that can be told to stumble: the plugin in front of its own is found first, and finds it there. */
static char **environment_of(const struct daemon_process *daemon)
{
    static char *variables[VARIABLES], folders[1024], file[1024], faults[192];
    const char *plugin = getenv("GPU_TEST_PLUGIN"), *others = getenv("LD_LIBRARY_PATH");
    uint32_t count = 0;
    if (daemon->faults == NULL)
        return environ;
    snprintf(folders, sizeof(folders), "LD_LIBRARY_PATH=%s:%s", plugin, others != NULL ? others : "");
    snprintf(file, sizeof(file), CHAOS_PLUGIN "=%s", getenv("GPU_TEST_BEHIND"));
    snprintf(faults, sizeof(faults), CHAOS_VARIABLE "=%s.faults:0", daemon->socket);
    for (char **variable = environ; *variable != NULL && count < VARIABLES - 4; variable++)
        if (strncmp(*variable, "LD_LIBRARY_PATH=", 16) != 0)
            variables[count++] = *variable;
    variables[count++] = folders;
    variables[count++] = file;
    variables[count++] = faults;
    variables[count] = NULL;
    return variables;
}

static void spawn_daemon(struct daemon_process *daemon)
{
    char options[5][160], under[512], more[512], *arguments[ARGUMENTS] = {NULL};
    const char *prefix = getenv("GPU_TEST_UNDER"), *all = getenv("GPU_TEST_OPTIONS");
    snprintf(under, sizeof(under), "%s", prefix != NULL ? prefix : "");
    snprintf(more, sizeof(more), "%s", all != NULL ? all : "");
    snprintf(options[0], sizeof(options[0]), "--socket=%s", daemon->socket);
    snprintf(options[1], sizeof(options[1]), "--transports=%s", daemon->transport);
    snprintf(options[2], sizeof(options[2]), "--coding=%s", daemon->coding);
    snprintf(options[3], sizeof(options[3]), "--codebook=%s/codebook", world_folder);
    snprintf(options[4], sizeof(options[4]), "--log-level=%s", getenv("GPU_TEST_LOG") != NULL ? "debug" : "error");
    const char *const fixed[] = {straitd_path,
                                 options[0],
                                 options[1],
                                 options[2],
                                 options[3],
                                 options[4],
                                 "--listen=127.0.0.1:0",
                                 "--metrics=",
                                 "--ucx-options=tls=tcp"};
    uint32_t count = add_words(arguments, under, 8);
    for (int i = 0; i < COUNT(fixed); i++)
        arguments[count++] = (char *)(uintptr_t)fixed[i];
    count += add_words(arguments + count, more, 8);
    arguments[count] = (char *)(uintptr_t)daemon->more;
    int error = posix_spawnp(&daemon->pid, arguments[0], NULL, NULL, arguments, environment_of(daemon));
    if (error != 0)
        fprintf(stderr, "%s: %s\n", arguments[0], strerror(error));
    require(error == 0);
}

static void prepare(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                    const char *more)
{
    const char *other = getenv("GPU_TEST_TRANSPORTS");
    *daemon = (struct daemon_process){.transport = transport, .coding = coding, .more = more};
    if (other != NULL && strcmp(transport, "shm") == 0)
        daemon->transport = other;
    snprintf(daemon->socket, sizeof(daemon->socket), "%s/%s", world_folder, name);
}

void daemon_start(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                  const char *more)
{
    prepare(daemon, name, transport, coding, more);
    spawn_daemon(daemon);
}

bool daemon_start_faulty(struct daemon_process *daemon, const char *name, const char *transport, const char *coding,
                         const char *more)
{
    char path[128];
    if (getenv("GPU_TEST_PLUGIN") == NULL || getenv("GPU_TEST_BEHIND") == NULL) {
        printf("  left out: GPU_TEST_PLUGIN and GPU_TEST_BEHIND do not name the plugins\n");
        return false;
    }
    prepare(daemon, name, transport, coding, more);
    snprintf(path, sizeof(path), "%s.faults", daemon->socket);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && ftruncate(fd, sizeof(struct chaos_shared)) == 0);
    struct chaos_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    require(shared != MAP_FAILED);
    close(fd);
    daemon->faults = &shared->sides[0];
    spawn_daemon(daemon);
    return true;
}

void daemon_restart(struct daemon_process *daemon)
{
    spawn_daemon(daemon);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

void daemon_kill(struct daemon_process *daemon)
{
    kill(daemon->pid, SIGKILL);
    require(waitpid(daemon->pid, NULL, 0) == daemon->pid);
}

/* Who listens at its socket: not the process that was started, when that runs it under a tool. */
static pid_t pid_of(const struct daemon_process *daemon)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", daemon->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0);
    for (int i = 0; connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0; i++) {
        require(i < 2000); /* it may have been started just now */
        usleep(10000);
    }
    require(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0);
    close(fd);
    return peer.pid;
}

int daemon_ended(struct daemon_process *daemon, uint32_t ms)
{
    int status = 0;
    pid_t ended = 0;
    for (uint64_t until = now_ns() + (uint64_t)ms * 1000000u * patience(); ended == 0 && now_ns() < until; usleep(1000))
        ended = waitpid(daemon->pid, &status, WNOHANG);
    require(ended == daemon->pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

void daemon_stop(struct daemon_process *daemon)
{
    int status;
    kill(pid_of(daemon), SIGTERM);
    require(waitpid(daemon->pid, &status, 0) == daemon->pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fprintf(stderr, "%s ended with status %x\n", daemon->socket, status);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
