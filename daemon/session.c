#include "daemon/session.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/base/fault.h"
#include "daemon/node.h"
#include "daemon/request.h"
#include "internal/memfd.h"

#define NOTES_QUEUED_MAX (1024u * 1024)

void session_send(struct session *session, const struct message *message)
{
    if (session == NULL || session->channel == NULL || session->ending || session->doomed != NULL)
        return;
    (void)fault_at(FAULT_TELL, session, message);
    if (channel_send(session->channel, message, NULL, 0) != STRAIT_OK)
        session->doomed = "client does not read its events";
    session->dirty = true;
    (void)fault_at(FAULT_TOLD, session, message);
}

void session_send_note(struct session *session, const struct message *message)
{
    if (session != NULL && session->channel != NULL && channel_queued(session->channel) < NOTES_QUEUED_MAX)
        session_send(session, message);
}

void session_forget(struct session *session, struct request *request)
{
    HASH_DELETE(by_transfer, session->requests, request);
    session->charged -= request->charged;
}

void session_drained(struct session *session)
{
    if (session == NULL)
        return;
    session->undrained--;
    session->node->sessions_ended |= session->ending;
}

void session_job_ended(struct session *session)
{
    session->jobs--;
    session->node->sessions_ended |= session->ending;
}

#define CHARGED_MAX (512ull * 1024 * 1024) /* by all live requests of one client */

bool session_charge(struct session *session, uint64_t bytes)
{
    if (session == NULL)
        return true; /* the client is gone and cannot ask for more */
    if (bytes > CHARGED_MAX - session->charged)
        return false;
    session->charged += bytes;
    return true;
}

/* ---- The words --------------------------------------------------------------------------------------------------- */

/* Can the file be mapped safely: at least `size` bytes of ordinary pages, which exist as long as the file, as it cannot
 * shrink? */
static bool is_usable(int fd, size_t size)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
           info.st_size >= 0 && (size_t)info.st_size >= size && !memfd_is_hugetlb(fd);
}

bool session_words(struct session *session, const struct message_words *message, const int *fds, uint32_t fd_count)
{
    size_t size = message->count * sizeof(session->words[0]);
    if (session->words != NULL || fd_count != 1 || !is_usable(fds[0], size))
        return false;
    void *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    if (words == MAP_FAILED)
        return false;
    session->words = words;
    session->word_count = message->count;
    return true;
}

void session_words_fini(struct session *session)
{
    if (session->words != NULL)
        munmap(session->words, session->word_count * sizeof(session->words[0]));
    session->words = NULL;
}

void session_raise(struct session *session, uint32_t word, uint32_t value)
{
    if (session == NULL)
        return;
    uint32_t *at = &session->words[word], old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while ((int32_t)(value - old) > 0)
        if (__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return;
}
