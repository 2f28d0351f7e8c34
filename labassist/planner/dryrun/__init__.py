"""A training step on fake tensors, in a process of its own: `python -m labassist.planner.dryrun`.

Only this folder of the planner imports torch, transformers and peft, and nothing of labassist imports it:
`labassist.planner.dry` starts it as a subprocess with a request on stdin and reads the answer from stdout.
"""
