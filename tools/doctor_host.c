/* What the host gives a daemon: limits, memory, kernel, processor, RDMA, GPUs. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strait/codec.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tools/ask.h"
#include "tools/doctor.h"

#define OTHER_DESCRIPTORS 64 /* that a daemon opens beside those of its clients */
#define MIB               (1024.0 * 1024)

static const cJSON *part_of(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* The first line of a file; "": there is none. */
static void read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    line[0] = '\0';
    if (file == NULL)
        return;
    if (fgets(line, (int)size, file) == NULL)
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    fclose(file);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

/* Soft limit of the daemon that runs, by its name in /proc/PID/limits; infinite: none. False: not told. */
static bool limit_of_process(int pid, const char *name, double *limit)
{
    char path[64], line[256];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/limits", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0) {
            const char *value = line + strlen(name) + strspn(line + strlen(name), " ");
            *limit = strncmp(value, "unlimited", 9) == 0 ? INFINITY : strtod(value, NULL);
            found = true;
        }
    if (file != NULL)
        fclose(file);
    return found;
}

/* Limit of the daemon that runs, or else of one that is started from here. */
static bool find_limit(const struct doctor *doctor, const char *name, const char *field, double *limit, bool *runs)
{
    *runs = doctor->pid != 0 && limit_of_process(doctor->pid, name, limit);
    const cJSON *limits = part_of(doctor->examination, "limits"), *value = part_of(limits, field);
    if (*runs || value == NULL)
        return *runs;
    *limit = cJSON_IsNumber(value) ? value->valuedouble : INFINITY;
    return true;
}

static const char *owner_of(bool runs)
{
    return runs ? "the daemon" : "a daemon started from here";
}

static void check_descriptors(struct doctor *doctor)
{
    double limit;
    bool runs;
    if (!find_limit(doctor, "Max open files", "nofile", &limit, &runs))
        return;
    const double clients = number_of(part_of(doctor->examination, "options"), "clients");
    const double wanted = clients + OTHER_DESCRIPTORS;
    if (limit < wanted)
        doctor_find(doctor, LEVEL_ERROR, "descriptors",
                    "raise LimitNOFILE in the unit (or ulimit -n), or lower the option clients",
                    "%s may open %.0f descriptors, and needs %.0f for clients = %.0f", owner_of(runs), limit, wanted,
                    clients);
    else
        doctor_find(doctor, LEVEL_OK, "descriptors", NULL, "%s may open %.0f descriptors", owner_of(runs), limit);
}

static void check_locked_memory(struct doctor *doctor)
{
    double limit;
    bool runs;
    if (!find_limit(doctor, "Max locked memory", "memlock", &limit, &runs))
        return;
    const double arenas = 1.5 * number_of(part_of(doctor->examination, "options"), "arena_bytes");
    if (isinf(limit))
        doctor_find(doctor, LEVEL_OK, "locked memory", NULL, "%s may lock all memory", owner_of(runs));
    else if (!is_true(doctor->examination, "rdma_active"))
        doctor_find(doctor, LEVEL_NOTE, "locked memory", NULL,
                    "%s may lock %.1f MiB: enough without RDMA, which locks its arenas", owner_of(runs), limit / MIB);
    else
        doctor_find(doctor, limit < arenas ? LEVEL_ERROR : LEVEL_WARNING, "locked memory",
                    "set LimitMEMLOCK=infinity in the unit (or ulimit -l unlimited)",
                    "%s may lock %.1f MiB, and RDMA locks the arenas, %.1f MiB", owner_of(runs), limit / MIB,
                    arenas / MIB);
}

void doctor_limits(struct doctor *doctor)
{
    check_descriptors(doctor);
    check_locked_memory(doctor);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* A sealed memfd: what arenas and clients' pools are made of. */
static void check_memfd(struct doctor *doctor)
{
    const int fd = memfd_create("strait-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool good = fd >= 0 && ftruncate(fd, 4096) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
    const int error = errno;
    if (good)
        doctor_find(doctor, LEVEL_OK, "memfd", NULL, "memory that processes share can be made and sealed");
    else
        doctor_find(doctor, LEVEL_ERROR, "memfd",
                    "allow memfd_create and fcntl(F_ADD_SEALS) in the seccomp profile of the container",
                    "memory that processes share cannot be made: %s", strerror(error));
    if (fd >= 0)
        close(fd);
}

/* strait's own memory is a memfd; other programs of the same node use /dev/shm. */
static void check_shm(struct doctor *doctor)
{
    static const char change[] = "docker run --shm-size=8g, an emptyDir with medium: Memory in Kubernetes, or "
                                 "mount -o remount,size=50% /dev/shm";
    struct statfs shm;
    if (statfs("/dev/shm", &shm) != 0) {
        doctor_find(doctor, LEVEL_WARNING, "/dev/shm", "mount a tmpfs there",
                    "%s: straitd does not use it, NCCL and PyTorch do", strerror(errno));
        return;
    }
    const double size = (double)shm.f_blocks * (double)shm.f_bsize / MIB,
                 available = (double)shm.f_bavail * (double)shm.f_bsize / MIB;
    if (shm.f_type != TMPFS_MAGIC)
        doctor_find(doctor, LEVEL_WARNING, "/dev/shm", "mount a tmpfs there",
                    "is no tmpfs (type %lx): NCCL and PyTorch would share memory on a disk", (unsigned long)shm.f_type);
    else if (size > 0 && size < 256)
        doctor_find(doctor, LEVEL_WARNING, "/dev/shm", change,
                    "tmpfs of %.0f MiB: straitd does not use it, NCCL and PyTorch may need more", size);
    else
        doctor_find(doctor, LEVEL_OK, "/dev/shm", NULL, "tmpfs of %.0f MiB, %.0f MiB available", size, available);
}

/* The word in brackets: "always [madvise] never". */
static void chosen_word(const char *path, char *word, size_t size)
{
    char line[128];
    read_line(path, line, sizeof(line));
    const char *open = strchr(line, '['), *close = open != NULL ? strchr(open, ']') : NULL;
    snprintf(word, size, "%.*s", close != NULL ? (int)(close - open - 1) : 0, close != NULL ? open + 1 : "");
}

static void check_huge_pages(struct doctor *doctor)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char word[32];
    chosen_word(path, word, sizeof(word));
    if (word[0] == '\0')
        doctor_find(doctor, LEVEL_NOTE, "huge pages", NULL, "this kernel has none for shared memory");
    else if (strcmp(word, "never") == 0 || strcmp(word, "deny") == 0)
        doctor_find(doctor, LEVEL_NOTE, "huge pages",
                    "echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled, if the arenas are to use them",
                    "not for shared memory (%s): arenas are made of small pages", word);
    else
        doctor_find(doctor, LEVEL_OK, "huge pages", NULL, "for shared memory: %s", word);
}

void doctor_memory(struct doctor *doctor)
{
    check_memfd(doctor);
    check_shm(doctor);
    check_huge_pages(doctor);
}

/* ---- Kernel and processor ---------------------------------------------------------------------------------------- */

static void check_pidfd(struct doctor *doctor)
{
    const int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (fd >= 0) {
        doctor_find(doctor, LEVEL_OK, "pidfd", NULL, "the death of a client is seen at once");
        close(fd);
    } else {
        doctor_find(doctor, LEVEL_WARNING, "pidfd",
                    "Linux 5.3 or later; in a container, allow pidfd_open in the seccomp profile",
                    "pidfd_open: %s: only the end of its socket shows that a client is dead", strerror(errno));
    }
}

/* Features that straitd does not need, but that those who ask for help are asked for. */
static void tell_features(struct doctor *doctor)
{
    struct utsname name;
    char ulps[128], io_uring[16], spaces[32], clone[16];
    (void)uname(&name);
    read_line("/proc/sys/net/ipv4/tcp_available_ulp", ulps, sizeof(ulps));
    read_line("/proc/sys/kernel/io_uring_disabled", io_uring, sizeof(io_uring));
    read_line("/proc/sys/user/max_user_namespaces", spaces, sizeof(spaces));
    read_line("/proc/sys/kernel/unprivileged_userns_clone", clone, sizeof(clone));
    const bool has_spaces = strcmp(spaces, "0") != 0 && strcmp(clone, "0") != 0;
    doctor_find(doctor, LEVEL_NOTE, "kernel", NULL,
                "Linux %s; kTLS %s, io_uring %s, user namespaces %s (straitd uses none of them)", name.release,
                strstr(ulps, "tls") != NULL ? "loaded" : "not loaded",
                io_uring[0] == '\0'          ? "as this kernel has it"
                : strcmp(io_uring, "0") == 0 ? "on"
                                             : "restricted",
                has_spaces ? "for users too" : "not for users");
}

void doctor_kernel(struct doctor *doctor)
{
    check_pidfd(doctor);
    tell_features(doctor);
}

void doctor_codec(struct doctor *doctor)
{
    const char *codec = text_of(doctor->status != NULL ? doctor->status : doctor->examination, "codec");
    if (strcmp(codec, "scalar") == 0)
        doctor_find(doctor, LEVEL_WARNING, "codec",
                    "a processor with AVX2 or AVX-512, and no STRAIT_CODEC in the environment; or coding = raw",
                    "the scalar variant is chosen: coding takes more time than most links");
    else if (codec[0] != '\0')
        doctor_find(doctor, LEVEL_OK, "codec", NULL, "%s", codec);
}

/* ---- RDMA -------------------------------------------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word)
{
    const size_t size = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += size)
        if ((at == list || at[-1] == ',') && (at[size] == ',' || at[size] == '\0'))
            return true;
    return false;
}

/* What keeps this UCX from using the devices. */
static void check_ucx(struct doctor *doctor)
{
    const cJSON *ucx = part_of(doctor->examination, "ucx");
    const char *version = text_of(ucx, "version"), *components = text_of(ucx, "components");
    const bool named = has_word(text_of(part_of(doctor->examination, "options"), "transports"), "ucx");
    if (cJSON_IsNull(ucx))
        doctor_find(doctor, LEVEL_WARNING, "ucx", "install a build of straitd with UCX",
                    "this straitd has none: peers are reached by TCP in spite of RDMA");
    else if (!is_true(ucx, "libibverbs"))
        doctor_find(doctor, LEVEL_WARNING, "ucx", "install libibverbs (Debian: libibverbs1 ibverbs-providers)",
                    "UCX %s cannot load its modules for RDMA: libibverbs.so.1 is not installed", version);
    else if (!has_word(components, "ib"))
        doctor_find(doctor, LEVEL_WARNING, "ucx", "install UCX's InfiniBand modules (libuct_ib), of the same version",
                    "UCX %s has loaded %s: none for RDMA", version, components);
    else if (!is_true(ucx, "sound_over_tcp") && !named)
        doctor_find(doctor, LEVEL_WARNING, "ucx", "install UCX 1.17 or later, or set transports = shm,ucx,tcp",
                    "UCX %s is used only where transports names it", version);
    else
        doctor_find(doctor, LEVEL_OK, "ucx", NULL, "UCX %s with %s", version, components);
}

void doctor_rdma(struct doctor *doctor)
{
    const char *names = text_of(doctor->examination, "rdma_devices");
    if (doctor->examination == NULL)
        return;
    if (names[0] == '\0') {
        doctor_find(doctor, LEVEL_OK, "rdma", NULL, "no devices: peers are reached by TCP");
        return;
    }
    if (!is_true(doctor->examination, "rdma_active")) {
        doctor_find(doctor, LEVEL_WARNING, "rdma", "connect a port, or start the subnet manager; ibstat tells more",
                    "devices %s, and no port is active: peers are reached by TCP", names);
        return;
    }
    doctor_find(doctor, LEVEL_OK, "rdma", NULL, "devices %s, with an active port", names);
    check_ucx(doctor);
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

/* Functions of the driver, which is opened where it is there. */
struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*device)(int *device, int ordinal);
    int (*name)(char *name, int size, int device);
    int (*can_access)(int *can, int device, int peer);
};

static bool load_driver(void *library, struct driver *driver)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {{"cuInit", &driver->init},
                     {"cuDriverGetVersion", &driver->version},
                     {"cuDeviceGetCount", &driver->count},
                     {"cuDeviceGet", &driver->device},
                     {"cuDeviceGetName", &driver->name},
                     {"cuDeviceCanAccessPeer", &driver->can_access}};
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(library, functions[i].name);
        if (function == NULL)
            return false;
        memcpy(functions[i].to, &function, sizeof(function));
    }
    return true;
}

/* Pairs of GPUs of which one cannot reach the other's memory. */
static unsigned unreachable_pairs(const struct driver *driver, int count)
{
    unsigned pairs = 0;
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            int one, other, can = 0;
            if (a != b && driver->device(&one, a) == 0 && driver->device(&other, b) == 0 &&
                (driver->can_access(&can, one, other) != 0 || can == 0))
                pairs++;
        }
    return pairs;
}

/* Which kernels of the codec the first GPU runs. Asks for no more than its attributes. */
static void check_kernels(struct doctor *doctor)
{
    char kernels[96];
    const struct strait_codec *cuda = strait_codec_get("cuda");
    if (cuda == NULL || strait_codec_describe(cuda, kernels, sizeof(kernels)) == 0)
        doctor_find(doctor, LEVEL_WARNING, "gpu codec",
                    "libstrait-cuda.so.0 with kernels for this GPU, of compute capability 8.0 or later",
                    "the codec does not run on the first GPU: pools in its memory are refused");
    else
        doctor_find(doctor, LEVEL_OK, "gpu codec", NULL, "%s", kernels);
}

static void check_devices(struct doctor *doctor, const struct driver *driver)
{
    int count = 0, version = 0, first;
    char name[96] = "";
    const int error = driver->init(0);
    if (error != 0 || driver->count(&count) != 0) {
        doctor_find(doctor, LEVEL_WARNING, "gpus", "nvidia-smi and dmesg tell more; in a container: --gpus all",
                    "the driver's library is there, and does not start (error %d)", error);
        return;
    }
    (void)driver->version(&version);
    if (count == 0) {
        doctor_find(doctor, LEVEL_NOTE, "gpus", NULL, "the driver is there (CUDA %d.%d), and no GPU is visible",
                    version / 1000, version % 1000 / 10);
        return;
    }
    if (driver->device(&first, 0) == 0)
        (void)driver->name(name, sizeof(name), first);
    doctor_find(doctor, LEVEL_OK, "gpus", NULL, "%d, the first %s; driver for CUDA %d.%d", count, name, version / 1000,
                version % 1000 / 10);
    check_kernels(doctor);
    const unsigned pairs = unreachable_pairs(driver, count);
    if (pairs > 0)
        doctor_find(doctor, LEVEL_NOTE, "gpu peers",
                    "gpu-wires without peer, where no pair can; nvidia-smi topo -p2p r",
                    "%u of %d ordered pairs cannot reach each other's memory: chunks between them go through the host",
                    pairs, count * (count - 1));
    else if (count > 1)
        doctor_find(doctor, LEVEL_OK, "gpu peers", NULL, "every GPU reaches the memory of every other");
}

void doctor_gpus(struct doctor *doctor)
{
    struct driver driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        doctor_find(doctor, LEVEL_OK, "gpus", NULL, "no driver of NVIDIA: pools in GPU memory are refused");
    else if (!load_driver(library, &driver))
        doctor_find(doctor, LEVEL_WARNING, "gpus", "install the current driver",
                    "libcuda.so.1 lacks functions: it is too old");
    else
        check_devices(doctor, &driver);
    if (library != NULL)
        dlclose(library);
}
