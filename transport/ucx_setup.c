#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ucs/debug/debug.h>
#include <uct/api/uct.h>

#include "internal/bytes.h"
#include "internal/socket_address.h"
#include "transport/core.h"
#include "transport/ucx.h"
#include "transport/ucx_internal.h"

#define SUMMED 40u

static const uint8_t magic[4] = {'U', 'C', 'X', '1'};

/* Detects a blob that was cut or mixed up on its way; trust comes from the connection that brought it. */
static uint64_t sum_of(const uint8_t *src)
{
    uint64_t sum = 0xcbf29ce484222325u;
    for (unsigned i = 0; i < SUMMED; i++)
        sum = (sum ^ src[i]) * 0x100000001b3u;
    return sum;
}

void ucx_address_write(uint8_t dst[UCX_ADDRESS_BYTES], const struct ucx_address *address)
{
    memset(dst, 0, UCX_ADDRESS_BYTES);
    memcpy(dst, magic, sizeof(magic));
    const struct address at = address_pack(&address->at);
    store_le16(dst + 4, at.family);
    store_le16(dst + 6, at.port);
    memcpy(dst + 16, at.bytes, sizeof(at.bytes));
    store_le32(dst + 32, at.scope);
    store_le64(dst + 8, address->token);
    store_le64(dst + SUMMED, sum_of(dst));
}

static bool is_sound(const uint8_t *src)
{
    return memcmp(src, magic, sizeof(magic)) == 0 && load_le64(src + SUMMED) == sum_of(src) &&
           load_le64(src + 8) != 0 && load_le16(src + 6) != 0 && load_le32(src + 36) == 0;
}

enum strait_status ucx_address_read(const void *src, size_t size, struct ucx_address *address)
{
    const uint8_t *bytes = src;
    if (src == NULL || size != UCX_ADDRESS_BYTES)
        return STRAIT_ERR_INVALID;
    if (!is_sound(bytes))
        return STRAIT_ERR_CORRUPT;
    struct address at = {.family = load_le16(bytes + 4), .port = load_le16(bytes + 6), .scope = load_le32(bytes + 32)};
    memcpy(at.bytes, bytes + 16, sizeof(at.bytes));
    address->at_size = address_unpack(&address->at, &at);
    if (address->at_size == 0)
        return STRAIT_ERR_CORRUPT;
    address->token = load_le64(bytes + 8);
    return STRAIT_OK;
}

#define EAGER_TCP  262144u
#define EAGER_RDMA 32768u
#define EAGER_MAX  (16ul * 1024 * 1024)

/* Our names for UCX's ucx_options_settings. */
static const struct setting {
    const char *name, *ucx;
} ucx_options_settings[] = {
    {"devices", "NET_DEVICES"},
    {"keepalive", "KEEPALIVE_INTERVAL"},
};

struct reading {
    struct ucx_options *options;
    struct address listen;
    bool devices_chosen, tls_chosen, tcp_only;
};

/* ---- Where to listen ------------------------------------------------------------------------------------------- */

static bool is_loopback(const struct address *address)
{
    static const uint8_t six[16] = {[15] = 1};
    return address->family == 4 ? address->bytes[0] == 127 : memcmp(address->bytes, six, sizeof(six)) == 0;
}

static bool read_eager(const char *text, size_t *bytes)
{
    char *end;
    *bytes = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' && *bytes > 0 && *bytes <= EAGER_MAX;
}

/* ---- Transports of UCX ----------------------------------------------------------------------------------------- */

/* Those between processes of one host: their segments of memory can be mapped, and written to, by others than the peer,
 * and are refused where /dev/shm is full. `shm` of our own is for such peers. */
static const char between_processes[] = "sm,self"; /* sm: posix, sysv, cma, xpmem and knem */

/* They, and what UCX has as names for several of them. */
static const char *const never[] = {"posix", "sysv", "cma", "xpmem", "knem", "self", "mm", "sm", "shm", "all"};

static bool names_none_of(const char *list, const char *const *names, size_t count)
{
    for (const char *at = list; *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        const char *name = at + (*at == '\\'); /* only for what UCX needs beside others */
        const size_t size = strcspn(name, ",");
        for (size_t i = 0; i < count; i++)
            if (strlen(names[i]) == size && strncasecmp(name, names[i], size) == 0)
                return false;
    }
    return true;
}

/* Sets UCX_TLS to a list that names none of them. What a list excludes is excluded besides. */
static bool set_tls(ucp_config_t *config, const char *list)
{
    char text[OPTION_MAX + sizeof(between_processes) + 2];
    if (*list == '\0')
        return false;
    if (*list == '^')
        snprintf(text, sizeof(text), "%.*s,%s", (int)OPTION_MAX, list, between_processes);
    else
        snprintf(text, sizeof(text), "%.*s", (int)OPTION_MAX, list);
    return (*list == '^' || names_none_of(list, never, sizeof(never) / sizeof(never[0]))) &&
           ucp_config_modify(config, "TLS", text) == UCS_OK;
}

/* The environment's, where no option says: UCX reads its variables as usual. */
static bool set_default_tls(ucp_config_t *config)
{
    char excluded[sizeof(between_processes) + 1];
    const char *set = getenv("UCX_TLS");
    snprintf(excluded, sizeof(excluded), "^%s", between_processes);
    if (set == NULL || *set == '\0' || strcmp(set, "all") == 0)
        return ucp_config_modify(config, "TLS", excluded) == UCS_OK;
    return set_tls(config, set);
}

bool ucx_is_sound_over_tcp(char *version, size_t size)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    snprintf(version, size, "%u.%u.%u", major, minor, release);
    return major > 1 || minor >= 17;
}

void ucx_components(char *names, size_t size)
{
    uct_component_h *list;
    unsigned count;
    size_t used = 0;
    names[0] = '\0';
    if (uct_query_components(&list, &count) != UCS_OK)
        return;
    for (unsigned i = 0; i < count; i++) {
        uct_component_attr_t component = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
        if (uct_component_query(list[i], &component) != UCS_OK || used + sizeof(component.name) + 2 > size)
            continue;
        used += (size_t)snprintf(names + used, size - used, "%s%s", used > 0 ? "," : "", component.name);
    }
    uct_release_component_list(list);
}

bool ucx_can_load_rdma(void)
{
    void *verbs = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (verbs != NULL)
        dlclose(verbs);
    return verbs != NULL;
}

/* ---- Names ----------------------------------------------------------------------------------------------------- */

static bool set_ucx(struct reading *reading, const struct option *option)
{
    for (size_t i = 0; i < sizeof(ucx_options_settings) / sizeof(ucx_options_settings[0]); i++)
        if (strcmp(ucx_options_settings[i].name, option->name) == 0) {
            reading->devices_chosen |= strcmp(option->name, "devices") == 0;
            return *option->value != '\0' &&
                   ucp_config_modify(reading->options->config, ucx_options_settings[i].ucx, option->value) == UCS_OK;
        }
    return false;
}

static bool set_one(void *dst, const struct option *option)
{
    struct reading *reading = dst;
    bool good;
    if (option_listen(option, &reading->listen, &good))
        return good;
    if (strcmp(option->name, "eager") == 0)
        return read_eager(option->value, &reading->options->eager_bytes);
    if (strcmp(option->name, "tls") != 0)
        return set_ucx(reading, option);
    reading->tls_chosen = true;
    reading->tcp_only = strcmp(option->value, "tcp") == 0;
    return set_tls(reading->options->config, option->value);
}

static bool has_rdma(void)
{
    DIR *devices = opendir("/sys/class/infiniband");
    if (devices == NULL)
        return false;
    const struct dirent *entry;
    bool found = false;
    while (!found && (entry = readdir(devices)) != NULL)
        found = entry->d_name[0] != '.';
    closedir(devices);
    return found;
}

/* Restricts tcp to the loopback device when only loopback is listened on; otherwise its data port would be open on
 * every device. */
static bool set_defaults(struct reading *reading)
{
    ucp_config_t *config = reading->options->config;
    bool lo = !reading->devices_chosen && is_loopback(&reading->listen);
    reading->options->listen_size = address_unpack(&reading->options->listen, &reading->listen);
    if (reading->options->eager_bytes == 0)
        reading->options->eager_bytes = lo || reading->tcp_only || !has_rdma() ? EAGER_TCP : EAGER_RDMA;
    return (reading->tls_chosen || set_default_tls(config)) &&
           (!lo || ucp_config_modify(config, "NET_DEVICES", "lo") == UCS_OK);
}

enum strait_status ucx_options_read(const char *text, struct ucx_options *options)
{
    struct reading reading = {.options = options, .listen = LISTEN_DEFAULT};
    options->eager_bytes = 0;
    enum strait_status status = ucx_environment();
    if (status != STRAIT_OK)
        return status;
    if (ucp_config_read(NULL, NULL, &options->config) != UCS_OK)
        return STRAIT_ERR_IO;
    status = options_read(text, set_one, &reading);
    if (status == STRAIT_OK && !set_defaults(&reading))
        status = STRAIT_ERR_INVALID;
    if (status != STRAIT_OK)
        ucp_config_release(options->config);
    return status;
}

/* UCX 1.13.1 takes some settings only from the environment. The process may have threads that call getenv(), such as
 * those of a serving framework that embeds us, and setenv() may free the array that they are walking through. So a
 * longer copy replaces the array, and the old one is left as it was. */

#define SETTINGS 3

extern char **environ;

static char settings[SETTINGS][32] = {"UCX_TCP_CONN_NB=y", "UCX_TCP_CM_REUSEADDR=y", "UCX_TCP_CM_PRIV_DATA_LEN=64k"};

static bool is_set(char **array, const char *setting)
{
    size_t name = (size_t)(strchr(setting, '=') - setting) + 1;
    for (; array != NULL && *array != NULL; array++)
        if (strncmp(*array, setting, name) == 0)
            return true;
    return false;
}

static enum strait_status add_missing(void)
{
    char **before = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
    size_t count = 0, missing = 0;
    while (before != NULL && before[count] != NULL)
        count++;
    for (size_t i = 0; i < SETTINGS; i++)
        missing += !is_set(before, settings[i]);
    if (missing == 0)
        return STRAIT_OK;

    char **after = calloc(count + missing + 1, sizeof(*after));
    if (after == NULL)
        return STRAIT_ERR_NO_MEMORY;
    if (count > 0)
        memcpy(after, before, count * sizeof(*after));
    for (size_t i = 0; i < SETTINGS; i++)
        if (!is_set(before, settings[i]))
            after[count++] = settings[i];
    __atomic_store_n(&environ, after, __ATOMIC_RELEASE);
    return STRAIT_OK;
}

enum strait_status ucx_environment(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    enum strait_status status = add_missing();
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- Memory of GPUs ---------------------------------------------------------------------------------------------- */

/* Memory of GPUs, where UCX supports it. UCX wants the thread that calls it to have a CUDA context; older versions know
 * the GPU only from that. CUDA's driver is in the process by then, because it has allocated the arena; so its
 * functions are looked up, not linked. */

#define POINTER_CONTEXT 1 /* CU_POINTER_ATTRIBUTE_CONTEXT */

static struct cuda_driver {
    int (*attribute)(void *dst, int attribute, uintptr_t pointer); /* cuPointerGetAttribute */
    int (*enter)(void *context);                                   /* cuCtxSetCurrent */
} cuda_driver;
static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;
static bool stands_in;
static atomic_bool cuda_is_missing;

static void find_cuda(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    *(void **)&cuda_driver.attribute = dlsym(library, "cuPointerGetAttribute");
    *(void **)&cuda_driver.enter = dlsym(library, "cuCtxSetCurrent");
}

void *ucx_cuda_context(const struct transport_arena *arena)
{
    void *context = NULL;
    if (arena->memory != TRANSPORT_CUDA || stands_in)
        return NULL;
    pthread_once(&cuda_once, find_cuda);
    if (cuda_driver.attribute == NULL || cuda_driver.enter == NULL ||
        cuda_driver.attribute(&context, POINTER_CONTEXT, (uintptr_t)arena->base) != 0)
        return NULL;
    return context;
}

void ucx_cuda_enter(void *context)
{
    if (context != NULL)
        (void)cuda_driver.enter(context);
}

ucs_memory_type_t ucx_memory_type(const struct transport_arena *arena)
{
    return arena->memory == TRANSPORT_CUDA && !stands_in ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

bool ucx_cuda_is_there(ucp_context_h context)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    bool is_there = ucp_context_query(context, &attr) == UCS_OK && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA));
    atomic_store(&cuda_is_missing, !is_there);
    return is_there;
}

void ucx_missing(char *dst, size_t size)
{
    if (atomic_load(&cuda_is_missing))
        snprintf(dst, size,
                 "UCX %s does not know CUDA's memory: built without it, or its modules for CUDA are not found, or tls= "
                 "leaves cuda out",
                 ucp_get_version_string());
}

void ucx_stand_in(void)
{
    stands_in = true;
}

/* ---- Contexts and workers ---------------------------------------------------------------------------------------- */

#define FEATURES (UCP_FEATURE_AM | UCP_FEATURE_WAKEUP)

enum strait_status ucx_make_worker(struct ucx *ucx, const ucp_config_t *config)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = FEATURES};
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t status = ucp_init(&params, config, &ucx->context);
    if (status != UCS_OK)
        return ucx_status(status);
    if (ucx->memory == UCS_MEMORY_TYPE_CUDA && !ucx_cuda_is_there(ucx->context)) {
        ucp_cleanup(ucx->context);
        return STRAIT_ERR_UNSUPPORTED;
    }
    status = ucp_worker_create(ucx->context, &worker_params, &ucx->worker);
    if (status != UCS_OK) {
        ucp_cleanup(ucx->context);
        return ucx_status(status);
    }
    return STRAIT_OK;
}

void ucx_destroy_worker(struct ucx *ucx)
{
    ucp_worker_destroy(ucx->worker);
    ucp_cleanup(ucx->context);
}

/* Libraries that this loads stay loaded. */
void ucx_prepare(const struct transport_arena *arena)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = FEATURES};
    ucp_context_h context;
    ucp_config_t *config;
    if (ucp_config_read(NULL, NULL, &config) != UCS_OK)
        return;
    ucx_cuda_enter(ucx_cuda_context(arena));
    if (ucp_init(&params, config, &context) == UCS_OK)
        ucp_cleanup(context);
    ucp_config_release(config);
}

enum strait_status ucx_check(const char *text)
{
    struct ucx_options options;
    enum strait_status status = ucx_options_read(text, &options);
    if (status == STRAIT_OK)
        ucp_config_release(options.config);
    return status;
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

/* UCX takes signals when it is loaded, before any code of ours runs: those of errors, to print a backtrace, and SIGHUP,
 * to stop for a debugger. */

static bool is_of_ucx(const struct sigaction *action)
{
    union { /* ISO C has no conversion from function pointers to object pointers */
        void (*function)(int number, siginfo_t *info, void *context);
        void *object;
    } handler = {.function = action->sa_sigaction}; /* a union with sa_handler */
    Dl_info info;
    return handler.object != NULL && dladdr(handler.object, &info) != 0 && info.dli_fname != NULL &&
           strstr(info.dli_fname, "libucs.so") != NULL;
}

void ucx_leave_signals(void)
{
    struct sigaction action;
    if (getenv("UCX_HANDLE_ERRORS") != NULL || getenv("UCX_DEBUG_SIGNO") != NULL)
        return;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && is_of_ucx(&action))
            ucs_debug_disable_signal(number);
}
