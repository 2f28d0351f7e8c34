"""How near the planner comes to measured memory and time.

python bench/planner.py [ROWS.jsonl …] [--dry-run] [--write docs/accuracy.md]

ROWS are measured steps, one JSON object a line, as bench/memory_truth.py writes them. Without any, only the published
rows are compared. --dry-run needs the packages of labassist[train]; --dry-file keeps what it answered,
and asks again where the engine has changed since; alone it shows what is kept. --freeze keeps what the planner says now; --held-out shows it later.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import planner_page as page
from planner_rows import GIB, ROOT, Row, measured, once, published

from labassist.planner import arch, cards, dry, formula, memory
from labassist.planner import time as pace
from labassist.planner.plan import Plan

MEAN, WORST, DRY_MEAN = 0.05, 0.10, 0.02
FORMULA_S, DRY_S, DRY_BYTES, STEP_SHARE = 0.005, 60.0, 4e9, 0.2
CALIBRATED_ON = 20


def estimate(rows: Iterable[Row]) -> None:
    """Fill in what the formula says."""
    for row in rows:
        row.formula_total = memory.estimate(row.plan).total_gib
        row.formula_allocated = formula.peak(row.plan).total / GIB


def git(*words: str) -> str:
    """Return what git says in this checkout."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def dry_runs(rows: Iterable[Row], keep: Path | None, *, ask: bool) -> None:
    """Fill in what the dry run says: some ten seconds a row, unless `keep` has the answer of this engine."""
    engine = git("rev-parse", "HEAD:labassist/planner/dryrun")
    lines = keep.read_text().splitlines() if keep and keep.exists() else []
    known = {(one["engine"], one["key"]): one["answer"] for one in map(json.loads, lines)}
    for row in rows:
        if row.plan.gpus > 1:
            continue
        answer = known.get((engine, row.key))
        if answer is None:
            if not ask:
                continue
            answer = dry.run(row.plan)
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps({"engine": engine, "key": row.key, "answer": answer}) + "\n")
        made = dry.estimate_of(row.plan, answer)
        inside = sum(value for name, value in made.parts.items() if name not in ("context", "fragmentation"))
        row.dry_allocated, row.dry_total = inside / GIB, made.total_gib


def _used(row: Row) -> float:
    """Return the GiB that a step took at least."""
    return row.total if row.total is not None else row.allocated + memory.CONTEXT_GIB


def false_fits(rows: Iterable[Row]) -> list[str]:
    """Return each row and card where the planner says that what was measured to be too much fits."""
    wrong = []
    for row in rows:
        made = memory.estimate(row.plan)
        wrong += [
            f"{row.name} on {card.name}"
            for card in cards.known()
            if not row.oom and _used(row) > card.usable_gib and made.fits(card)
        ]
        if row.oom and made.fits(cards.find(page.CAP_CARD)):
            wrong.append(f"{row.name}, out of memory at {page.CAP_CARD}")
    return wrong


def tried(rows: list[Row]) -> str:
    """Return on how many rows `false_fits` rests."""
    alone = once(rows)
    lost = sum(row.oom for row in alone)
    counted = [sum(_used(row) > card.usable_gib for card in cards.known()) for row in alone if not row.oom]
    capped = sum(row.cap_gib is not None for row in rows)
    return (
        f"(it rests on {lost} steps that did run out of memory, of {capped} under a real cap of {page.CAP_CARD}, and on "
        f"{sum(map(bool, counted))} that ran and took more than some card of the table gives, {sum(counted)} pairs of step and card)"
    )


def formula_seconds() -> float:
    """Return the median time of one estimate."""
    plan = Plan(arch.load("qwen2.5-7b"), seq=2048, batch=2)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        memory.estimate(plan.checked())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def step_time() -> tuple[float, float]:
    """Record a run of the first lab's job; return seconds a step as calibrated on 20 steps, and as it went on."""
    from labassist.ledger.curves import read_curve
    from labassist.ledger.store import Ledger

    with tempfile.TemporaryDirectory(prefix="planner-") as name:
        folder = Path(name) / "workspace"
        command = [sys.executable, "-m", "labassist"]
        quiet: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
        subprocess.run([*command, "new", str(folder)], **quiet)
        size = ["--set=steps=120", "--set=model.d_model=128", "--set=model.layers=4"]
        words = ["run", "01-first-loop/train", "--profile", "tiny", *size, "--json"]
        run = json.loads(subprocess.run([*command, *words], cwd=folder, **quiet).stdout)
        with Ledger.open(folder / "ledger") as ledger:
            times = dict(read_curve(ledger.run_folder(run["id"]) / "metrics-rank0.jsonl").t)
    return calibrated(times)


def calibrated(times: dict[int, Any]) -> tuple[float, float]:
    """Return seconds a step as 20 steps say, and the median of those that came after them."""
    predicted = pace.calibrate(times, 0, steps=CALIBRATED_ON).step_s
    later = sorted(step for step in times if step > pace.WARM_UP + CALIBRATED_ON)
    gaps = [float(times[b]) - float(times[a]) for a, b in itertools.pairwise(later)]
    return predicted, statistics.median(gaps)


def summary(errors: Iterable[float]) -> str:
    """Return mean and worst of errors, in percent."""
    sizes = [abs(error) for error in errors]
    return f"mean {100 * statistics.mean(sizes):.2f}%, worst {100 * max(sizes):.2f}% of {len(sizes)}"


def dry_errors(rows: Iterable[Row]) -> list[float]:
    """Return the dry run's errors against the allocator, on rows without bitsandbytes."""
    return [
        row.dry_allocated / row.allocated - 1
        for row in once(list(rows))
        if row.dry_allocated is not None and not row.quantised and not row.oom
    ]


class Verdicts:
    """Prints PASS and FAIL lines and remembers them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ok = True

    def add(self, ok: bool, line: str, *, now: bool = True) -> None:
        """Print and keep one verdict; one on the planner as it was (`now` is False) decides nothing."""
        self._keep(f"{'PASS' if ok else 'FAIL'}  {line}")
        self.ok = self.ok and (ok or not now)

    def say(self, line: str) -> None:
        """Print and keep a line that is no verdict on the planner as it is."""
        self._keep(f"      {line}")

    def _keep(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)


def within(errors: list[float]) -> bool:
    """Say whether the formula's errors meet its bar."""
    sizes = [abs(error) for error in errors]
    return statistics.mean(sizes) <= MEAN and max(sizes) <= WORST


def bars(verdicts: Verdicts, rows: list[Row], what: str) -> None:
    """Check the formula's bar on some rows."""
    errors = [row.error for row in once(rows) if not row.oom]
    if errors:
        verdicts.add(within(errors), f"formula, {what}: {summary(errors)} (mean ≤ 5%, worst ≤ 10%)")


def held_out(verdicts: Verdicts, held: tuple[str, list[Row]]) -> None:
    """Say what the planner did on rows that it had not seen."""
    commit, rows = held[0], once(held[1])
    then = f"held out, planner of {commit}"
    ran = [row for row in rows if not row.oom]
    for gpus in sorted({row.plan.gpus for row in ran}):
        errors = [row.error for row in ran if row.plan.gpus == gpus]
        what = f"{then}, formula, {gpus} GPU{'s' * (gpus > 1)}: {summary(errors)}"
        verdicts.add(within(errors), f"{what} (mean ≤ 5%, worst ≤ 10%)", now=False)
    errors = dry_errors(rows)
    if errors:
        what = f"{then}, dry run, allocator, without bitsandbytes: {summary(errors)} (mean ≤ 2%)"
        verdicts.add(statistics.mean(map(abs, errors)) <= DRY_MEAN, what, now=False)
    lost = [row for row in rows if row.oom]
    if lost:
        wrong = sum(page.says_fits(row.formula_total) for row in lost)
        verdicts.add(
            not wrong, f"{then}: of {len(lost)} that ran out of memory, {wrong} called fitting (0)", now=False
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("rows", nargs="*", type=Path, help="measured rows, JSON lines")
    add("--dry-run", action="store_true", help="run the dry-run engine on every row too")
    add("--dry-file", type=Path, help="keep the dry run's answers here")
    add("--no-run", action="store_true", help="leave out the recorded run that tests `plan time`")
    add("--freeze", type=Path, help="write what the planner says of the rows now, and stop")
    add("--held-out", nargs="*", type=Path, default=[], help="files of --freeze, to be shown beside")
    add("--write", type=Path, help="write the page here")
    return parser.parse_args()


def main() -> int:
    options = parse()
    verdicts = Verdicts()
    given = [row for path in options.rows for row in measured(path)]
    rows = given if options.freeze else [*given, *published()]
    estimate(rows)
    if options.dry_run or options.dry_file:
        dry_runs(rows, options.dry_file, ask=options.dry_run)
    if options.freeze:
        page.frozen(options.freeze, rows, git("log", "-1", "--format=%h", "--", "labassist/planner"))
        return 0
    held = [page.thawed(path, given) for path in options.held_out]
    for one in held:
        held_out(verdicts, one)
    sources: dict[str, Callable[[Row], bool]] = {
        "measured rows": lambda row: row.source != "published",
        "published rows": lambda row: row.source == "published",
    }
    for what, belongs in sources.items():
        bars(verdicts, [row for row in rows if belongs(row)], what)
    wrong = false_fits(rows)
    verdicts.add(
        not wrong, f"never fits where it does not: {len(wrong)} wrong {tried(rows)}" + "; ".join(wrong)
    )
    seconds = formula_seconds()
    verdicts.add(seconds <= FORMULA_S, f"formula: {1000 * seconds:.3f} ms (≤ 5 ms)")
    if options.dry_run:
        began = time.perf_counter()
        dry.run(Plan(arch.load("qwen2.5-7b"), seq=2048, batch=2))
        took = time.perf_counter() - began
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        verdicts.add(
            took <= DRY_S and most <= DRY_BYTES,
            f"dry run of a 7B: {took:.0f} s, {most / 1e9:.2f} GB (≤ 60 s, 4 GB)",
        )
    errors = dry_errors(rows)
    if errors:
        ok = statistics.mean(map(abs, errors)) <= DRY_MEAN
        verdicts.add(ok, f"dry run, allocator, rows without bitsandbytes: {summary(errors)} (mean ≤ 2%)")
        whole = [
            row.dry_total / row.total - 1 for row in once(rows) if row.dry_total and row.total and not row.oom
        ]
        verdicts.say(f"dry run with the simulated allocator, nvidia-smi: {summary(whole)}")
    verdicts.say(page.times_summary(given))
    paces = [
        (row.name, *calibrated(dict(enumerate(itertools.accumulate(row.step_times, initial=0.0), 1))))
        for row in given
        if len(row.step_times) > 2 * CALIBRATED_ON
    ]
    if not options.no_run:
        paces.append(("the first lab's loop on this CPU", *step_time()))
    for name, predicted, real in paces:
        apart = abs(predicted / real - 1)
        verdicts.add(
            apart <= STEP_SHARE,
            f"time, {name}: {1000 * predicted:.1f} ms a step from 20 steps, {1000 * real:.1f} ms later, "
            f"{100 * apart:.0f}% apart (≤ 20%)",
        )
    if options.write:
        page.write(options.write, rows, verdicts.lines, held)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main())
