# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One PE of the comparison of collectives: NCCL's, and torch's reductions and barrier in symmetric
# memory, in CUDA graphs. The driver (src/compare/collectives) starts the PEs, and tells all of them
# what to measure by lines of their standard input; src/compare/collectives/protocol.rs describes
# the lines.
#
#   python3 collectives.py ADDRESS RANK NPES BYTES
#
# ADDRESS is where the PEs meet (file://PATH); BYTES are those of the largest buffer. Nothing
# here uses multicast over the switch: the driver sets NCCL_NVLS_ENABLE=0 and
# TORCH_SYMM_MEM_DISABLE_MULTICAST=1, and no multimem operation is called.

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem


def reply(**fields):
    print(json.dumps(fields), flush=True)


def values(pe, first, count, device):
    """Returns elements of what PE `pe` gives, as in src/compare/collectives/calls.rs."""
    index = torch.arange(first, first + count, dtype=torch.int64, device=device)
    mixed = (index + (pe * 0x9E3779B9)) & 0xFFFFFFFF
    # Half by half, so that no product leaves 64 bits.
    low = (mixed & 0xFFFF) * 0x9E3779B1
    high = ((mixed >> 16) * 0x9E3779B1 & 0xFFFF) << 16
    return (((low + high) & 0xFFFFFFFF) >> 27).to(torch.float32)


class Pe:
    # Elements that are made or compared at a time.
    CHUNK = 1 << 22

    def __init__(self, address, rank, npes, most):
        self.rank, self.npes, self.most = rank, npes, most
        self.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl", init_method=address, rank=rank, world_size=npes, device_id=self.device
        )
        self.group = dist.group.WORLD.group_name
        self.dst = torch.empty(most, dtype=torch.uint8, device=self.device)
        self.src = torch.empty(most, dtype=torch.uint8, device=self.device)
        # Reductions in symmetric memory read their source, or work in place, in such memory.
        self.symmetric = symm_mem.empty(most, dtype=torch.uint8, device=self.device)
        self.handles = {}
        for dtype in (torch.float32, torch.bfloat16):
            view = self.symmetric.view(dtype)
            self.handles[dtype] = symm_mem.rendezvous(view, self.group)
        self.stream = torch.cuda.Stream()
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.graphs = {}
        dist.barrier()

    def give(self, tensor):
        for at in range(0, tensor.numel(), self.CHUNK):
            count = min(self.CHUNK, tensor.numel() - at)
            tensor[at : at + count] = values(self.rank, at, count, self.device)

    def expected(self, call, each, at, count):
        """Returns elements of what this PE has after the call, in one part."""
        if call.startswith("reduce"):
            first = self.rank * each if call == "reducescatter" else 0
            return sum(values(pe, first + at, count, self.device) for pe in range(self.npes))
        pe, within = (at // each, at % each) if call in ("fcollect", "alltoall") else (0, at)
        return values(pe, (self.rank * each if call == "alltoall" else 0) + within, count, self.device)

    def check(self, call, each, result):
        at = 0
        while at < result.numel():
            # No chunk crosses from one part to the next.
            count = min(self.CHUNK, each - at % each, result.numel() - at)
            wrong = (result[at : at + count].float() != self.expected(call, each, at, count)).sum().item()
            if wrong:
                raise RuntimeError(f"wrong data: {wrong} of {count} elements from element {at} on")
            at += count

    def prepare(self, way, call, part, count):
        self.graphs.pop(way, None)
        dtype = torch.bfloat16 if call == "reduce_bf16" else torch.float32
        each = part // dtype.itemsize
        whole = each * self.npes
        got = whole if call in ("fcollect", "alltoall") else each
        given = whole if call in ("alltoall", "reducescatter") else each
        if max(got, given) * dtype.itemsize > self.most:
            raise RuntimeError(f"{call}: more than the buffers have")
        dst, src = self.dst.view(dtype)[:got], self.src.view(dtype)[:given]
        symmetric = self.symmetric.view(dtype)[:each]
        # What the call leaves, and where it works in place.
        result = dst
        if way == "symm_barrier":
            handle = self.handles[torch.float32]

            def queue():
                handle.barrier(channel=0)

        elif way == "symm_one_shot":
            src = symmetric

            def queue():
                torch.ops.symm_mem.one_shot_all_reduce_out(symmetric, "sum", self.group, dst)

        elif way == "symm_two_shot":
            src = result = symmetric

            def queue():
                torch.ops.symm_mem.two_shot_all_reduce_(symmetric, "sum", self.group)

        elif way == "nccl" and call == "broadcast":
            if self.rank == 0:
                result = src
            else:
                src = result = dst

            def queue():
                dist.broadcast(result, src=0)

        elif way == "nccl" and call == "fcollect":

            def queue():
                dist.all_gather_into_tensor(dst, src)

        elif way == "nccl" and call == "alltoall":

            def queue():
                dist.all_to_all_single(dst, src)

        elif way == "nccl" and call in ("reduce", "reduce_bf16"):
            src = result = dst

            def queue():
                dist.all_reduce(result)

        elif way == "nccl" and call == "reducescatter":

            def queue():
                dist.reduce_scatter_tensor(dst, src)

        else:
            raise RuntimeError(f"{way} has no {call}")

        moves = part > 0
        if moves:
            result.fill_(-1)
            self.give(src)
        torch.cuda.synchronize()
        dist.barrier()
        # Once by itself: in place, the calls of a graph add to what those before have left.
        with torch.cuda.stream(self.stream):
            queue()
        self.stream.synchronize()
        if moves:
            self.check(call, each, result)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for _ in range(count):
                queue()
        with torch.cuda.stream(self.stream):
            graph.replay()
        self.stream.synchronize()
        self.graphs[way] = graph
        reply(ready=True, graph=True)

    def run(self, way):
        if way not in self.graphs:
            raise RuntimeError("nothing is prepared")
        graph = self.graphs[way]
        with torch.cuda.stream(self.stream):
            graph.replay()
            self.begin.record()
            graph.replay()
            self.end.record()
        self.stream.synchronize()
        reply(ns=self.begin.elapsed_time(self.end) * 1e6)


def main():
    address, rank, npes, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    # Whole elements of either type, as whole vectors.
    pe = Pe(address, rank, npes, (most + 15) // 16 * 16)
    nccl = ".".join(str(number) for number in torch.cuda.nccl.version())
    reply(library=f"NCCL {nccl} and symmetric memory of torch {torch.__version__}")
    for line in sys.stdin:
        words = line.split()
        try:
            if len(words) == 5 and words[0] == "prepare":
                pe.prepare(words[1], words[2], int(words[3]), int(words[4]))
            elif len(words) == 2 and words[0] == "run":
                pe.run(words[1])
            else:
                raise RuntimeError(f"an unknown command: {line.strip()}")
        except Exception as error:  # The driver reports it, and goes on with other calls.
            reply(error=f"{type(error).__name__}: {error}")
    pe.graphs.clear()
    dist.destroy_process_group()


main()
