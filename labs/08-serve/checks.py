"""What each step of the serving lab must have shown, from recorded runs and the learner's files."""

from __future__ import annotations

import random
from typing import Any

from labassist.course.evidence import Evidence, Missing
from labassist.course.model import Criterion, Measured

MERGE, SERVER, BENCH = "finetune/merge", "serving/vllm", "serving/bench"
FOLDER = "outputs/served"
NEAR = 1e-9
APART = 0.05
"""Largest relative difference of logits: that of `labassist merge`."""
KEPT = 0.5
"""Share of the adapter's change (2-norm) that a rounding may move the weights by, and most of it is kept."""


def short(run: dict[str, Any]) -> str:
    """Return how a run is named in a source."""
    return f"run {run['id'].rpartition('-')[2]}"


def drawn(rows: int, columns: int, size: float, seed: int) -> list[list[float]]:
    """Return the random weights of layer.py."""
    draw = random.Random(seed)
    return [[draw.gauss(0, size) for _ in range(columns)] for _ in range(rows)]


def layer(found: Evidence) -> list[Criterion]:
    told = found.program(["layer.py", "--check"])
    a, b = drawn(2, 8, 0.1, 2), drawn(6, 2, 0.1, 3)
    columns = list(zip(*a, strict=True))
    wanted = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in b]
    pairs = zip(told["product"], wanted, strict=True)
    off = max(abs(x - y) for ours, theirs in pairs for x, y in zip(ours, theirs, strict=True))
    times = told["double"] / told["single"] if told["single"] else 0.0
    return [
        Criterion("B A is added to W", off < NEAR, "off by 0", f"off by {off:.3g}", "layer.py, alpha = r"),
        Criterion(
            "twice the alpha is twice the update",
            abs(times - 2) < NEAR,
            "2",
            f"{times:.3g}",
            "layer.py, alpha = 2 r",
        ),
    ]


def merge(found: Evidence) -> list[Criterion]:
    merges = found.runs(MERGE)
    made = [run for run in merges if any(one["path"] == FOLDER for one in run.get("outputs", []))] or merges
    if not made:
        raise Missing("nothing was merged yet", run=f"labassist merge @07-qlora/sft --out {FOLDER}")
    run = made[0]
    names = sorted(one["name"] for one in run.get("inputs", []))
    out = next((one for one in run.get("outputs", []) if one["path"] == FOLDER and one["sha256"]), None)
    return [
        Criterion(
            "its inputs are an adapter and a 16-bit base",
            {"adapter", "base"} <= set(names),
            "adapter, base",
            ", ".join(names) or "none",
            f"inputs of {short(run)}",
        ),
        Criterion(
            "outputs/served is in the ledger",
            out is not None,
            "a digest",
            f"{out['sha256'][:12]}…" if out else "none",
            f"outputs of {short(run)}",
        ),
    ]


def rounding(found: Evidence) -> list[Criterion]:
    run = found.run("rounding")
    values = {
        name: dict(found.series(run, name)) for name in ("merged_apart", "lost_16", "lost_4", "mb", "added")
    }
    apart, lost16, lost4 = (values[name][1] for name in ("merged_apart", "lost_16", "lost_4"))
    mb, added = values["mb"], values["added"]
    where = f"{short(run)} step 1"
    return [
        Criterion(
            "merged, it answers as base + adapter do",
            apart < APART,
            f"logits within {APART:.0%}",
            f"{apart:.2%}",
            where,
        ),
        Criterion(
            "16 bits keep what the adapter changed",
            lost16 < KEPT,
            f"{KEPT:.0%} lost at most",
            f"{lost16:.1%}",
            where,
        ),
        Criterion("4 bits lose it", lost4 > KEPT, f"more than {KEPT:.0%} lost", f"{lost4:.0%}", where),
        Criterion(
            "fewer bits, a smaller file",
            mb[1] > mb[2] > mb[3],
            "16, 8 and 4 bits falling",
            f"{mb[1]:.0f}, {mb[2]:.0f}, {mb[3]:.0f} MB",
            f"{short(run)} steps 1 to 3",
        ),
        Criterion(
            "4 bits cost more than 8",
            added[3] > added[2],
            f"above {added[2]:+.4f} nats a token",
            f"{added[3]:+.4f}",
            f"{short(run)} steps 2 and 3",
        ),
    ]


def measured_rounding(found: Evidence) -> Measured:
    run = found.run("rounding")
    four, sixteen = (dict(found.series(run, name))[1] for name in ("lost_4", "lost_16"))
    option = "a" if four < 0.2 else "b" if four < 0.6 else "c"
    return Measured(f"{four:.1f} times it in 4 bits, {sixteen:.2f} in 16", short(run), option)


def serve(found: Evidence) -> list[Criterion]:
    servers = found.runs(SERVER, any_state=True)
    if not servers:
        raise Missing(
            "nothing was served yet (without vLLM on this machine: labassist setup vllm)",
            run=f"labassist serve {FOLDER} --port 0 --enforce-eager --detach",
        )
    run = servers[0]
    model = next((one for one in run.get("inputs", []) if one["name"] == "model"), {})
    adapter = (model.get("split", {}).get("adapter") or {}).get("run", "")
    return [
        Criterion(
            "what is served was merged from an adapter",
            bool(adapter),
            "the run of an adapter",
            adapter or "none",
            f"inputs of {short(run)}",
        )
    ]


def measurement(found: Evidence) -> dict[str, Any]:
    """Return the newest measurement of one and of four at a time."""
    for run in found.runs(BENCH):
        if run["config"].get("concurrency") == "1,4":
            return run
    raise Missing(
        "no measurement of one and of four at a time yet",
        run="labassist bench-serve @vllm --requests 16 --concurrency 1,4 --max-tokens 9",
    )


def load(found: Evidence) -> list[Criterion]:
    run = measurement(found)
    answered = [value for _step, value in found.series(run, "answered")]
    one, four = (value for _step, value in found.series(run, "tokens_per_s"))
    server = next((given for given in run.get("inputs", []) if given["name"] == "server"), {})
    named, wanted = server.get("split", {}).get("run", ""), run["config"]["requests"]
    return [
        Criterion(
            "every request was answered",
            answered == [wanted, wanted],
            f"{wanted}, {wanted}",
            ", ".join(f"{value:g}" for value in answered),
            f"{short(run)}, answered",
        ),
        Criterion(
            "its input is the server's run",
            bool(named),
            "the run of a server",
            named or "none",
            f"inputs of {short(run)}",
        ),
        Criterion(
            "four at a time write more tokens a second",
            four > one,
            f"above {one:.1f}",
            f"{four:.1f}",
            f"{short(run)}, tokens_per_s",
        ),
    ]


def measured_load(found: Evidence) -> Measured:
    run = measurement(found)
    one, four = (value for _step, value in found.series(run, "tokens_per_s"))
    first, second = (value for _step, value in found.series(run, "e2el_p50"))
    more, longer = four / one, second / first
    option = "a" if more < 1.2 else "c" if more > 3.5 and longer < 1.1 else "b"
    told = f"{more:.1f} times the tokens a second, an answer takes {longer:.1f} times as long"
    return Measured(told, short(run), option)


def stop(found: Evidence) -> list[Criterion]:
    servers = [run for run in found.runs(SERVER, any_state=True) if run["state"] != "running"]
    if not servers:
        raise Missing("the server was not stopped yet", run="labassist stop @vllm --wait")
    run = servers[0]
    ended = run.get("ended", "")
    return [Criterion("its end is recorded", bool(ended), "a time", ended or "none", short(run))]


def tail(found: Evidence) -> list[Criterion]:
    told = found.program(["tail.py", "--check"])
    slow = sum(one > 1 for one in told["waited"])
    return [
        Criterion(
            "a percentile lies between its neighbours",
            (told["percentile"], told["p95"]) == (2.5, 9.5),
            "2.5 and 9.5",
            f"{told['percentile']} and {told['p95']}",
            "tail.py",
        ),
        Criterion(
            "a stall is met by all that were due in it",
            slow == 6,
            "6 of 10 wait more than a second",
            f"{slow} of {len(told['waited'])}",
            "tail.py",
        ),
    ]


def timed(found: Evidence) -> dict[str, Any]:
    """Return the run of the speed step. Raises Missing where it was made without vLLM."""
    run = found.run("speed")
    if "tokens_per_s" not in run["last"]:
        raise Missing(
            f"{short(run)} was made without vLLM (labassist setup vllm makes its environment)",
            run="labassist run 08-serve/speed --profile tiny",
        )
    return run


def speed(found: Evidence) -> list[Criterion]:
    run = timed(found)

    def within(name: str, series: str) -> Criterion:
        low, value, high = (
            [one for _step, one in found.series(run, f"{series}{end}")] for end in ("_low", "", "_high")
        )
        spans = list(zip(low, value, high, strict=True))
        # The mean of sums is not summed in the same order twice: room for the last bits.
        ok = all(a - NEAR <= b <= c + NEAR for a, b, c in spans)
        told = ", ".join(f"{b:.2f} ({a:.2f}-{c:.2f})" for a, b, c in spans)
        return Criterion(name, ok, "each within its interval", told, f"{short(run)}, {series}")

    return [
        within("both were asked in turn, with an interval", "tokens_per_s"),
        within("the work a token was measured too", "work"),
        within("nf4 was held against 16 bits in transformers", "nf4_longer"),
    ]


def measured_speed(found: Evidence) -> Measured:
    run = timed(found)
    at = next(step for step, bits in found.series(run, "bits") if bits == 4)
    value, low, high = (dict(found.series(run, f"faster{end}"))[at] for end in ("", "_low", "_high"))
    option = "a" if low > 1 else "c" if high < 1 else "b"
    return Measured(f"{value:.2f} of 16 bits' pace ({low:.2f}-{high:.2f})", short(run), option)
