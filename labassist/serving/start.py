"""Start a server as a recorded run, and tell how its loading goes until it answers or has died."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labassist.ledger.store import Ledger
from labassist.machine.sample import Sampler
from labassist.runs.command import portable
from labassist.runs.config import Config
from labassist.runs.launch import Plan
from labassist.runs.logs import Log
from labassist.runs.terms import Terms
from labassist.serving import JOB, causes, place, port
from labassist.serving.fit import fit
from labassist.serving.target import Options, Target, command, target
from labassist.workspace import Workspace

ENV = {
    "VLLM_NO_USAGE_STATS": "1",  # it reports its users' hardware and settings to its makers otherwise
    "HF_HUB_OFFLINE": "1",  # all that it reads lies here
    "PYTHONSAFEPATH": "1",  # a folder of the workspace that is called as a package must not be imported
    "NO_COLOR": "1",
}

POLL_S = 0.25


def plan(
    workspace: Workspace,
    ledger: Ledger,
    asked: str,
    adapters: list[str],
    options: Options,
    *,
    threads: int,
    seed: int,
    note: str,
    terms: Terms,
    say: Callable[[str], None],
) -> tuple[Plan, Target]:
    """Return the plan of a serving run and what it serves; everything that can be refused is refused here.

    Raises InputError: no engine, no such model, an adapter of another base, a port that is taken, too little memory.
    """
    engine = place.find()
    warning = port.need_key(options.host)
    served = target(workspace, ledger, asked, adapters, options, say)
    number = port.chosen(options.host, options.port, ledger)
    options = replace(options, port=number)
    with Sampler(workspace.ledger) as sampler:
        machine = sampler.sample()
    if not engine.cpu and not machine.gpus:
        served.notes.append(f"no NVIDIA GPU is seen here, and {engine.name} computes on one")
    division = fit(engine, served, options, machine)
    served.notes += division.notes if division else []
    env = {**ENV, "OMP_NUM_THREADS": str(threads)}
    if engine.cpu:
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        env |= division.env if division else {"VLLM_CPU_KVCACHE_SPACE": "1"}
    # A person's own setting of vLLM stands.
    env = {
        key: os.environ.get(key, value) if key.startswith("VLLM_") else value for key, value in env.items()
    }
    words = portable(workspace, command(engine, served, options, seed), workspace.root)
    words[0] = str(engine.python)
    flat: dict[str, Any] = {
        "model": _inside(workspace, served.model.folder) if served.merge else served.model.name,
        "name": served.name,
        "merge": served.merge,
        "host": options.host,
        "probe": port.WILDCARDS.get(options.host, options.host),
        "port": number,
        "url": port.url(options.host, number),
        "max_len": served.length(options),
        "engine": engine.text,
        "device": "cpu" if engine.cpu else "cuda",
        **{f"adapters.{one.name}": _inside(workspace, one.folder) for one in served.adapters},
        **{f"env.{key}": value for key, value in env.items()},
    }
    made = Plan(
        job=JOB,
        kind="command",
        argv=["python", "-m", "labassist.serving.server", "--", *words],
        mode="fast",
        seed=seed,
        threads=threads,
        nested=Config("", flat).nested,
        flat=flat,
        note=note,
        terms=terms,
        warnings=[warning] if warning else [],
    )
    return made, served


def _inside(workspace: Workspace, folder: Path) -> str:
    return str(folder.relative_to(workspace.root) if folder.is_relative_to(workspace.root) else folder)


def await_ready(
    ledger: Ledger, run: str, say: Callable[[str], None], stopped: Callable[[], bool]
) -> dict[str, object] | None:
    """Tell each phase of loading once, and return what the server wrote when it answered.

    None where it has ended before that, or `stopped` says that nobody waits any more. Only files are read.
    """
    log = Log(ledger.run_folder(run) / "log.txt")
    told: set[str] = set()
    began = time.monotonic()
    while not stopped():
        for line in log.poll():
            phase = causes.phase(line)
            if phase and phase not in told:
                told.add(phase)
                say(f"  {time.monotonic() - began:4.0f} s  {phase}")
        found = port.ready(ledger, run)
        if found is not None:
            return found
        document = ledger.run(run)
        if document is None or document["state"] != "running":
            return None
        time.sleep(POLL_S)
    return None


def how_to_reach(config: dict[str, Any]) -> list[str]:
    """Return the lines that say how a server is used: its address, curl, and ssh -L from elsewhere."""
    key = f' -H "Authorization: Bearer ${port.KEY}"' if os.environ.get(port.KEY) else ""
    body = f'{{"model": "{config["name"]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    lines = [
        f"serving {config['name']} at {config['url']}",
        f'  labassist chat {config["url"]} "Hello"',
        f"  curl {config['url']}/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
    ]
    near = config["probe"]
    lines.append(
        f"  from home: ssh -L {config['port']}:{near}:{config['port']} THIS-MACHINE, then the same address"
    )
    lines += [f'  adapter {name}: the same with "model": "{name}"' for name in _adapters(config)]
    return lines


def _adapters(config: dict[str, Any]) -> list[str]:
    return [key.removeprefix("adapters.") for key in config if key.startswith("adapters.")]
