/* gpu_checkpoint FOLDER [MIB]: tensors in memory of GPUs saved and loaded, compared with what the host saves and loads,
 * and how long MIB (1024) of a training state take. Exit status: 1 something is wrong, 77 no GPU. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait/checkpoint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition, ...)                      \
    do {                                           \
        if (!(condition)) {                        \
            printf("%s:%d: ", __FILE__, __LINE__); \
            printf(__VA_ARGS__);                   \
            printf("\n");                          \
            exit(1);                               \
        }                                          \
    } while (0)
#define CUDA(call) CHECK((call) == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cudaGetLastError()))

enum { TENSORS_MAX = 512 };

struct tensor {
    char name[32], from[32];
    const char *dtype;
    uint64_t shape[2], bytes;
    uint8_t *host, *device; /* device: bytes + 16, where the tensor begins at `skew` */
    uint32_t skew;
    int gpu;
};

static struct tensor tensors[TENSORS_MAX];
static uint32_t count;
static char text[1024];

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static uint64_t state = 88172645463325252u;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* About a normal distribution: the sum of four uniform ones. */
static float bell(float scale)
{
    const uint64_t bits = next_random();
    int32_t sum = 0;
    for (unsigned i = 0; i < 4; i++)
        sum += (int32_t)(bits >> (16 * i) & 0xffff) - 32768;
    return scale * ((float)sum + (float)(bits >> 40) / 16777216.0f) / 32768.0f;
}

static uint16_t rounded(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Adds a tensor of rows x columns values; F32, BF16 or U8. source: of a BF16 tensor, F32 that it is the rounding of. */
static struct tensor *add(const char *dtype, uint64_t rows, uint64_t columns, int gpu, uint32_t skew,
                          const struct tensor *source)
{
    struct tensor *t = &tensors[count];
    const uint32_t value = strait_checkpoint_dtype_bytes(dtype);
    *t = (struct tensor){
        .dtype = dtype, .shape = {rows, columns}, .bytes = rows * columns * value, .gpu = gpu, .skew = skew};
    snprintf(t->name, sizeof(t->name), "tensor.%u", count++);
    t->host = malloc(t->bytes + 1);
    CHECK(t->host != NULL, "no memory");
    for (uint64_t i = 0; i < rows * columns; i++) {
        if (value == 4) {
            const float made = bell(0.02f);
            memcpy(t->host + 4 * i, &made, 4);
        } else if (value == 2) {
            float made = bell(0.02f);
            if (source != NULL)
                memcpy(&made, source->host + 4 * i, 4);
            const uint16_t bits = rounded(made);
            memcpy(t->host + 2 * i, &bits, 2);
        } else {
            t->host[i] = (uint8_t)next_random();
        }
    }
    if (source != NULL)
        strcpy(t->from, source->name);
    CUDA(cudaSetDevice(gpu));
    CUDA(cudaMalloc((void **)&t->device, t->bytes + 16));
    CUDA(cudaMemcpy(t->device + skew, t->host, t->bytes, cudaMemcpyHostToDevice));
    return t;
}

static void forget(void)
{
    for (uint32_t i = 0; i < count; i++) {
        free(tensors[i].host);
        CUDA(cudaFree(tensors[i].device));
    }
    count = 0;
}

/* ---- Saving and loading ------------------------------------------------------------------------------------------ */

static struct strait_checkpoint_summary save_all(const char *path, enum strait_checkpoint_memory memory, uint32_t flags,
                                                 uint32_t mixed)
{
    struct strait_checkpoint_save *save;
    struct strait_checkpoint_summary summary;
    struct strait_checkpoint_save_options options = {.size = sizeof(options), .rank_count = 1, .flags = flags};
    struct strait_checkpoint_commit_options commit = {
        .size = sizeof(commit), .rank_count = 1, .flags = STRAIT_CHECKPOINT_REPLACE};
    CHECK(getrandom(options.save_id, sizeof(options.save_id), 0) == sizeof(options.save_id), "getrandom");
    memcpy(commit.save_id, options.save_id, sizeof(commit.save_id));
    CHECK(strait_checkpoint_save_begin(path, &options, &save, text, sizeof(text)) == STRAIT_OK, "begin: %s", text);
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor *t = &tensors[i];
        const bool on_gpu = memory == STRAIT_CHECKPOINT_CUDA && (mixed == 0 || i % mixed != 0);
        const struct strait_checkpoint_tensor tensor = {.size = sizeof(tensor),
                                                        .name = t->name,
                                                        .dtype = t->dtype,
                                                        .shape = t->shape,
                                                        .dims = 2,
                                                        .data = on_gpu ? t->device + t->skew : t->host,
                                                        .memory =
                                                            on_gpu ? STRAIT_CHECKPOINT_CUDA : STRAIT_CHECKPOINT_HOST,
                                                        .rounded_from = t->from[0] != 0 ? t->from : NULL};
        CHECK(strait_checkpoint_save_add(save, &tensor) == STRAIT_OK, "add: %s", strait_checkpoint_save_text(save));
    }
    CHECK(strait_checkpoint_save_end(save, &summary) == STRAIT_OK, "end: %s", strait_checkpoint_save_text(save));
    strait_checkpoint_save_free(save);
    CHECK(strait_checkpoint_commit(path, &commit, text, sizeof(text)) == STRAIT_OK, "commit: %s", text);
    return summary;
}

static void load_all(const char *path, enum strait_checkpoint_memory memory, double *took)
{
    static struct strait_checkpoint_box boxes[TENSORS_MAX];
    struct strait_checkpoint_reader *reader;
    CHECK(strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK, "open: %s", text);
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor *t = &tensors[i];
        uint8_t *data = malloc(t->bytes + 1);
        if (memory == STRAIT_CHECKPOINT_CUDA) {
            free(data);
            CUDA(cudaSetDevice(t->gpu));
            CUDA(cudaMalloc((void **)&data, t->bytes + 16));
            CUDA(cudaMemset(data, 0xaa, t->bytes + 16));
        }
        boxes[i] = (struct strait_checkpoint_box){
            .tensor = strait_checkpoint_find(reader, t->name), .memory = memory, .data = data};
    }
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaSetDevice(0));
    const double began = seconds();
    CHECK(strait_checkpoint_load(reader, boxes, count, NULL, text, sizeof(text)) == STRAIT_OK, "load: %s", text);
    *took = seconds() - began;
    int current = -1;
    CUDA(cudaGetDevice(&current));
    CHECK(current == 0 && cudaPeekAtLastError() == cudaSuccess, "a load leaves the device %d current", current);
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor *t = &tensors[i];
        uint8_t *found = boxes[i].data;
        if (memory == STRAIT_CHECKPOINT_CUDA) {
            found = malloc(t->bytes + 1);
            CUDA(cudaMemcpy(found, boxes[i].data, t->bytes, cudaMemcpyDeviceToHost));
            CUDA(cudaFree(boxes[i].data));
        }
        CHECK(memcmp(found, t->host, t->bytes) == 0, "%s (%s) is wrong", t->name, t->dtype);
        free(found);
    }
    strait_checkpoint_close(reader);
}

/* A column of boxes, into rows with a distance between them. */
static void load_columns(const char *path, const struct tensor *t)
{
    const uint32_t value = strait_checkpoint_dtype_bytes(t->dtype);
    const uint64_t at[2] = {3, t->shape[1] / 3}, size[2] = {t->shape[0] - 5, t->shape[1] / 2};
    const uint64_t row = size[1] * value + 2 * value, strides[2] = {row, value};
    struct strait_checkpoint_reader *reader;
    uint8_t *device, *found = malloc(size[0] * row);
    CHECK(strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK, "open: %s", text);
    CUDA(cudaSetDevice(t->gpu));
    CUDA(cudaMalloc((void **)&device, size[0] * row));
    CUDA(cudaMemset(device, 0xaa, size[0] * row));
    struct strait_checkpoint_box box = {.tensor = strait_checkpoint_find(reader, t->name),
                                        .memory = STRAIT_CHECKPOINT_CUDA,
                                        .offsets = at,
                                        .sizes = size,
                                        .strides = strides,
                                        .data = device};
    CUDA(cudaDeviceSynchronize());
    CHECK(strait_checkpoint_load(reader, &box, 1, NULL, text, sizeof(text)) == STRAIT_OK, "load: %s", text);
    CUDA(cudaMemcpy(found, device, size[0] * row, cudaMemcpyDeviceToHost));
    for (uint64_t r = 0; r < size[0]; r++) {
        const uint8_t *wanted = t->host + ((at[0] + r) * t->shape[1] + at[1]) * value;
        CHECK(memcmp(found + r * row, wanted, size[1] * value) == 0, "%s: row %llu of a box is wrong", t->name,
              (unsigned long long)r);
        for (uint32_t b = 0; b < 2 * value; b++)
            CHECK(found[r * row + size[1] * value + b] == 0xaa, "%s: written between rows", t->name);
    }
    CUDA(cudaFree(device));
    free(found);
    strait_checkpoint_close(reader);
}

static long differing(const char *a, const char *b, long from)
{
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    long at = 0;
    CHECK(x != NULL && y != NULL, "%s or %s is not there", a, b);
    for (int p, q; (p = fgetc(x)) == (q = fgetc(y)) || at < from; at++)
        if (p == EOF) {
            at = -1;
            break;
        }
    fclose(x);
    fclose(y);
    return at;
}

static void damage(const char *path)
{
    char file[600];
    snprintf(file, sizeof(file), "%s/00000.strait", path);
    FILE *f = fopen(file, "r+b");
    CHECK(f != NULL && fseek(f, 4096 + 100000, SEEK_SET) == 0, "%s", file);
    const int byte = fgetc(f);
    fseek(f, 4096 + 100000, SEEK_SET);
    fputc(byte ^ 16, f);
    fclose(f);
    struct strait_checkpoint_reader *reader;
    CHECK(strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK, "open: %s", text);
    uint32_t bad = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct tensor *t = &tensors[i];
        uint8_t *device;
        CUDA(cudaSetDevice(t->gpu));
        CUDA(cudaMalloc((void **)&device, t->bytes + 16));
        struct strait_checkpoint_box box = {
            .tensor = strait_checkpoint_find(reader, t->name), .memory = STRAIT_CHECKPOINT_CUDA, .data = device};
        const enum strait_status status = strait_checkpoint_load(reader, &box, 1, NULL, text, sizeof(text));
        CHECK(status == STRAIT_OK || status == STRAIT_ERR_INTEGRITY || status == STRAIT_ERR_CORRUPT, "%s: %s", t->name,
              text);
        bad += status != STRAIT_OK;
        CUDA(cudaFree(device));
    }
    CHECK(bad >= 1 && bad < count, "%u of %u tensors are damaged by one byte", bad, count);
    printf("damage of a byte: %u of %u tensors; %s\n", bad, count, text);
    strait_checkpoint_close(reader);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static void kinds(const char *folder, int gpus)
{
    char by_gpu[500], by_host[500], both[500], a[600], b[600];
    double took;
    const struct tensor *master = add("F32", 1000, 1031, 0, 0, NULL);
    add("BF16", 1000, 1031, 0, 0, master);
    add("BF16", 777, 4099, gpus - 1, 2, NULL);
    add("F32", 64, 65536, gpus - 1, 4, NULL);
    add("U8", 300, 70001, 0, 1, NULL);
    add("BF16", 1, 16384 * 256, 0, 0, NULL);
    const struct tensor *second = add("F32", 513, 2049, gpus - 1, 4, NULL);
    struct tensor *copy = add("BF16", 513, 2049, gpus - 1, 2, second);
    copy->host[copy->bytes - 1] ^= 1; /* one value is not the rounding */
    CUDA(cudaMemcpy(copy->device + copy->skew, copy->host, copy->bytes, cudaMemcpyHostToDevice));
    const struct tensor *far = add("F32", 300, 1000, 0, 0, NULL);
    add("BF16", 300, 1000, gpus - 1, 0, far); /* on another device than what it is the rounding of: stored */
    for (uint32_t i = 0; i < 300; i++)
        add(i % 3 == 0 ? "F32" : "BF16", 1, 1 + i % 97, (int)(i % (uint32_t)gpus), 2 * (i % 3 != 0 ? i % 5 : 0), NULL);
    snprintf(by_gpu, sizeof(by_gpu), "%s/by-gpu", folder);
    snprintf(by_host, sizeof(by_host), "%s/by-host", folder);
    snprintf(both, sizeof(both), "%s/both", folder);
    const struct strait_checkpoint_summary summary = save_all(by_gpu, STRAIT_CHECKPOINT_CUDA, 0, 0);
    CHECK(summary.rounded_shards == (gpus > 1 ? 1 : 2), "%llu shards are roundings",
          (unsigned long long)summary.rounded_shards);
    save_all(by_host, STRAIT_CHECKPOINT_HOST, 0, 0);
    save_all(both, STRAIT_CHECKPOINT_CUDA, 0, 3);
    snprintf(a, sizeof(a), "%s/00000.strait", by_gpu);
    snprintf(b, sizeof(b), "%s/00000.strait", by_host);
    struct stat sa, sb;
    CHECK(stat(a, &sa) == 0 && stat(b, &sb) == 0, "no files");
    /* Chunks are the same bit for bit: files differ in the save's id alone, that is in the header and behind the
     * chunks. */
    CHECK(gpus > 1 || sa.st_size == sb.st_size, "files of %lld and %lld bytes", (long long)sa.st_size,
          (long long)sb.st_size);
    const long at = differing(a, b, 4096);
    CHECK(gpus > 1 || at > sa.st_size - 65536, "files differ at %ld of %lld", at, (long long)sa.st_size);
    for (unsigned i = 0; i < 3; i++) {
        const char *path = i == 0 ? by_gpu : i == 1 ? by_host : both;
        load_all(path, STRAIT_CHECKPOINT_HOST, &took);
        load_all(path, STRAIT_CHECKPOINT_CUDA, &took);
        for (uint32_t t = 0; t < 8; t++)
            if (tensors[t].shape[0] > 8)
                load_columns(path, &tensors[t]);
    }
    damage(by_gpu);
    forget();
    printf("kinds: %u tensors, %.3f of their bytes stored: right\n", 310,
           (double)summary.stored_bytes / (double)summary.raw_bytes);
}

static void times(const char *folder, uint64_t mib)
{
    char path[500];
    const uint64_t columns = 4096, rows = (mib << 20) / 4 / columns / 8;
    for (uint32_t i = 0; i < 8; i++)
        add("F32", rows, columns, 0, 0, NULL);
    snprintf(path, sizeof(path), "%s/times", folder);
    for (unsigned way = 0; way < 3; way++)
        for (unsigned round = 0; round < 3; round++) {
            double took;
            const double began = seconds();
            const struct strait_checkpoint_summary s =
                save_all(path, way == 1 ? STRAIT_CHECKPOINT_HOST : STRAIT_CHECKPOINT_CUDA,
                         way == 2 ? STRAIT_CHECKPOINT_RAW : 0, 0);
            const double whole = seconds() - began;
            load_all(path, way == 1 ? STRAIT_CHECKPOINT_HOST : STRAIT_CHECKPOINT_CUDA, &took);
            printf("%-9s save %6.2f GB/s (ratio %.3f, %5.2f s; encode %5.2f s of threads, write %5.2f s)   load %6.2f "
                   "GB/s\n",
                   way == 0   ? "gpu"
                   : way == 1 ? "host"
                              : "gpu, raw",
                   (double)s.raw_bytes / whole / 1e9, (double)s.raw_bytes / (double)s.stored_bytes, whole,
                   s.encode_seconds, s.write_seconds, (double)s.raw_bytes / took / 1e9);
            fflush(stdout);
        }
    forget();
}

int main(int argc, char **argv)
{
    int gpus = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: gpu_checkpoint FOLDER [MIB]\n");
        return 2;
    }
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    kinds(argv[1], gpus);
    times(argv[1], argc > 2 ? strtoull(argv[2], NULL, 10) : 1024);
    return 0;
}
