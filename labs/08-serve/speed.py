"""How fast the same model answers in 16, 8 and 4 bits: each on a vLLM server of its own, asked in turn.

labassist run 08-serve/speed --profile tiny

In turn, because a machine has better and worse minutes: what is compared was measured in the same ones. bitsandbytes'
nf4, which vLLM does not compute on a CPU, is held against 16 bits in transformers, token by token.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from labassist import record
from labassist.errors import InputError
from labassist.finetune import load, models
from labassist.record.inspect import workspace_of
from labassist.serving import bench_client, bench_load, bench_prompts, bench_stats, place, server
from labassist.serving.bench_client import Sample
from labassist.serving.bench_load import Load
from labassist.serving.start import ENV

OUT = Path("outputs/08-serve")
BITS = {"16": 16, "int8": 8, "int4": 4}
START_S = 420.0

# ---------------------------------------------------------------------------- servers


@contextlib.contextmanager
def serving(
    engine: place.Engine, folder: Path, context: int, threads: int, log: Path
) -> Iterator[tuple[Any, str]]:
    """Start a server; give its process and its address, and end it in any case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(engine.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    words += ["--served-model-name", "it", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    words += ["--max-model-len", str(context)]
    settings = {**ENV, "OMP_NUM_THREADS": str(threads)}
    if engine.cpu:
        settings |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    else:
        settings |= {}
    with log.open("wb") as out:
        child = subprocess.Popen(
            words,
            env=server.environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield child, f"http://127.0.0.1:{port}"
    finally:
        everyone = [child, *children(child.pid)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in everyone:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    one.send_signal(number)
            gone = time.monotonic() + 20
            while time.monotonic() < gone and (child.poll() is None or any(map(lives, everyone[1:]))):
                time.sleep(0.2)


def children(pid: int) -> list[psutil.Process]:
    """Return all processes that a process has started, and theirs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def lives(one: psutil.Process) -> bool:
    """Say whether a process still computes."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    return False


def await_ready(child: Any, url: str, log: Path) -> None:
    """Wait until a server answers. Raises InputError with its last line where it dies or takes too long."""
    where = bench_client.target(url)
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and child.poll() is None:
        if server.answers(where.host, where.port):
            return
        time.sleep(0.5)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    raise InputError(f"does not come up: {lines[-1] if lines else 'no word'}", where=str(log))


def worked(child: Any) -> float:
    """Return the CPU seconds that a server's processes have taken so far."""
    total = 0.0
    for one in [psutil.Process(child.pid), *children(child.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def room(count: int, each_gib: float) -> None:
    """Raise InputError where so many servers do not fit into memory side by side."""
    free = psutil.virtual_memory().available / 2**30
    if free < count * each_gib:
        raise InputError(
            f"{count} servers take about {count * each_gib:.0f} GiB of memory, and {free:.1f} are free",
            where="variants",
            mend="--set variants=16,int4, or end other programs",
        )


# ---------------------------------------------------------------------------- what is measured


def one_round(url: str, c: dict[str, Any], seed: int) -> list[Sample]:
    """Ask a server the round's requests; every variant is asked the same."""
    where = bench_client.target(url)
    prompts = bench_prompts.own(c["requests"], seed, bench_prompts.longest(c["context"], c["tokens"]))
    bodies = [bench_prompts.body(one, where, "it", c["tokens"], ignore_eos=True) for one in prompts]
    load_ = Load(where, bodies, c["concurrency"], 0.0, 300.0, seed)
    return list(bench_load.drive(load_, lambda: False))


def pace(samples: Sequence[Sample]) -> float:
    """Return the tokens a second of a round."""
    return sum(one.tokens_out for one in samples) / max(one.ended for one in samples)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean ratio of values of the same rounds, with the 95% bootstrap interval over rounds."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = bench_stats.mean_interval(each)
    return statistics.fmean(each), low, high


def on_vllm(c: dict[str, Any], folders: dict[str, Path], recorder: record.Recorder, talk: Path) -> None:
    """Measure every variant in turn, and record a step each."""
    engine = place.find()
    print(f"vLLM: {engine.text}", flush=True)
    room(len(folders), c["memory_gib"])
    found: dict[str, list[list[Sample]]] = {name: [] for name in folders}
    spent: dict[str, list[float]] = {name: [] for name in folders}
    with contextlib.ExitStack() as stack:
        live = {}
        for name, folder in folders.items():
            log = talk / f"vllm-{name}.log"
            child, url = stack.enter_context(
                serving(engine, folder, c["context"], max(1, recorder.threads), log)
            )
            live[name] = (child, url, log)
        for name, (child, url, log) in live.items():
            await_ready(child, url, log)
            one_round(url, {**c, "requests": c["concurrency"]}, seed=0)
            print(f"{name} answers", flush=True)
        order = list(folders)
        for number in range(c["rounds"]):
            random.Random(number).shuffle(order)
            for name in order:
                before = worked(live[name][0])
                samples = one_round(live[name][1], c, seed=recorder.seed + number)
                if bad := next((one for one in samples if one.error), None):
                    raise InputError(f"a request failed: {bad.error}: {bad.detail}", where=name)
                tokens = sum(one.tokens_out for one in samples)
                spent[name].append(1000 * (worked(live[name][0]) - before) / tokens)
                found[name].append(samples)
    paces = {name: [pace(one) for one in rounds] for name, rounds in found.items()}
    for step, (name, rounds) in enumerate(found.items(), 1):
        every = [one for samples in rounds for one in samples]
        low, high = bench_stats.mean_interval(paces[name])
        row = {
            "bits": BITS[name],
            "tokens_per_s": statistics.fmean(paces[name]),
            "tokens_per_s_low": low,
            "tokens_per_s_high": high,
        }
        for key in ("ttft", "e2el"):
            told = bench_stats.milliseconds([getattr(one, key) for one in every], recorder.seed)
            for percent in ("p50", "p95"):
                span = told[percent]
                row |= {
                    f"{key}_{percent}": span["value"],
                    f"{key}_{percent}_low": span["low"],
                    f"{key}_{percent}_high": span["high"],
                }
        first = next(iter(folders))
        row["faster"], row["faster_low"], row["faster_high"] = ratio(paces[name], paces[first])
        row["work"], row["work_low"], row["work_high"] = ratio(spent[name], spent[first])
        row["cpu_ms"] = statistics.fmean(spent[name])
        recorder.record(step, **row)
        print(
            f"{name:>5}: {row['tokens_per_s']:.1f} tokens/s ({low:.1f}-{high:.1f}), first token P50 {row['ttft_p50']:.0f} ms, "
            f"answer P50 {row['e2el_p50']:.0f} and P95 {row['e2el_p95']:.0f} ms; "
            f"{row['faster']:.2f} of {first}'s pace ({row['faster_low']:.2f}-{row['faster_high']:.2f}); "
            f"{row['cpu_ms']:.0f} ms of CPU a token, {row['work']:.2f} of {first}'s ({row['work_low']:.2f}-{row['work_high']:.2f})",
            flush=True,
        )


def in_transformers(c: dict[str, Any], base: models.Model, recorder: record.Recorder, step: int) -> None:
    """Hold nf4 against 16 bits, in turn, and record it at a step."""
    import torch
    from transformers import BitsAndBytesConfig

    four = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    sides = {"16": load.model(base).eval(), "nf4": load.model(base, four).eval()}
    tokenizer = load.tokenizer(base, chat=False)
    given = tokenizer("The parcel of order 48213 came late, and the lamp in it", return_tensors="pt")
    given = given.to(sides["16"].device)
    count = c["transformers"]["tokens"]
    took: dict[str, list[float]] = {name: [] for name in sides}
    busy: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(c["transformers"]["rounds"] + 1):
        for name, model in sides.items():
            began, worked_before = time.perf_counter(), time.process_time()
            model.generate(
                **given,
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
            if number:  # the first one warms up
                took[name].append(1000 * (time.perf_counter() - began) / count)
                busy[name].append(1000 * (time.process_time() - worked_before) / count)
    times, low, high = ratio(took["nf4"], took["16"])
    work, work_low, work_high = ratio(busy["nf4"], busy["16"])
    sizes = {name: model.get_memory_footprint() / 1e6 for name, model in sides.items()}
    print(
        f"in transformers: 16 bits {statistics.fmean(took['16']):.0f} ms a token ({sizes['16']:.0f} MB), "
        f"nf4 {statistics.fmean(took['nf4']):.0f} ms ({sizes['nf4']:.0f} MB): {times:.2f} times as long ({low:.2f}-{high:.2f}); "
        f"{work:.2f} of the CPU time ({work_low:.2f}-{work_high:.2f})",
        flush=True,
    )
    recorder.record(
        step, nf4_ms=statistics.fmean(took["nf4"]), bf16_ms=statistics.fmean(took["16"]), nf4_mb=sizes["nf4"],
        nf4_longer=times, nf4_longer_low=low, nf4_longer_high=high,
        nf4_work=work, nf4_work_low=work_low, nf4_work_high=work_high,
    )  # fmt: skip


def folders(root: Path, base: models.Model, wanted: str) -> dict[str, Path]:
    """Return the folder of each variant. Raises InputError for one that is none, or was not made yet."""
    found = {}
    for name in wanted.split(","):
        if name not in BITS:
            raise InputError(
                f"is no variant: {name!r}", where="variants", mend=f"choose from {', '.join(BITS)}"
            )
        found[name] = base.folder if name == "16" else root / OUT / name
        if not (found[name] / "config.json").is_file():
            raise InputError(
                "was not made yet",
                where=str(found[name]),
                mend="labassist run 08-serve/quantise --profile tiny",
            )
    return found


def main() -> None:
    order = record.read_order("labs/08-serve/speed.toml")
    c = order.config
    root = workspace_of(order.folder) if order.folder else Path.cwd()
    base = models.of_order(order, c["model"]["name"], c["model"]["revision"])
    chosen = folders(root, base, c["variants"])
    record.determinism.apply(order.mode, order.seed, order.threads)
    load.quiet()
    recorder = record.start(total_steps=len(chosen), measured=["*"], order=order)
    try:
        place.find()
    except InputError as error:
        # Without an engine the other half is measured all the same.
        order.warn(f"measured in transformers alone: {error}")
    else:
        on_vllm(c, chosen, recorder, order.folder or Path("."))
    in_transformers(c, base, recorder, len(chosen))
    recorder.finish(len(chosen))


if __name__ == "__main__":
    main()
