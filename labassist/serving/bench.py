"""Measure a server that answers as OpenAI's does: latencies with intervals, rates, failures.

    labassist bench-serve http://127.0.0.1:8000 --concurrency 1,8

runs this module as a recorded run: a step is a request that has ended, and the last step of a load holds its row.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from labassist import record
from labassist.errors import InputError, LabError
from labassist.record.durable import replace_file
from labassist.record.inspect import workspace_of
from labassist.record.protocol import Order, read_order
from labassist.serving import bench_client, bench_load, bench_options, bench_prompts, bench_stats, bench_text
from labassist.serving.bench_client import ERRORS, Sample, Target
from labassist.serving.bench_load import Load

JOB = "serving/bench"
"""What a measurement is called in the ledger."""
REQUEST = (
    "request",
    "at",
    "rate",
    "concurrency",
    "error",
    "ttft_ms",
    "e2el_ms",
    "tpot_ms",
    "tokens_in",
    "tokens_out",
)
"""The series of single requests. `error` is 0, or the place of its kind in ERRORS, from 1."""
COUNTS = ("request", "concurrency", "error", "tokens_in", "tokens_out")
"""Those of them that are whole numbers."""
OPEN_WARMUP = 4
STOPPED = 130


def options() -> argparse.ArgumentParser:
    """Return the options that say what is measured; the command line has the same."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    bench_options.add_to(parser)
    return parser


def loads(args: argparse.Namespace) -> list[tuple[int, float]]:
    """Return (concurrency, 0) or (0, rate) of each load. Raises InputError on what is no number of that kind."""
    for name in ("requests", "max_tokens", "timeout"):
        if not 0 < getattr(args, name) < 10**7:
            raise InputError("has to be above 0", where=f"--{name.replace('_', '-')} {getattr(args, name)}")
    if args.warmup is not None and args.warmup < 0:
        raise InputError("cannot be negative", where=f"--warmup {args.warmup}")
    if args.rate:
        if args.concurrency:
            raise InputError(
                "requests come at a rate or so many at a time", where="--rate", mend="leave --concurrency out"
            )
        if not 0 < args.rate <= 10_000:
            raise InputError("is no rate", where=f"--rate {args.rate:g}", mend="give requests a second")
        return [(0, args.rate)]
    words = (args.concurrency or "8").split(",")
    numbers = [int(word) if word.strip().isdecimal() else 0 for word in words]
    if not all(0 < number <= bench_load.MOST_AT_ONCE for number in numbers):
        raise InputError(
            f"is no list of whole numbers from 1 to {bench_load.MOST_AT_ONCE}",
            where=f"--concurrency {args.concurrency}",
            mend="give it as 1,4,16",
        )
    return [(number, 0.0) for number in numbers]


def chosen(where: Target, name: str) -> dict[str, Any]:
    """Return what the server says of the model that is asked. Raises InputError where it has none of that name."""
    served = bench_client.models(where)
    if not served:
        raise InputError("this server serves no model", where=where.url)
    found = next((one for one in served if one["id"] == (name or served[0]["id"])), None)
    if found is None:
        names = ", ".join(one["id"] for one in served[:8])
        raise InputError(f"does not serve {name!r}", where=where.url, mend=f"it serves {names}")
    return found


def ready(args: argparse.Namespace, url: str) -> list[str]:
    """Return the models that are served there.

    Raises InputError on whatever would end a measurement at its start: options, the prompts, the server.
    """
    loads(args)
    where = bench_client.target(url)
    chosen(where, args.model)
    if args.prompts:
        bench_prompts.of_file(Path(args.prompts).expanduser(), args.seed)
    return [str(one["id"]) for one in bench_client.models(where)]


class Measurement:
    """One run of the benchmark: its loads one after the other, each request and each row recorded."""

    def __init__(self, args: argparse.Namespace, order: Order) -> None:
        self.args, self.loads = args, loads(args)
        self.where = bench_client.target(args.url)
        served = chosen(self.where, args.model)
        self.model = str(served["id"])
        if args.server:
            self.where = replace(self.where, alone=self.model)
        self.context = int(served.get("max_model_len") or 0)
        self.prompts, self.told = self._prompts(order)
        self.result: dict[str, Any] = {
            "run": order.run,
            "url": self.where.url,
            "api": self.where.api,
            "model": self.model,
            "max_tokens": args.max_tokens,
            "seed": args.seed,
            "prompts": self.told,
            "loads": [],
        }
        self.recorder = record.start(
            total_steps=args.requests * len(self.loads),
            order=order,
            config={
                "url": self.where.url,
                "model": self.model,
                "requests": args.requests,
                "concurrency": ",".join(str(one) for one, _rate in self.loads if one),
                "rate": args.rate,
                "max_tokens": args.max_tokens,
                "ignore_eos": args.ignore_eos,
                "seed": args.seed,
                "warmup": self.warmup,
                "timeout": args.timeout,
                "prompts": self.told,
            },
        )
        self.step = 0
        self.gone = ""
        """How the server left, where it did."""

    @property
    def warmup(self) -> int:
        """Return how many requests are sent before any is counted."""
        if self.args.warmup is not None:
            return int(self.args.warmup)
        return max(most for most, _rate in self.loads) or OPEN_WARMUP

    def _prompts(self, order: Order) -> tuple[list[bench_prompts.Prompt], str]:
        """Return other prompts for each load, so that none meets what a server has kept of an earlier one."""
        a = self.args
        count = self.warmup + a.requests * len(self.loads)
        if not a.prompts:
            longest = bench_prompts.longest(self.context, a.max_tokens)
            told = f"our own, {bench_prompts.SHORTEST} to {longest} words and no two alike, seed {a.seed}"
            return bench_prompts.own(count, a.seed, longest), told
        path = order.input("prompts", a.prompts)
        found = bench_prompts.of_file(path, a.seed)
        told = f"{len(found)} of {a.prompts}, in an order by seed {a.seed}"
        if count > len(found):
            told += f", again and again for {count} requests: what a server keeps of a prompt makes it look faster"
        return [found[at % len(found)] for at in range(count)], told

    def run(self) -> int:
        """Measure every load and return the status: 1 where one has failed, STOPPED when asked to stop before the end."""
        bodies = [
            bench_prompts.body(
                one, self.where, self.model, self.args.max_tokens, ignore_eos=self.args.ignore_eos
            )
            for one in self.prompts
        ]
        if self.warmup:
            most = self.loads[0][0] or OPEN_WARMUP
            for sample in self._drive(bodies[: self.warmup], most, 0.0):
                if sample.error:
                    print(f"labassist: warming up: {sample.error}: {sample.detail}", flush=True)
        for number, (most, rate) in enumerate(self.loads):
            if self.recorder.stop_requested:
                break
            begin = self.warmup + number * self.args.requests
            self._load(bodies[begin : begin + self.args.requests], most, rate)
            if self.gone:
                break
        failures = [
            f"{bench_text.title(row)}: {row['failure']}" for row in self.result["loads"] if row["failure"]
        ]
        failure = "; ".join(failures)
        self.recorder.finish(self.step, "stop" if self.recorder.asked else failure or "done")
        return STOPPED if self.recorder.asked else 1 if failure else 0

    def _drive(self, bodies: list[bytes], most: int, rate: float) -> Any:
        load = Load(self.where, bodies, most, rate, self.args.timeout, self.args.seed)
        return bench_load.drive(load, lambda: bool(self.recorder.asked))

    def _load(self, bodies: list[bytes], most: int, rate: float) -> None:
        samples: list[Sample] = []
        busy, began = time.process_time(), time.perf_counter()
        for sample in self._drive(bodies, most, rate):
            samples.append(sample)
            self.step += 1
            self.recorder.record(self.step, **_values(sample, most, rate))
        core = (time.process_time() - busy) / (time.perf_counter() - began)
        late = [1000 * (one.started - one.scheduled) for one in samples]
        client = {"core": core, "late_ms": bench_stats.percentile(late, 99) if late else 0.0}
        row = {
            "concurrency": most,
            "rate": rate,
            **bench_stats.summarise(
                samples, rate=rate, asked=len(bodies), client=client, seed=self.args.seed
            ),
            # Of each kind of failure, what one of them said.
            "details": {one.error: one.detail for one in reversed(samples) if one.error},
        }
        self.result["loads"].append(row)
        if samples:
            self.recorder.record(self.step, **_row_values(row))
        if row["failure"] and not self.recorder.asked:
            try:
                bench_client.models(self.where)
            except InputError as error:
                self.gone = f"the server went away: {error.what}"
                row["failure"] = f"{row['failure']}; {self.gone}"
        for line in [row["failure"], *row["warnings"]] if row["failure"] else row["warnings"]:
            self.recorder.order.warn(f"{bench_text.title(row)}: {line}")


def _values(sample: Sample, most: int, rate: float) -> dict[str, Any]:
    """Return what is recorded of one request; times are in ms from its scheduled start, `at` in s from the load's."""
    found: dict[str, Any] = {"request": sample.index, "at": round(sample.scheduled, 6)}
    found |= {"rate": rate} if rate else {"concurrency": most}
    if sample.error:
        return {**found, "error": 1 + ERRORS.index(sample.error)}
    found |= {"error": 0, "ttft_ms": round(1000 * sample.ttft, 3), "e2el_ms": round(1000 * sample.e2el, 3)}
    if sample.tpot is not None:
        found["tpot_ms"] = round(1000 * sample.tpot, 3)
    return {**found, "tokens_in": sample.tokens_in, "tokens_out": sample.tokens_out}


def _row_values(row: dict[str, Any]) -> dict[str, float]:
    """Return what is recorded of a load at its last step: percentiles and rates, with their intervals where the sample has them."""
    found = {
        "answered": row["completed"],
        "failed": sum(row["errors"].values()),
        "requests_per_s": round(row["request_throughput"], 4),
    }
    spans = {
        f"{key[:-3]}_p{percent}": row[key].get(f"p{percent}")
        for key in ("ttft_ms", "e2el_ms")
        for percent in (50, 95, 99)
    }
    spans["tokens_per_s"] = row["output_throughput"]
    for name, span in spans.items():
        if span:
            found[name] = round(span["value"], 3)
            if span["low"] is not None:
                found |= {f"{name}_low": round(span["low"], 3), f"{name}_high": round(span["high"], 3)}
    return found


def main() -> int:
    """Measure one server; `labassist bench-serve` runs this as a recorded run."""
    parser = argparse.ArgumentParser(
        prog="python -m labassist.serving.bench", description=main.__doc__, parents=[options()]
    )
    parser.add_argument("url")
    parser.add_argument("--server", default="", metavar="RUN", help="the recorded run of the server")
    parser.add_argument("--out", type=Path, required=True, help="where the result is written, as JSON")
    args = parser.parse_args()
    order = read_order()
    try:
        if args.server and order.folder:
            root = workspace_of(order.folder)
            place = order.folder.parent / args.server / "order.json"
            order.input("server", place.relative_to(root), {"run": args.server, "url": args.url})
        measurement = Measurement(args, order)
    except LabError as error:
        print(f"labassist: {error}", file=sys.stderr)
        return error.status
    status = measurement.run()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    ignore = args.out.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("# Made by labassist: measurements are no source.\n*\n")
    replace_file(args.out, json.dumps(measurement.result, indent=1).encode() + b"\n")
    print(bench_text.text(measurement.result), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
