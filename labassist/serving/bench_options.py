"""What a measurement of a server takes, for the command line and for the process that it starts."""

from __future__ import annotations

import argparse


def add_to(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that say what is measured."""
    add = parser.add_argument
    add("--requests", type=int, default=200, metavar="N", help="of each load (200)")
    add("--concurrency", default="", metavar="C[,C…]", help="so many at a time, one load each (8)")
    add("--rate", type=float, default=0.0, metavar="R", help="in place of it: R requests/s at random times")
    add("--prompts", metavar="FILE", help="JSONL or lines of text (default: texts of its own, seeded)")
    add("--max-tokens", type=int, default=64, metavar="N", help="of an answer (64)")
    add("--ignore-eos", action="store_true", help="every answer has all of them (vLLM, SGLang)")
    add("--model", default="", metavar="NAME", help="where the server has several (default: its first)")
    add("--seed", type=int, default=1337, metavar="N", help="of prompts and arrivals (1337)")
    add("--warmup", type=int, metavar="N", help="requests before it that do not count (as many as at a time)")
    add("--timeout", type=float, default=120.0, metavar="S", help="after which a request is given up (120)")
