"""How fast the ledger appends, opens, lists and searches, beside plain TinyDB and MLflow on the same runs.

    python bench/ledger_store.py [--runs 10000] [--points 2000] [--plain 1000] [--mlflow 1000] [--json FILE]

Prints a PASS or FAIL line for each promise, then a table, and exits 1 when a promise fails. Every append is fsynced, and
each run has a folder with a curve of `--points`. Plain TinyDB rewrites its whole file at each insert, so it gets fewer
documents, and its time at `--runs` documents is measured by a few inserts into a file that holds them already. MLflow
(where it is installed: mlflow-skinny, sqlalchemy, alembic) keeps `--mlflow` runs in its SQLite store, with the same
parameters and last values; its curves of `--points` are given to a few runs only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinydb import TinyDB, where

from labassist import record
from labassist.ledger.store import Ledger, new_run_id

APPEND_P50_S = 0.005
OPEN_AND_LIST_S = 0.6
REBUILD_AND_LIST_S = 1.0
SEARCH_S = 0.3
REPEATS = 5


def document(i: int) -> dict[str, Any]:
    """Return a run document of about 1 KB, shaped as `records.Run`."""
    return {
        "id": f"20260101-{i:06d}-{i * 2654435761 % 2**24:06x}",
        "job": "01-first-loop/train",
        "kind": "job",
        "state": ("finished", "failed", "stopped", "finished")[i % 4],
        "mode": "exact",
        "seed": i,
        "created": "2026-01-01T00:00:00.000Z",
        "argv": ["python", "labs/01-first-loop/train.py"],
        "cwd": ".",
        "machine": {"id": "0123456789abcdef0123456789abcdef", "host": "rented-box", "inode": 1000 + i},
        "code": {
            "vcs": "git",
            "commit": f"{i:040x}",
            "branch": "main",
            "digest": f"{i:064x}",
            "package": "a" * 64,
        },
        "config": {"model.layers": 4, "model.width": 128, "optim.lr": 1e-4 * (i % 50), "loop.batch": 12},
        "env": "b" * 64,
        "environment": "c" * 64,
        "hardware": "d" * 64,
        "versions": {"python": "3.12.3", "torch": "2.13.0", "labassist": "0.1.0"},
        "step": 2000,
        "seconds": 123.456,
        "last": {"loss": 1.2345678 + i / 1e5, "lr": 1e-5, "grad_norm": 0.71},
    }


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def best(work: Callable[[], Any]) -> float:
    """Return the median of a few times."""
    return statistics.median(seconds(work) for _ in range(REPEATS))


def opening(folder: Path) -> dict[str, float]:
    """Time opening and listing in a fresh interpreter, its imports not counted."""
    code = (
        "import json, resource, sys, time\n"
        "from pathlib import Path\n"
        "from labassist.ledger.store import Ledger\n"
        "began = time.perf_counter()\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "opened = time.perf_counter()\n"
        "count = len(ledger.runs.all())\n"
        "listed = time.perf_counter()\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "print(json.dumps({'open_s': opened - began, 'open_list_s': listed - began, 'peak_mib': peak}))\n"
    )
    results = []
    for _ in range(REPEATS):
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
        )
        results.append(json.loads(done.stdout))
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def measure_ledger(folder: Path, runs: int, points: int) -> dict[str, Any]:
    ledger = Ledger.open(folder, create=True)
    documents = [document(i) for i in range(runs)]
    curve = curve_of(points)
    for row in documents:
        place = ledger.run_folder(row["id"])
        place.mkdir(parents=True)
        (place / "metrics-rank0.jsonl").write_bytes(curve)
    appends = [seconds(lambda row=row: ledger.write("start", row)) for row in documents]  # type: ignore[misc]
    numbers: dict[str, Any] = {
        "document_bytes": len(json.dumps(documents[0], separators=(",", ":"))),
        "append_p50_s": statistics.median(appends),
        "append_p99_s": statistics.quantiles(appends, n=100)[98],
        "append_last_p50_s": statistics.median(appends[-500:]),
        "without_view": opening(folder),
        "save_view_s": seconds(ledger.save_view),
        "with_view": opening(folder),
        "verify_s": best(ledger.journal.verify),
    }
    queries = [
        where("state") == "failed",
        where("config")["optim.lr"] > 1e-3,
        where("id") == documents[-1]["id"],
    ]

    def search() -> None:
        for query in queries:
            ledger.runs.clear_cache()
            assert ledger.runs.search(query)

    numbers["search_s"] = best(search) / len(queries)
    numbers["find_s"] = best(lambda: ledger.find(documents[runs // 2]["id"][-6:]))
    assert ledger.runs.all() == documents
    numbers["whole_run_s"] = best(lambda: whole_run(ledger, points))
    return numbers


def curve_of(points: int) -> bytes:
    """Return a curve as a trainer writes it."""
    rows = (
        {"step": n, "t": n / 100, "loss": 1 / n, "lr": 0.001, "grad_norm": n / 7, "batch": f"{n:016x}"}
        for n in range(1, points + 1)
    )
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def whole_run(ledger: Ledger, points: int) -> None:
    """Record one run from its start to its end: two entries, `points` calls of record(), the snapshot written anew."""
    run_id = new_run_id()
    folder = ledger.run_folder(run_id)
    folder.mkdir()
    order = {"protocol": 1, "run": run_id, "job": "x", "mode": "exact", "seed": 1, "threads": 1, "config": {}}
    (folder / "order.json").write_text(json.dumps(order))
    os.environ["LABASSIST_RUN_DIR"] = str(folder)
    row = {**document(1), "id": run_id}
    ledger.write("start", row)
    recorder = record.start(total_steps=points)
    for step in range(1, points + 1):
        recorder.record(step, loss=1 / step, lr=0.001, grad_norm=step / 7, batch=f"{step:016x}")
    recorder.finish(points)
    ledger.write("end", {**row, "state": "stopped"})


def measure_mlflow(path: Path, runs: int, points: int) -> dict[str, Any] | None:
    """Do the same work with MLflow's SQLite store; None where MLflow is not installed."""
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError:
        return None
    client = MlflowClient(f"sqlite:///{path}")
    experiment = client.create_experiment("bench")

    def start(i: int) -> str:
        row = document(i)
        name: str = client.create_run(experiment, tags={"commit": row["code"]["commit"]}).info.run_id
        client.log_batch(
            name,
            params=[Param(key, str(value)) for key, value in row["config"].items()],
            metrics=[Metric(key, value, 0, 2000) for key, value in row["last"].items()],
        )
        client.set_terminated(name, "FAILED" if i % 4 == 1 else "FINISHED")
        return name

    appends = [seconds(lambda i=i: start(i)) for i in range(runs)]  # type: ignore[misc]

    def whole() -> None:
        name = start(runs)
        values = [
            Metric(key, value, step, step)
            for step in range(1, points + 1)
            for key, value in (("loss", 1 / step), ("lr", 0.001), ("grad_norm", step / 7))
        ]
        for at in range(0, len(values), 1000):
            client.log_batch(name, metrics=values[at : at + 1000])

    return {
        "runs": runs,
        "append_p50_s": statistics.median(appends),
        "open_list_s": best(
            lambda: MlflowClient(f"sqlite:///{path}").search_runs([experiment], max_results=50_000)
        ),
        "search_s": best(
            lambda: client.search_runs([experiment], "attributes.status = 'FAILED'", max_results=50_000)
        ),
        "whole_run_s": best(whole),
    }


def measure_plain(path: Path, plain: int, runs: int) -> dict[str, Any]:
    db = TinyDB(path)
    appends = [seconds(lambda i=i: db.insert(document(i))) for i in range(plain)]  # type: ignore[misc]
    db.insert_multiple(document(i) for i in range(plain, runs))
    at_runs = [seconds(lambda i=i: db.insert(document(runs + i))) for i in range(REPEATS)]  # type: ignore[misc]
    db.close()
    return {
        "inserts": plain,
        "append_p50_s": statistics.median(appends),
        "append_at_all_runs_s": statistics.median(at_runs),
        "open_list_s": best(lambda: TinyDB(path).all()),
        "search_s": best(lambda: TinyDB(path).search(where("state") == "failed")),
    }


def table(
    runs: int, points: int, ours: dict[str, Any], plain: dict[str, Any], theirs: dict[str, Any] | None
) -> None:
    """Print the table that stands in docs/keeping.md."""
    last = f"MLflow, SQLite, {theirs['runs']:,} runs" if theirs else "MLflow: not installed"
    print(f"\n| | ledger, {runs:,} runs | plain TinyDB, {runs:,} documents | {last} |\n|---|---|---|---|")
    there = theirs or {}
    rows = [
        ("append", ours["append_p50_s"], plain["append_at_all_runs_s"], there.get("append_p50_s")),
        ("open and list", ours["with_view"]["open_list_s"], plain["open_list_s"], there.get("open_list_s")),
        ("search", ours["search_s"], plain["search_s"], there.get("search_s")),
        (f"a run of {points:,} points, start to end", ours["whole_run_s"], None, there.get("whole_run_s")),
    ]
    for what, *values in rows:
        cells = " | ".join("-" if value is None else f"{value * 1e3:,.1f} ms" for value in values)
        print(f"| {what} | {cells} |")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--plain", type=int, default=1_000, help="inserts one by one into plain TinyDB")
    parser.add_argument("--points", type=int, default=2_000, help="of each run's curve")
    parser.add_argument("--mlflow", type=int, default=1_000, help="runs for MLflow")
    parser.add_argument("--json", type=Path, help="keep the numbers in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        ours = measure_ledger(Path(name) / "ledger", options.runs, options.points)
        plain = measure_plain(Path(name) / "plain.json", min(options.plain, options.runs), options.runs)
        theirs = measure_mlflow(Path(name) / "mlflow.db", options.mlflow, options.points)
    for title, numbers in (("ledger", ours), ("plain TinyDB", plain)):
        print(f"{title}: {json.dumps(numbers, default=str)}")
    print(
        f"(plain TinyDB was given {plain['inserts']} single inserts, then the rest at once: it is too slow for more)"
    )
    checks = [
        ("append p50, fsynced", ours["append_p50_s"], APPEND_P50_S),
        ("open + list with view.json", ours["with_view"]["open_list_s"], OPEN_AND_LIST_S),
        ("open + list from the journal alone", ours["without_view"]["open_list_s"], REBUILD_AND_LIST_S),
        ("search", ours["search_s"], SEARCH_S),
    ]
    for what, took, limit in checks:
        word = "PASS" if took < limit else "FAIL"
        print(f"{word} {what} at {options.runs} runs: {took * 1e3:.2f} ms (limit {limit * 1e3:.0f} ms)")
    table(options.runs, options.points, ours, plain, theirs)
    if options.json:
        result = {
            "runs": options.runs,
            "points": options.points,
            "cpus": os.cpu_count(),
            "ledger": ours,
            "plain_tinydb": plain,
            "mlflow": theirs,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(took < limit for _, took, limit in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
