"""The smallest recorded job: fit y = 3x - 1 to noisy points. Keep its order of things in your own."""

from __future__ import annotations

from pathlib import Path

import torch

from labassist import record


def main() -> None:
    # What to do: the numbers of train.toml with the run's overrides; by hand, the defaults.
    order = record.read_order(Path(__file__).with_name("train.toml"))
    config = order.config
    record.determinism.apply(order.mode, order.seed, order.threads)

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["optim"]["lr"])
    # All that a resume needs. The RNG is kept without asking; None says that there is no such state here.
    # The points come from the RNG, so the data position is the RNG's.
    states = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": None,
        "scaler": None,
        "data_position": None,
    }

    recorder = record.start(
        total_steps=config["steps"],
        tokens_per_step=config["batch"],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        order=order,
    )
    step = recorder.restore(states)
    while step < config["steps"] and not recorder.stop_requested:
        seeds = torch.randint(1 << 31, (config["batch"],))
        x = seeds.unsqueeze(1) / (1 << 30) - 1
        y = 3 * x - 1 + 0.1 * torch.randn_like(x)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        recorder.record(step, loss=loss.item(), lr=config["optim"]["lr"], batch=record.digest(seeds))
        if step % config["save_every"] == 0 or step == config["steps"] or recorder.stop_requested:
            recorder.save(step, states)
    recorder.finish(step, "done" if step == config["steps"] else "stop")
    print(f"step {step}: y = {model.weight.item():.3f} x + {model.bias.item():.3f}")


if __name__ == "__main__":
    main()
