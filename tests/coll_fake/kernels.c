/* What collective/cuda/control.cu does, by one thread. */
#include "tests/coll_fake/kernels.h"

#include <string.h>
#include <unistd.h>

#include "collective/engine/head.h"
#include "tests/coll_fake/fake.h"

static struct message_head *head_of(const struct message_list *list, uint32_t i)
{
    return (void *)(list->base + i * list->stride);
}

static uint32_t parts_of(const struct message_list *list)
{
    return (list->tail_at != 0) + (list->main_at != 0);
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

struct verdict {
    const struct strait_result *tail, *main;
    bool fits;
};

static struct verdict verdict_of(const struct gpu_seal *seal, uint32_t i)
{
    const uint32_t before = i - (seal->list.skip < i), parts = parts_of(&seal->list);
    const struct strait_result *results = seal->results + before * parts;
    struct verdict is = {parts > 1 ? results : NULL, results + (parts - 1), false};
    is.fits = is.main->status == STRAIT_OK && is.main->bytes <= seal->list.main_room &&
              (is.tail == NULL || (is.tail->status == STRAIT_OK));
    return is;
}

static uint64_t need_of(struct verdict is)
{
    return is.main->status == STRAIT_OK ? is.main->bytes : UINT64_MAX;
}

static void write_head(struct message_head *head, struct verdict is, const uint64_t row[ROW_WORDS], uint64_t most)
{
    head->magic = MESSAGE_MAGIC;
    head->tail_status = is.tail != NULL ? (uint32_t)is.tail->status : 0;
    head->main_status = (uint32_t)is.main->status;
    head->reserved = 0;
    head->tail_bytes = is.tail != NULL ? is.tail->bytes : 0;
    head->main_bytes = is.main->bytes;
    memcpy(head->row, row, sizeof(head->row));
    head->most = most;
    head->sum = head_sum(head);
}

static void run_seal(coll_stream stream, void *argument)
{
    const struct gpu_seal *seal = argument;
    uint64_t row[ROW_WORDS] = {0}, most = 0;
    (void)stream;
    for (uint32_t i = 0; i < seal->list.count; i++) {
        if (i == seal->list.skip)
            continue;
        const struct verdict is = verdict_of(seal, i);
        most = need_of(is) > most ? need_of(is) : most;
        if (!is.fits)
            row[i / 64] |= UINT64_C(1) << i % 64;
    }
    for (uint32_t i = 0; i < seal->list.count; i++)
        if (i != seal->list.skip)
            write_head(head_of(&seal->list, i), verdict_of(seal, i), row, most);
}

/* ---- What did not fit -------------------------------------------------------------------------------------------- */

static bool has_overflow(const struct message_head *head, bool whole)
{
    uint64_t any = head->row[0] & (whole ? ~UINT64_C(0) : 1);
    for (uint32_t word = 1; word < ROW_WORDS && whole; word++)
        any |= head->row[word];
    return any != 0;
}

static bool is_whole(const struct message_head *head)
{
    return head->magic == MESSAGE_MAGIC && head->sum == head_sum(head);
}

static void say_failed(struct mail *mail, uint32_t status)
{
    if (__atomic_load_n(&mail->failed, __ATOMIC_ACQUIRE) == 0)
        __atomic_store_n(&mail->failed, status, __ATOMIC_RELEASE);
}

static void say_bad_head(struct mail *mail)
{
    say_failed(mail, MAIL_BAD_HEAD);
    __atomic_store_n(&mail->abort, 1, __ATOMIC_RELEASE);
}

/* Adds a head to what is known of an operation. */
static void take_head(const struct gpu_check *check, const struct message_head *head, bool *found, uint64_t *need)
{
    *found |= has_overflow(head, check->whole);
    *need = head->most > *need ? head->most : *need;
}

static uint32_t share_of(uint64_t need, uint64_t unit)
{
    return need > 1024 * unit ? 1024 : (uint32_t)((need + unit - 1) / unit);
}

static void run_check(coll_stream stream, void *argument)
{
    const struct gpu_check *check = argument;
    bool found = false, strange = false;
    uint64_t need = 0;
    (void)stream;
    if (check->own != NULL)
        take_head(check, (const void *)check->own, &found, &need);
    for (uint32_t i = 0; i < check->list.count; i++) {
        const struct message_head *head = head_of(&check->list, i);
        if (i == check->list.skip)
            continue;
        strange |= !is_whole(head);
        take_head(check, head, &found, &need);
    }
    *check->found = found || strange;
    uint32_t *share = &check->control->shares[check->job.key];
    if (strange)
        say_bad_head(check->mail);
    else if (share_of(need, check->unit) > *share)
        *share = share_of(need, check->unit);
    if (!found || __atomic_load_n(&check->mail->abort, __ATOMIC_ACQUIRE) != 0)
        return;
    const uint32_t number = check->control->count++;
    if (number >= JOBS_MAX)
        return;
    check->mail->jobs[number] = check->job;
    check->mail->jobs[number].share = *share;
    *share = 0;
}

static void run_meet(coll_stream stream, void *argument)
{
    const struct gpu_meet *meet = argument;
    struct mail_control *control = meet->control;
    (void)stream;
    if (control->count == 0)
        return;
    const uint64_t post = ++control->posts;
    meet->mail->count = control->count;
    control->count = 0;
    __atomic_store_n(&meet->mail->posted, post, __ATOMIC_RELEASE);
    const uint64_t hurry = fake_gpu.hurry != 0 ? fake_gpu.hurry : 1;
    uint64_t waited_ns = 0;
    bool done;
    while (!(done = __atomic_load_n(&meet->mail->done, __ATOMIC_ACQUIRE) >= post) &&
           __atomic_load_n(&meet->mail->abort, __ATOMIC_ACQUIRE) == 0 && waited_ns < meet->patience_ns) {
        usleep(100);
        waited_ns += 100000 * hurry;
    }
    if (done)
        return;
    say_failed(meet->mail, (uint32_t)STRAIT_ERR_IO);
    __atomic_store_n(&meet->mail->abort, 1, __ATOMIC_RELEASE);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static void run_make_void(coll_stream stream, void *argument)
{
    const struct gpu_void *what = argument;
    (void)stream;
    for (uint32_t i = 0; i < what->list.count && *what->found != 0; i++) {
        uint8_t *message = what->list.base + i * what->list.stride;
        if (what->list.tail_at != 0)
            memset(message + what->list.tail_at, 0, STRAIT_CHUNK_HEADER_BYTES);
        memset(message + what->list.main_at, 0, STRAIT_CHUNK_HEADER_BYTES);
    }
}

static void run_verify(coll_stream stream, void *argument)
{
    const struct gpu_verify *verify = argument;
    (void)stream;
    for (uint32_t i = 0; i < verify->count && *verify->found == 0; i++)
        if (verify->results[i].status != STRAIT_OK)
            say_failed(verify->mail, (uint32_t)verify->results[i].status);
}

static void run_reduce(coll_stream stream, void *argument)
{
    (void)stream;
    demand(coll_reduce_scalar(argument) == STRAIT_OK);
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

void kernel_seal(const struct gpu_seal *seal, coll_stream stream)
{
    fake_queue(stream, run_seal, NULL, seal, sizeof(*seal));
}

void kernel_check(const struct gpu_check *check, coll_stream stream)
{
    fake_queue(stream, run_check, NULL, check, sizeof(*check));
}

void kernel_meet(const struct gpu_meet *meet, coll_stream stream)
{
    fake_queue(stream, run_meet, NULL, meet, sizeof(*meet));
}

void kernel_make_void(const struct gpu_void *what, coll_stream stream)
{
    fake_queue(stream, run_make_void, NULL, what, sizeof(*what));
}

void kernel_verify(const struct gpu_verify *verify, coll_stream stream)
{
    fake_queue(stream, run_verify, NULL, verify, sizeof(*verify));
}

void kernel_reduce(const struct coll_reduce *reduce, coll_stream stream)
{
    fake_queue(stream, run_reduce, NULL, reduce, sizeof(*reduce));
}
