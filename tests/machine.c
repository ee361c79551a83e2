#include "tests/machine.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS  1000000u
#define LATE_NS 5000000u /* less is how timers are */
#define TRIES   100

struct count {
    _Atomic uint64_t late;
    _Atomic uint64_t napping; /* since then; 0 while `late` changes */
};

static struct count *shared;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t lateness(uint64_t since, uint64_t now)
{
    return now > since + NAP_NS + LATE_NS ? now - since - NAP_NS : 0;
}

static void __attribute__((noreturn)) watch(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        _exit(1);
    while (getppid() == parent) {
        uint64_t began = now_ns();
        atomic_store(&shared->napping, began);
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        atomic_store(&shared->napping, 0);
        atomic_fetch_add(&shared->late, lateness(began, now_ns()));
    }
    _exit(0);
}

bool machine_watch(void)
{
    void *memory = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    shared = memory;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        watch(parent);
    return pid > 0;
}

/* With the nap that the watcher has not come back from, counted once. */
uint64_t machine_late_ns(void)
{
    uint64_t late = 0;
    for (int i = 0; shared != NULL && i < TRIES; i++) {
        uint64_t napping = atomic_load(&shared->napping);
        late = atomic_load(&shared->late);
        if (napping != 0 && atomic_load(&shared->napping) == napping)
            return late + lateness(napping, now_ns());
        sched_yield();
    }
    return late;
}
