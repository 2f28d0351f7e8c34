"""Whether a plan fits a card, and whether it still does with one sequence more.

    labassist run 05-memory/fit --set batch=4

Series of the one step: total_gib (as nvidia-smi would show), usable_gib (what the card gives), room_gib (what is
left of that with 2% of the total to spare, negative where it does not fit) and next_room_gib (with one more).
"""

from __future__ import annotations

from labassist import record
from labassist.planner import arch, cards, memory
from labassist.planner.plan import Plan


def main() -> None:
    """Ask the planner for this batch and the next."""
    order = record.read_order("labs/05-memory/fit.toml")
    c = order.config
    card = cards.find(c["card"])
    plan = Plan(
        arch.load(c["model"]),
        method=c["method"],
        seq=c["seq"],
        batch=c["batch"],
        checkpointing=c["checkpointing"],
    ).checked()
    this, more = memory.estimate(plan), memory.estimate(plan.with_(batch=plan.batch + 1))
    recorder = record.start(total_steps=1, parameters=plan.trainable, order=order)
    room, next_room = (card.usable_gib - one.total_gib * (1 + memory.MARGIN) for one in (this, more))
    recorder.record(
        1, total_gib=this.total_gib, usable_gib=card.usable_gib, room_gib=room, next_room_gib=next_room
    )
    recorder.finish(1)
    for estimate, batch in ((this, plan.batch), (more, plan.batch + 1)):
        answer = "fits" if estimate.fits(card) else "does not fit"
        print(f"batch {batch}: {estimate.total_gib:.2f} of {card.usable_gib:.2f} GiB, {answer} ({card.name})")


if __name__ == "__main__":
    main()
