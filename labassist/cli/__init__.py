"""The command line: one file a command group, which parses, calls the parts and prints; no logic.

A group is a module here with `register(sub)`, named in `main.GROUPS`. It adds each command with
`parsing.command`, naming a handler `def run(args: argparse.Namespace) -> int` that imports what it needs
when it is called, so that `labassist --help` stays light.
"""
