/* Memory of a GPU as libnccl_ep.so.0 uses it, by the fake driver, which ends the program where a real one would fail.
 */
#include <string.h>

#include "ep/nccl_ep/device.h"
#include "tests/fakes/cuda.h"
#include "tests/run_suite.h"
#include "tests/support.h"

enum { COUNT = 100 };

static void twice(void *argument)
{
    int32_t *values = argument;
    for (int i = 0; i < COUNT; i++)
        values[i] *= 2;
}

static void fill(int32_t *values)
{
    for (int i = 0; i < COUNT; i++)
        values[i] = i + 1;
}

/* In the order of the stream, which is late. */
TEST_LOOP(work_is_done_in_the_order_of_a_stream, 2)
{
    const struct nep_memory *memory = nep_memory(_i);
    const int32_t before = fake_cuda_control.device_bytes, pinned_before = fake_cuda_control.pinned_bytes;
    require(nep_memory_is_cuda(memory) && memory->enter(_i));
    nep_stream stream = memory->stream();
    int32_t *device = memory->alloc(COUNT * sizeof(*device)), *pinned = memory->alloc_pinned(COUNT * sizeof(*pinned));
    int64_t *wide = memory->alloc(COUNT * sizeof(*wide)), *wide_pinned = memory->alloc_pinned(COUNT * sizeof(*wide));
    require(stream != NULL && device != NULL && pinned != NULL && wide != NULL && wide_pinned != NULL);
    require(cuda_is_reachable(device, COUNT * sizeof(*device), _i));
    fill(pinned);
    fake_cuda_control.delay_us = 2000;
    require(memory->copy(device, pinned, COUNT * sizeof(*device), stream));
    require(memory->copy(pinned, device, COUNT * sizeof(*device), stream) && memory->run(stream, twice, pinned));
    require(memory->copy(device, pinned, COUNT * sizeof(*device), stream));
    fake_cuda_control.delay_us = 0;
    require(memory->fill(wide, 0xff, COUNT * sizeof(*wide), stream));
    require(memory->widen(wide, device, COUNT, stream));
    require(memory->copy(wide_pinned, wide, COUNT * sizeof(*wide), stream) && memory->wait(stream));
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(wide_pinned[i], 2 * (i + 1));
    memory->free(device);
    memory->free(wide);
    memory->free_pinned(pinned);
    memory->free_pinned(wide_pinned);
    memory->stream_end(stream);
    memory->leave();
    require(cuda_device() == -1);
    require(fake_cuda_control.device_bytes == before && fake_cuda_control.pinned_bytes == pinned_before);
}
END_TEST

TEST(what_the_driver_refuses_is_told)
{
    const struct nep_memory *memory = nep_memory(0);
    require(memory->enter(0));
    nep_stream stream = memory->stream();
    int32_t *pinned = memory->alloc_pinned(COUNT * sizeof(*pinned));
    fake_cuda_control.fail = 4;
    require(!memory->copy(pinned, pinned, 4, stream) && !memory->fill(pinned, 0, 4, stream));
    require(!memory->run(stream, twice, pinned) && !memory->widen((int64_t *)pinned, pinned, 1, stream));
    require(memory->alloc(0) == NULL && memory->fill(pinned, 0, 0, stream));
    memory->free_pinned(pinned);
    memory->free(NULL);
    memory->stream_end(stream);
    memory->leave();
}
END_TEST

/* Of a communicator whose device the driver does not know, memory is the host's, with the same results. */
TEST(without_such_a_device_memory_is_that_of_the_host)
{
    int32_t values[COUNT], copies[COUNT];
    int64_t wide[COUNT];
    for (int device = -1; device <= 98; device += 99) {
        const struct nep_memory *memory = nep_memory(device);
        require(!nep_memory_is_cuda(memory) && memory->enter(device));
        fill(values);
        require(memory->run(NULL, twice, values) && memory->copy(copies, values, sizeof(values), NULL));
        require(memory->widen(wide, copies, COUNT, NULL) && memory->wait(NULL) && wide[COUNT - 1] == 2 * COUNT);
        require(memory->fill(values, 0xff, sizeof(values), NULL) && values[7] == -1 && memory->stream() == NULL);
        memory->leave();
    }
    require(!nep_memory_is_cuda(nep_memory(63)));
}
END_TEST

int main(void)
{
    return run_tests("nccl_ep_device", NULL, NULL);
}
