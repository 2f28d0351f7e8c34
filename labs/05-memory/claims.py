"""Compute again what can be of the articles' claims about memory, time and samples.

    labassist run 05-memory/claims

Series of the one step: claims (in the table), computed (of them computed here), agree (that agree with the table).
"""

from __future__ import annotations

from labassist import record
from labassist.planner import claims


def main() -> None:
    """Compute, compare, count."""
    order = record.read_order("labs/05-memory/claims.toml")
    recorder = record.start(total_steps=1, order=order)
    table, checked = claims.claims(), claims.verify()
    agree = sum(one["agrees"] for one in checked)
    recorder.record(1, claims=len(table), computed=len(checked), agree=agree)
    recorder.finish(1)
    by_id = {one["id"]: one for one in checked}
    for claim in table:
        again = by_id.get(claim.id)
        mark = (
            ""
            if again is None
            else "computed again: agrees"
            if again["agrees"]
            else "computed again: differs"
        )
        print(f"\n{claim.claim}\n  {claim.verdict}: {claim.corrected}\n  {mark}".rstrip())
    print(f"\n{agree} of {len(checked)} that can be computed agree; {len(table)} claims in all.")


if __name__ == "__main__":
    main()
