"""Commands of serving: make its environment, start a server, talk to one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers
    from labassist.ledger.store import Ledger
    from labassist.runs.follow import Interrupts
    from labassist.serving.client import Answer
    from labassist.serving.talk import Talk

INTERRUPTED = 130


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import Parser, command, common

    parent = sub.add_parser(
        "setup",
        help="make an environment that a part of labassist needs: vllm",
        description="Make an environment that a part of labassist needs.",
        epilog="example:\n  labassist setup vllm",
    )
    common(parent)
    inner: Subparsers = parent.add_subparsers(
        title="environments", metavar="NAME", dest="environment", required=True, parser_class=Parser
    )
    parser = command(
        inner,
        "vllm",
        setup_vllm,
        help="a Python environment of its own with vLLM, for serve",
        example="labassist setup vllm\nlabassist setup vllm --dir /big/disk/vllm",
    )
    parser.add_argument("--python", metavar="PY", help="the Python to make it with (default: this one)")
    parser.add_argument("--dir", metavar="DIR", help="where (default: labassist/vllm in your cache folder)")
    parser.add_argument("--upgrade", action="store_true", help="bring the newest versions, not those tested")
    _serve_options(sub)
    _chat_options(sub)


def _serve_options(sub: Subparsers) -> None:
    from labassist.cli.parsing import command
    from labassist.cli.run_plan import terms_options

    parser = command(
        sub,
        "serve",
        serve,
        help="serve a model with vLLM, as a recorded run",
        example="labassist serve @last                       # the model that the last run merged\n"
        "labassist serve outputs/merged --port 0 --detach\n"
        "labassist serve embedded --adapter shop=@last -- --max-num-seqs 8",
        takes_rest="options for vLLM, as they are",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="embedded, a folder, a merge's run, or a downloaded hub id"
    )
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="8000; 0 takes a free one")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="127.0.0.1: only this machine reaches it"
    )
    parser.add_argument("--name", default="", metavar="NAME", help="what requests call the model")
    parser.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="share of the card's memory (on a CPU: the machine's)",
    )
    parser.add_argument(
        "--max-len", type=int, metavar="N", help="tokens of a sequence, prompt and answer (8192)"
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=PATH|RUN",
        help="serve a LoRA adapter unmerged, under NAME; may be repeated",
    )
    parser.add_argument(
        "--dtype", default="", choices=("bfloat16", "float16", "float32"), help="of the weights"
    )
    parser.add_argument("--quantization", default="", metavar="Q", help="vLLM's own, as bitsandbytes or fp8")
    parser.add_argument(
        "--enforce-eager", action="store_true", help="compile nothing: starts sooner, answers slower"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that the model brings; recorded"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: every core)")
    parser.add_argument(
        "--seed", type=int, default=1337, metavar="N", help="seed of the server's sampling (1337)"
    )
    parser.add_argument(
        "--detach", action="store_true", help="print the run's id and return when it is ready"
    )
    parser.add_argument("--no-wait", action="store_true", help="with --detach: return at once")
    parser.add_argument("--note", default="", metavar="TEXT", help="a note kept with the run")
    terms_options(parser)


def _chat_options(sub: Subparsers) -> None:
    from labassist.cli.parsing import command

    parser = command(
        sub,
        "chat",
        chat,
        help="talk to a server that speaks OpenAI's API; answers of a recorded server are kept",
        example='labassist chat @last "Where is my order 48213?"\nlabassist chat http://127.0.0.1:8000/v1',
    )
    parser.add_argument("server", metavar="URL|RUN", help="its address, or the run that serves it")
    parser.add_argument(
        "message", nargs="?", metavar="MESSAGE", help="without one: line by line, or from stdin"
    )
    parser.add_argument("--system", default="", metavar="S", help="a system message before all others")
    parser.add_argument("--file", metavar="F", help="a text file that follows the message")
    parser.add_argument("--model", default="", metavar="NAME", help="default: the first that it serves")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="longest answer (256)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 (default): always the likeliest token"
    )
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help="seed of the sampling (1337)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="most seconds of silence (300)"
    )
    parser.add_argument("--no-record", action="store_true", help="keep neither prompt nor answer")


def setup_vllm(args: argparse.Namespace) -> int:
    """Make the serving environment."""
    from pathlib import Path

    from labassist.cli.output import emit, say
    from labassist.serving import place, setup

    own = place.default_folder()
    folder = Path(args.dir).expanduser().absolute() if args.dir else own
    made = setup.setup(
        folder, base=setup.base_python(args.python), gpu=setup.has_gpu(), upgrade=args.upgrade, say=say
    )
    if folder != own:
        say(f"use it with: export {place.VARIABLE}={made.engine.python}")

    def text() -> str:
        how = f"made in {made.seconds:.0f} s" if made.fresh else "is here already"
        return f"{made.engine.text} {how}: {made.engine.python}"

    emit(made.document(), args.json, text)
    return 0


def serve(args: argparse.Namespace) -> int:
    """Start a server and, unless detached, follow it to its end."""
    from labassist.cli.opening import opened
    from labassist.cli.output import say, written
    from labassist.cli.run_plan import chosen_terms, chosen_threads
    from labassist.errors import InputError
    from labassist.runs.follow import Interrupts
    from labassist.runs.launch import launch
    from labassist.serving import start
    from labassist.serving.target import Options

    if args.memory_fraction is not None and not 0 < args.memory_fraction <= 1:
        raise InputError(
            "is a share, above 0 and at most 1", where=f"--memory-fraction {args.memory_fraction:g}"
        )
    if args.max_len is not None and args.max_len < 1:
        raise InputError("at least one token is needed", where=f"--max-len {args.max_len}")
    if args.no_wait and not args.detach:
        raise InputError("belongs to --detach", where="--no-wait", mend="give both, or neither")
    workspace, ledger = opened(args)
    options = Options(
        host=args.host,
        port=args.port,
        name=args.name,
        memory_fraction=args.memory_fraction,
        max_len=args.max_len,
        dtype=args.dtype,
        quantization=args.quantization,
        enforce_eager=args.enforce_eager,
        trust_remote_code=args.trust_remote_code,
        extra=tuple(args.rest or ()),
    )
    wanted, served = start.plan(
        workspace,
        ledger,
        args.model,
        args.adapter,
        options,
        threads=chosen_threads(args.threads, 0),
        seed=args.seed,
        note=written(args.note, "note"),
        terms=chosen_terms(args, workspace),
        say=say,
    )
    for line in [*wanted.warnings, *served.notes]:
        say(f"note: {line}")
    with Interrupts() as interrupts:
        run = launch(workspace, ledger, wanted, interrupts.defer)
        say(f"run {run} started: {served.name} with {wanted.flat['engine']}")
        return _started(args, ledger, run, interrupts)


def _started(args: argparse.Namespace, ledger: Ledger, run: str, interrupts: Interrupts) -> int:
    from labassist.cli.output import emit, say
    from labassist.serving.start import await_ready, how_to_reach

    if args.no_wait:
        emit(ledger.run(run), args.json, lambda: run)
        return 0
    document = ledger.run(run) or {}
    ready = await_ready(ledger, run, say, lambda: bool(interrupts.count))
    if ready is not None:
        say(f"ready after {ready['seconds']} s")
        for line in how_to_reach(document["config"]):
            say(line)
        if args.detach:
            say(f"stop it with: labassist stop {run}")
            emit({**(ledger.run(run) or {}), "ready": ready}, args.json, lambda: run)
            return 0
        say("ctrl-c stops it; it goes on without this terminal")
    return _until_end(args, ledger, run, interrupts)


def _until_end(args: argparse.Namespace, ledger: Ledger, run: str, interrupts: Interrupts) -> int:
    """Wait for a server's end; ctrl-c asks for it once, and kills the second time."""
    from labassist.cli.ledger import summary
    from labassist.cli.output import emit, say
    from labassist.cli.runs import show_tail, trainer_status
    from labassist.runs import life
    from labassist.runs.follow import until_closed

    asked = 0

    def each() -> None:
        nonlocal asked
        folder = ledger.run_folder(run)
        if interrupts.count and not asked:
            asked = 1
            say("stopping the server (ctrl-c again kills it)")
            life.ask_to_stop(folder)
        if interrupts.count > 1:
            if asked == 1:
                asked = 2
                say("killing the server")
            life.kill(folder)

    document = until_closed(ledger, run, each)
    if document["state"] == "failed":
        show_tail(ledger, run)
    emit(document, args.json, lambda: summary(document))
    return INTERRUPTED if asked else trainer_status(document)


def chat(args: argparse.Namespace) -> int:
    """Ask once, or line by line."""
    import sys
    from pathlib import Path

    from labassist.cli.opening import opened
    from labassist.cli.output import say
    from labassist.errors import InputError
    from labassist.serving.talk import not_text, open_talk, sendable
    from labassist.workspace import Workspace

    if args.max_tokens < 1 or args.temperature < 0 or args.timeout <= 0:
        raise InputError("--max-tokens is from 1, --temperature from 0, --timeout above 0", where="chat")
    ledger: Ledger | None = None
    try:
        Workspace.find(args.workspace)
    except InputError:
        if args.workspace:
            raise
    else:
        ledger = opened(args)[1]
    message = args.message
    if message is None and not args.file and not sys.stdin.isatty():
        try:
            message = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError:
            raise not_text("standard input") from None
    if args.file:
        try:
            text = Path(args.file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "is no UTF-8 text"
            raise InputError(why, where=args.file, mend="give a text file") from None
        message = f"{message}\n\n{text}" if message else text
    if message is not None and not message.strip():
        raise InputError("the message is empty", where="chat", mend='labassist chat URL "a question"')
    for text, where in ((message or "", "the message"), (args.system, "--system")):
        sendable(text, where)
    sampling: dict[str, Any] = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
    }
    talk = open_talk(
        ledger,
        args.server,
        model=args.model,
        system=args.system,
        sampling=sampling,
        record=not args.no_record,
        timeout=args.timeout,
    )
    if message is None:
        if talk.run:
            say(f"note: answers and their prompts are kept with run {talk.run} (--no-record keeps nothing)")
        return _lines(talk)
    try:
        return _once(args, talk, message)
    finally:
        if talk.kept:
            say(f"note: prompt and answer are kept with run {talk.run} (--no-record keeps nothing)")


def _once(args: argparse.Namespace, talk: Talk, message: str) -> int:
    import sys
    from dataclasses import asdict

    from labassist.cli.output import emit, say

    def each(text: str) -> None:
        if not args.json:
            sys.stdout.write(text)
            sys.stdout.flush()

    answer = talk.ask(message, each)
    if args.json:
        emit({**asdict(answer), "run": talk.run}, True, str)
    else:
        sys.stdout.write("" if answer.text.endswith("\n") else "\n")
        say(_ended(answer))
    return INTERRUPTED if answer.finish_reason == "interrupted" else 0


def _lines(talk: Talk) -> int:
    """Talk line by line until the input ends; an answer that is cut does not end the conversation."""
    import sys

    from labassist.cli.output import say
    from labassist.errors import InputError
    from labassist.serving.client import Cut
    from labassist.serving.talk import not_text, sendable

    say(f"talking to {talk.model} at {talk.server.url}; ctrl-c cuts an answer short, ctrl-d ends")

    def each(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    while True:
        try:
            message = sendable(input("> "), "this line")
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            say("(no answer to cut; ctrl-d ends)")
            continue
        except (InputError, UnicodeDecodeError) as error:
            say(f"labassist: {error if isinstance(error, InputError) else not_text('this line')}")
            continue
        if not message.strip():
            continue
        try:
            answer = talk.ask(message, each)
        except Cut as error:
            print()
            say(f"labassist: {error}")
            continue
        print()
        say(_ended(answer))


def _ended(answer: Answer) -> str:
    """Return in a line how an answer ended and what it took."""
    words = {"length": "cut at --max-tokens", "interrupted": "interrupted", "stop": ""}
    ended = words.get(answer.finish_reason, answer.finish_reason)
    tokens = answer.usage.get("completion_tokens")
    parts = [f"{tokens} tokens" if tokens else "", f"{answer.seconds:.1f} s", ended]
    return f"({', '.join(part for part in parts if part)})"
