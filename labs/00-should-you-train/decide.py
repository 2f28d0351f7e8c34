"""Train or not: what is known of a case, the four conditions, and what to try in order. A record, no verdict.

    labassist run 00-should-you-train/decide                        recorded
    python labs/00-should-you-train/decide.py --thresholds          what the check of the thresholds reads

Series of the one step: conditions, met, unmet, open. The whole record is printed, and kept in the run's log.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from labassist import record
from labassist.planner import decide
from labassist.planner.report import decide_text

NUMBERS = (
    "examples",
    "sample",
    "errors",
    "prompt_score",
    "target_score",
    "eval_size",
    "people_hours",
    "machine_hours",
    "budget_hours",
)


def facts(config: dict[str, Any]) -> decide.Facts:
    """Return the facts of a configuration; -1 is not known."""
    known = {name: None if config[name] < 0 else config[name] for name in NUMBERS}
    return decide.Facts(**known, facts_change={"yes": True, "no": False}.get(config["facts_change"]))


def main() -> None:
    """Weigh the case, print the record and count its conditions."""
    order = record.read_order("labs/00-should-you-train/decide.toml")
    path = order.input("thresholds", order.config["thresholds"])
    answer = decide.record(facts(order.config), path)
    recorder = record.start(total_steps=1, order=order)
    states = [one["state"] for one in answer["conditions"]]
    counts = {"met": states.count("met"), "unmet": states.count("not met"), "open": states.count("open")}
    recorder.record(1, conditions=len(states), **counts)
    recorder.finish(1)
    print(decide_text(answer))
    print(f"\nbecause: {order.config['why'] or '(no reason is written yet)'}")


if __name__ == "__main__":
    if "--thresholds" in sys.argv:
        print(json.dumps(decide.thresholds(Path(__file__).parent / "thresholds.toml")))
    else:
        main()
