"""A loop of its own on several ranks (gloo), recorded with `record.start`: DDP, dropout, a sampler a rank."""

import os
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from labassist import record

STEPS, BATCH, ROWS = int(os.environ.get("STEPS", "24")), 4, 64
EVERY = int(os.environ.get("EVERY", "6"))


class Rows:
    """Draws this rank's rows of every global batch from one order that all ranks share."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.drawn = rank, ranks, 0

    def draw(self):
        each = ROWS // (BATCH * self.ranks)
        epoch, at = divmod(self.drawn, each)
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))
        self.drawn += 1
        begin = (at * self.ranks + self.rank) * BATCH
        return order[begin : begin + BATCH]

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


def main():
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    order = record.read_order()
    # Each rank draws masks of its own.
    record.determinism.apply(order.mode, order.seed + rank * ("alike" not in sys.argv), order.threads)
    draw = torch.Generator().manual_seed(5)
    x, y = torch.randn(ROWS, 8, generator=draw), torch.randn(ROWS, 1, generator=draw)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rows = Rows(rank, ranks)
    recorder = record.start(total_steps=STEPS, order=order)
    states = {
        "model": net, "optimizer": optimizer, "scheduler": schedule, "scaler": None, "data_position": rows,
    }  # fmt: skip
    step = recorder.restore(states)
    while step < STEPS and not recorder.stop_requested:
        step += 1
        at = rows.draw()
        loss = (model(x[at]) - y[at]).pow(2).mean()
        loss.backward()
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        recorder.record(step, loss=float(loss), lr=rate, batch=record.digest(at))
        if step % EVERY == 0 or recorder.stop_requested:
            recorder.save(step, states)
        if step == 13 and os.path.exists("crash"):
            recorder.wait()
            os._exit(3)
    recorder.finish(step, "done" if step == STEPS else "stop")
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # trainers under torchrun have been seen to abort at the interpreter's end


if __name__ == "__main__":
    main()
