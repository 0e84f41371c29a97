"""The program of lesson 21: one rank of a pipeline.

``python -m tinygrad_mem launch -n 2 ranks_21.py FILE`` measures each schedule on two ranks, and writes the numbers into FILE.
"""

import json
import sys
from pathlib import Path

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
WIDTH, ROWS, LAYERS, WORDS = 128, 64, 2, 16  # of a layer, of a micro-batch, of a rank, and different ones


def layer(number: int) -> nn.Module:
    """It keeps its input and the result of SiLU for backward. The first one has the table of words, too."""
    tm.manual_seed(number)
    table = [] if number else [nn.Embedding(WORDS, WIDTH)]
    return nn.Sequential(*table, nn.SiLU(), nn.Linear(WIDTH, WIDTH, bias=False))


def train(schedule: str, count: int) -> float:
    """A step of so many micro-batches. Returns the mean loss on the last rank, 0 on others."""
    if not dist.is_initialized():
        dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = LAYERS if schedule == "interleaved" else 1  # stages of a rank
    like = tm.zeros(1).expand(ROWS, WIDTH)
    stages = []
    for place in range(rank, ranks * each, ranks):
        layers = [layer(place * LAYERS // each + i) for i in range(LAYERS // each)]
        stages.append(PipelineStage(nn.Sequential(*layers), place, ranks * each, str(like.device), like))
    kind = SCHEDULES[schedule]
    runs = kind(stages if each > 1 else stages[0], count, lambda y, target: y.mean())
    words = [tm.arange(count * ROWS) % WORDS] if rank == 0 else []
    losses: list[tm.Tensor] = []
    runs.step(*words, losses=losses, return_outputs=False)
    return sum(loss.item() for loss in losses) / count


if __name__ == "__main__":
    dist.init_process_group()
    found = {}
    for schedule in SCHEDULES:
        tm.device("cpu").pool.free_all_blocks()
        with memory.track() as track:
            last = train(schedule, 8)
        mine = tm.tensor([float(track.peak), float(track.pool().reserved), last], dtype=tm.float64)
        every = tm.zeros(dist.get_world_size(), 3, dtype=tm.float64)
        dist.all_gather_into_tensor(every, mine)
        found[schedule] = every.tolist()
        del mine, every
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
