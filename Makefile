# Needs python3 (3.11 or later, with venv), make and git. Everything else goes into .venv.
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-ci test-all lint bench accuracy screenshots clean

help:
	@echo "make demo       install into .venv, train the first lab's model, replay it bit for bit"
	@echo "make test       lint, types, import rules and the fast tests"
	@echo "make test-ci    the slow tests that CI runs besides: kills, full disks, terminals, ssh, a whole session"
	@echo "make test-all   make test, and every slow test"
	@echo "make bench      measure what is promised about speed (NANOGPT=DIR TEXT=FILE: against nanoGPT too)"
	@echo "make accuracy   docs/accuracy.md: every measured step beside what the planner says of it"
	@echo "make screenshots  play the golden path in the app, and keep pictures of it (SVG) in screenshots/"
	@echo "make clean      remove .venv and caches; never the ledger"

demo: .venv/stamp-loop
	@echo "== train: $(BIN)/labassist run 01-first-loop/train --profile tiny"
	@$(BIN)/labassist run 01-first-loop/train --profile tiny
	@echo "== replay: $(BIN)/labassist replay @last"
	@$(BIN)/labassist replay @last

test: .venv/stamp-loop,dev lint
	@$(BIN)/python -m pytest -q -m "not slow" --durations=30

# What comes late on a busy machine gets a second run of its own; what is wrong fails twice.
SLOW = $(BIN)/python -m pytest -q --durations=30

test-ci: .venv/stamp-loop,dev
	@$(SLOW) -m "slow and ci" || $(SLOW) -m "slow and ci" --last-failed

# All the slow tests use the real training stack besides.
test-all: test .venv/stamp-train,formats,mlflow,dev .venv/stamp-crate
	@$(SLOW) -m slow || $(SLOW) -m slow --last-failed

lint: .venv/stamp-loop,dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --ignore-missing-imports --allow-subclassing-any bench/*.py
	@$(BIN)/lint-imports

BENCH := cold_start recorder ledger_store hashing chart_bytes app ckpt_check finetune

bench: .venv/stamp-train,dev
	@status=0; for name in $(BENCH); do \
	    echo "== bench/$$name.py"; $(BIN)/python bench/$$name.py || status=1; \
	done; \
	if [ -n "$(NANOGPT)" ] && [ -n "$(TEXT)" ]; then \
	    echo "== bench/first_loop.py"; \
	    $(BIN)/python bench/first_loop.py --nanogpt "$(NANOGPT)" --text "$(TEXT)" || status=1; \
	else echo "== bench/first_loop.py: left out, it needs NANOGPT=<its checkout> TEXT=<a text file>"; fi; \
	exit $$status

ROWS := bench/results/h200-memory

# Measured steps against the planner; the dry run's answers are kept, and asked for again where it has changed.
accuracy: .venv/stamp-train,dev
	@$(BIN)/python bench/planner.py $(ROWS)/given.jsonl $(ROWS)/one-gpu.jsonl $(ROWS)/two-gpus.jsonl $(ROWS)/later.jsonl \
	    --held-out $(ROWS)/held-out.json $(ROWS)/held-out-later.json \
	    --dry-run --dry-file $(ROWS)/dry.jsonl --write docs/accuracy.md

screenshots: .venv/stamp-loop
	@mkdir -p screenshots && $(BIN)/python -m labassist.app.screenshot screenshots

# Each command that `lint` calls, and its package: one that the python at hand has already gets no command in .venv.
TOOLS := ruff=ruff mypy=mypy lint-imports=import-linter

# A stamp names the extras it stands for. A torch that the python at hand already has is used as it is: then
# nothing that touches it is constrained. Where that python is itself a virtual environment, whose packages
# --system-site-packages does not show, a .pth line does.
.venv/stamp-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "labassist needs Python 3.11 or later; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "this $(PYTHON) has no venv module; Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	@set -e; \
	torch=$$($(PYTHON) -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null) || \
	    torch=; \
	if [ ! -x $(BIN)/python ]; then \
	    echo "== making .venv"; \
	    $(PYTHON) -m venv $${torch:+--system-site-packages} .venv; \
	    if [ -n "$$torch" ] && ! $(BIN)/python -c 'import torch' 2>/dev/null; then \
	        echo "$$torch" > $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth; \
	    fi; \
	fi; \
	if [ -n "$$torch" ]; then \
	    echo "== using the torch in $$torch"; \
	    grep -vE '^(torch|numpy|safetensors)==' constraints.txt > .venv/constraints.txt; \
	else cp constraints.txt .venv/constraints.txt; fi; \
	echo "== installing labassist[$*] into .venv (the first time: minutes, most of it torch)"; \
	$(BIN)/python -m pip install --quiet --quiet --constraint .venv/constraints.txt --editable ".[$*]"; \
	case "$*" in *dev*) for tool in $(TOOLS); do \
	    test -x $(BIN)/$${tool%=*} || $(BIN)/python -m pip install --quiet --quiet \
	        --constraint .venv/constraints.txt --ignore-installed --no-deps $${tool#*=}; \
	done;; esac; \
	touch "$@"

# What checks research objects wants an older rich than textual does.
.venv/stamp-crate: .venv/stamp-loop,dev
	@$(PYTHON) -m venv .venv/crate
	@.venv/crate/bin/python -m pip install --quiet --quiet --constraint constraints.txt roc-validator
	@touch "$@"

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
