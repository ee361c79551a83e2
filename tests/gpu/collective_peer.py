"""Two processes with a GPU each, over NCCL, with libstrait-coll preloaded: what arrives is what was sent, bit for bit,
and what is added up is what two values give. Run by collective_peer.sh."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def values(seed, count):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(count, generator=generator, device="cuda") * 0.02).to(torch.bfloat16)


def same(what, got, expected):
    torch.cuda.synchronize()
    equal = torch.equal(got.view(torch.int16), expected.view(torch.int16))
    print(f"ipc rank {rank}: {what}: {'right' if equal else 'WRONG'}", flush=True)
    if not equal:
        raise SystemExit(1)


for count in (1 << 15, (1 << 20) + 17, 1 << 27):
    own = values(rank, count)
    gathered = torch.empty(count * ranks, dtype=torch.bfloat16, device="cuda")
    for turn in range(5):
        dist.all_gather_into_tensor(gathered, own)
    same(f"all_gather of {count}", gathered, torch.cat([values(r, count) for r in range(ranks)]))
    if count % ranks == 0:
        summed = torch.empty(count // ranks, dtype=torch.bfloat16, device="cuda")
        dist.reduce_scatter_tensor(summed, own)
        parts = [values(r, count).chunk(ranks)[rank].float() for r in range(ranks)]
        same(f"reduce_scatter of {count}", summed, sum(parts).to(torch.bfloat16))
    total = own.clone()
    dist.all_reduce(total)
    same(f"all_reduce of {count}", total, sum(values(r, count).float() for r in range(ranks)).to(torch.bfloat16))

noise = torch.randint(-32768, 32767, (1 << 25,), dtype=torch.int16, device="cuda").view(torch.bfloat16)
arrived = torch.empty_like(noise)
if rank == 0:
    dist.send(noise, 1)
    dist.send(noise, 1)
else:
    dist.recv(arrived, 0)
    dist.recv(arrived, 0)
torch.cuda.synchronize()
print(f"ipc rank {rank}: noise was sent and received", flush=True)
dist.destroy_process_group()
