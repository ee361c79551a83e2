/* Foreign bytes as files of a checkpoint: its index, a footer, and a whole folder. */
#include <errno.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/format.h"
#include "internal/bytes.h"
#include "tests/fuzz/fuzz.h"

static bool same_shard(const struct checkpoint_shard *a, const struct checkpoint_shard *b)
{
    const size_t bytes = a->dims * sizeof(*a->shape);
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->dims == b->dims &&
           (bytes == 0 || (memcmp(a->shape, b->shape, bytes) == 0 && memcmp(a->offsets, b->offsets, bytes) == 0 &&
                           memcmp(a->sizes, b->sizes, bytes) == 0)) &&
           a->bytes == b->bytes && a->first_chunk == b->first_chunk && a->first_page == b->first_page &&
           a->first_byte == b->first_byte && a->page_bytes == b->page_bytes && a->rounded_from == b->rounded_from &&
           a->file == b->file;
}

/* ---- Index ------------------------------------------------------------------------------------------------------- */

/* An index's message, or with the first byte 0 a whole file: what is read is written and read again. */
void fuzz_checkpoint_index(const uint8_t *data, size_t size)
{
    struct checkpoint_index index, back;
    uint8_t *bytes, *again;
    size_t again_size;
    char text[256];
    if (size < 1)
        return;
    const size_t head = data[0] == 0 ? 0 : CHECKPOINT_INDEX_HEAD_BYTES, length = size - 1;
    bytes = malloc(head + length + 1);
    require(bytes != NULL);
    memcpy(bytes + head, data + 1, length);
    if (head > 0) {
        memset(bytes, 0, head);
        memcpy(bytes, "STCI\1", 5);
        store_le64(bytes + 8, length);
        checkpoint_sum(bytes + 16, bytes + head, length);
    }
    if (checkpoint_index_parse(&index, bytes, head + length, text, sizeof(text)) == STRAIT_OK) {
        require(checkpoint_index_build(&index, &again, &again_size) == STRAIT_OK);
        require(checkpoint_index_parse(&back, again, again_size, text, sizeof(text)) == STRAIT_OK);
        require(back.shard_count == index.shard_count && back.tensor_count == index.tensor_count &&
                back.file_count == index.file_count && back.attachment_count == index.attachment_count);
        for (uint32_t s = 0; s < index.shard_count; s++)
            require(same_shard(&index.shards[s], &back.shards[s]));
        checkpoint_index_free(&back);
        checkpoint_index_free(&index);
        free(again);
    }
    free(bytes);
}

/* ---- A folder ---------------------------------------------------------------------------------------------------- */

/* The input: the number of files (1 or 2, by its lowest bit), then for each file u8 flags, u8 number of chunks, for
 * each chunk u16 length and bytes, u16 length of the footer's message and the message. The message's sums of chunks are
 * repaired, and with REPAIR those of the chunks too. The index is made of the footers, as a commit would. */
enum { REPAIR = 1, CUT = 2, FILES = 2, CHUNKS_MAX = 16, TENSORS_MAX = 64 };

struct input {
    const uint8_t *at;
    size_t left;
};

static const uint8_t *take(struct input *input, size_t size)
{
    const uint8_t *taken = input->at;
    if (size > input->left)
        return NULL;
    input->at += size;
    input->left -= size;
    return taken;
}

static bool take_sized(struct input *input, const uint8_t **bytes, size_t *size)
{
    const uint8_t *length = take(input, 2);
    *size = length != NULL ? load_le16(length) : 0;
    *bytes = length != NULL ? take(input, *size) : NULL;
    return *bytes != NULL;
}

/* A file as it is put together. */
struct file {
    uint8_t *bytes;
    size_t size;
    struct checkpoint_footer footer;
    struct checkpoint_entry entry;
    bool known; /* its footer is one */
};

static const char *folder_path(void)
{
    static char path[64];
    if (path[0] == '\0') {
        snprintf(path, sizeof(path), "/dev/shm/strait-fuzz.%d", getpid());
        if (mkdir(path, 0700) != 0)
            snprintf(path, sizeof(path), "/tmp/strait-fuzz.%d", getpid());
        require(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    return path;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void remove_folder(void)
{
    (void)nftw(folder_path(), remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void append(struct file *file, const void *bytes, size_t size)
{
    file->bytes = realloc(file->bytes, file->size + size + 1);
    require(file->bytes != NULL);
    memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static void align(struct file *file)
{
    static const uint8_t zeroes[CHECKPOINT_ALIGNMENT];
    append(file, zeroes, (CHECKPOINT_ALIGNMENT - file->size % CHECKPOINT_ALIGNMENT) % CHECKPOINT_ALIGNMENT);
}

/* The footer's message with the sums that the chunks have. */
static bool repair_footer(struct file *file, const uint8_t *message, size_t size, const uint64_t *sums, uint32_t count,
                          uint8_t **repaired, size_t *repaired_size)
{
    struct checkpoint_tail tail = {.footer_offset = file->size, .footer_bytes = size};
    checkpoint_sum(tail.footer_sum, message, size);
    file->known = checkpoint_footer_parse(&file->footer, message, &tail, NULL, 0) == STRAIT_OK;
    if (!file->known)
        return false;
    for (uint32_t c = 0; c < file->footer.chunk_count && c < count; c++)
        file->footer.chunks[c].metadata_sum = sums[c];
    return checkpoint_footer_build(&file->footer, repaired, repaired_size) == STRAIT_OK;
}

static bool make_file(struct input *input, struct file *file, const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES])
{
    const uint8_t *head = take(input, 2), *bytes;
    uint8_t header[CHECKPOINT_HEADER_BYTES], tail[CHECKPOINT_TAIL_BYTES], *message = NULL;
    uint64_t sums[CHUNKS_MAX] = {0};
    size_t size, message_size = 0;
    if (head == NULL || head[1] > CHUNKS_MAX)
        return false;
    checkpoint_header_build(header, save_id);
    append(file, header, sizeof(header));
    for (uint32_t c = 0; c < head[1]; c++) {
        if (!take_sized(input, &bytes, &size))
            return false;
        append(file, bytes, size);
        uint8_t *chunk = file->bytes + file->size - size;
        if ((head[0] & REPAIR) != 0)
            repair_metadata(chunk, size);
        sums[c] = size >= STRAIT_CHUNK_HEADER_BYTES ? load_le64(chunk + 40) : 0;
        align(file);
    }
    if (!take_sized(input, &bytes, &size))
        return false;
    if (!repair_footer(file, bytes, size, sums, head[1], &message, &message_size)) {
        message = malloc(size + 1);
        require(message != NULL);
        memcpy(message, bytes, size);
        message_size = size;
    }
    checkpoint_tail_build(tail, file->size, message, (uint32_t)message_size);
    checkpoint_sum(file->entry.footer_sum, message, message_size);
    append(file, message, message_size);
    append(file, tail, sizeof(tail));
    free(message);
    file->entry.bytes = file->size;
    file->size -= (head[0] & CUT) != 0 ? file->size / 3 : 0;
    return true;
}

static void write_file(const char *name, const uint8_t *bytes, size_t size)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/step/%s", folder_path(), name);
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* Writes an index of the footers that could be read. */
static bool write_index(struct file *files, uint32_t count, const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES])
{
    struct checkpoint_entry entries[FILES];
    struct checkpoint_index index = {.files = entries, .file_count = count, .committed_ns = 1};
    uint8_t *bytes;
    size_t size;
    memcpy(index.save_id, save_id, sizeof(index.save_id));
    for (uint32_t f = 0; f < count; f++) {
        entries[f] = files[f].entry;
        index.shard_count += files[f].known ? files[f].footer.shard_count : 0;
    }
    index.shards = calloc(index.shard_count + 1, sizeof(*index.shards));
    require(index.shards != NULL);
    for (uint32_t f = 0, at = 0; f < count; f++)
        for (uint32_t s = 0; files[f].known && s < files[f].footer.shard_count; s++, at++) {
            index.shards[at] = files[f].footer.shards[s];
            index.shards[at].file = f;
        }
    require(checkpoint_index_build(&index, &bytes, &size) == STRAIT_OK);
    write_file(CHECKPOINT_INDEX_NAME, bytes, size);
    free(bytes);
    free(index.shards);
    return true;
}

/* ---- Reading it -------------------------------------------------------------------------------------------------- */

static void expect_damage(void *context, const struct strait_checkpoint_damage *damage)
{
    require(damage->file != NULL && damage->status != STRAIT_OK && damage->replaced <= 1);
    require(damage->tensor == NULL || damage->value_count > 0);
    ++*(unsigned *)context;
}

/* A box of at most a page of values: the whole tensor, or what is in its first corner. */
static uint64_t choose_box(const struct strait_checkpoint_tensor_info *info, uint64_t *sizes)
{
    uint64_t bytes = strait_checkpoint_dtype_bytes(info->dtype);
    for (uint32_t d = info->dims; d-- > 0; bytes *= sizes[d]) {
        const uint64_t room = 65536 / (bytes > 0 ? bytes : 1);
        sizes[d] = info->shape[d] <= room ? info->shape[d] : room > 0 ? room : 1;
    }
    return bytes;
}

static void load(struct strait_checkpoint_reader *reader, bool whole)
{
    static uint64_t sizes[TENSORS_MAX][STRAIT_CHECKPOINT_DIMS_MAX];
    struct strait_checkpoint_box boxes[TENSORS_MAX];
    struct strait_checkpoint_tensor_info info;
    unsigned damages = 0;
    uint32_t count = 0;
    char text[256];
    const struct strait_checkpoint_load_options options = {.size = sizeof(options),
                                                           .threads = 1,
                                                           .flags = STRAIT_CHECKPOINT_CACHED,
                                                           .damage = expect_damage,
                                                           .context = &damages};
    for (; count < TENSORS_MAX && strait_checkpoint_tensor_at(reader, count, &info); count++) {
        struct strait_checkpoint_shard_info shard;
        require(strait_checkpoint_find(reader, info.name) == count);
        for (uint32_t s = 0; s < info.shard_count && s < 4; s++)
            require(strait_checkpoint_shard_at(reader, count, s, &shard));
        boxes[count] = (struct strait_checkpoint_box){.tensor = count, .sizes = sizes[count]};
        boxes[count].data = malloc(choose_box(&info, sizes[count]) + 1);
        require(boxes[count].data != NULL);
    }
    const enum strait_status loaded = strait_checkpoint_load(reader, boxes, count, &options, text, sizeof(text));
    bool all = true;
    for (uint32_t b = 0; b < count; b++) {
        all &= boxes[b].status == STRAIT_OK;
        free(boxes[b].data);
    }
    require(all == (loaded == STRAIT_OK) && (all || damages > 0 || loaded == STRAIT_ERR_UNSUPPORTED));
    require(!whole || loaded == STRAIT_OK || loaded == STRAIT_ERR_UNSUPPORTED);
}

static void read_folder(void)
{
    char path[128], text[256];
    struct strait_checkpoint_reader *reader;
    unsigned damages = 0;
    const struct strait_checkpoint_load_options options = {.size = sizeof(options),
                                                           .threads = 1,
                                                           .flags = STRAIT_CHECKPOINT_CACHED,
                                                           .damage = expect_damage,
                                                           .context = &damages};
    snprintf(path, sizeof(path), "%s/step", folder_path());
    if (strait_checkpoint_open(path, &reader, text, sizeof(text)) == STRAIT_OK) {
        const enum strait_status verified = strait_checkpoint_verify(reader, &options, text, sizeof(text));
        require((verified == STRAIT_OK) == (damages == 0));
        load(reader, verified == STRAIT_OK);
        strait_checkpoint_close(reader);
    }
    (void)strait_checkpoint_newest(folder_path(), NULL, NULL, path, sizeof(path));
}

void fuzz_checkpoint(const uint8_t *data, size_t size)
{
    static const uint8_t save_id[STRAIT_CHECKPOINT_ID_BYTES] = {1, 2, 3};
    static bool begun;
    struct file files[FILES] = {{NULL, 0, {{0}, 0, 0, NULL, NULL, 0, 0, NULL}, {0, {0}}, false}};
    struct input input = {data, size};
    const uint8_t *head = take(&input, 1);
    const uint32_t count = head != NULL ? 1 + head[0] % FILES : 0;
    char path[128], name[CHECKPOINT_FILE_NAME_BYTES];
    bool made = head != NULL;
    snprintf(path, sizeof(path), "%s/step", folder_path());
    if (!begun) {
        require(mkdir(path, 0700) == 0 && atexit(remove_folder) == 0);
        begun = true;
    }
    for (uint32_t f = 0; f < count && made; f++)
        made = make_file(&input, &files[f], save_id);
    for (uint32_t f = 0; f < count && made; f++) {
        checkpoint_file_name(name, f);
        write_file(name, files[f].bytes, files[f].size);
    }
    if (made && write_index(files, count, save_id))
        read_folder();
    for (uint32_t f = 0; f < count; f++) {
        free(files[f].bytes);
        if (files[f].known)
            checkpoint_footer_free(&files[f].footer);
    }
}
