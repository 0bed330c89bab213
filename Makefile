# `make` lists the targets. Everything is installed into .venv; PY names the Python (3.11 to 3.13) that it is made from.
PY ?= python3
WORKERS ?= 2
OLDEST_TRANSFORMERS := 5.2.0
KVPRESS := 0.5.5

BIN := .venv/bin
COMPAT := .venv-compat/bin
PEERS := .venv-peers/bin
SMOKE := build/smoke
SHELL := /bin/bash

# $(call install,FOLDER,EXTRA,CONSTRAINTS): make the virtual environment FOLDER if need be, and install the project
# with one of its extras into it.
# uv does it in a fraction of pip's time; it is told of the local wheels that pip would see.
define install
	@$(PY) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed and $(PY) is none of them: call make PY=/path/to/python3.11"; exit 2; }
	@if command -v uv >/dev/null; then set -e; \
		test -x $(1)/bin/python || uv venv --quiet --seed --python $(PY) $(1); \
		UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" \
			uv pip install --quiet --python $(1)/bin/python -e '.[$(2)]' -c $(3); \
	else set -e; \
		test -x $(1)/bin/python || $(PY) -m venv $(1); \
		$(1)/bin/python -m pip install -qq --disable-pip-version-check -e '.[$(2)]' -c $(3); \
	fi
	@touch $(1)/.installed
endef

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.installed  ## make .venv and install everything into it; at once when nothing has changed
	@:

.venv/.installed: pyproject.toml constraints.txt
	@echo "installing into .venv: one to three minutes, about 2.5 GB"
	$(call install,.venv,dev,constraints.txt)

.PHONY: demo
demo: setup  ## PyramidKV on a small real language model: score, memory held, speed
	$(BIN)/python run.py method=pyramidkv budget=128

.PHONY: smoke
smoke: setup  ## the shortest real run from end to end, under a minute
	@rm -rf $(SMOKE)
	$(BIN)/python run.py method=pyramidkv budget=64 limit=1 results_dir=$(SMOKE)

.PHONY: test
test: setup  ## all tests, in WORKERS processes of one thread each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: check
check: setup  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

.PHONY: test-compat
test-compat: .venv-compat/.installed  ## the library's tests on the oldest supported transformers
	OMP_NUM_THREADS=1 $(COMPAT)/python -m pytest -n $(WORKERS) --dist loadfile tests/pyramid

.venv-compat/.installed: pyproject.toml constraints.txt
	@mkdir -p build
	@grep -Ev '^(transformers|tokenizers|huggingface.hub)==' constraints.txt > build/constraints-compat.txt
	@echo 'transformers==$(OLDEST_TRANSFORMERS)' >> build/constraints-compat.txt
	$(call install,.venv-compat,dev,build/constraints-compat.txt)

.PHONY: bench
bench: setup  ## what a sweep costs beside one run, as ratios measured on this machine: minutes
	$(BIN)/python -m scripts.benchmark

.PHONY: bench-peers
bench-peers: setup .venv-peers/.installed  ## the same sweep by NVIDIA's kvpress, in an environment of its own: minutes
	$(BIN)/python -m scripts.bench_peers --peer $(PEERS)/python

# kvpress holds these below the versions that the project is tested with.
.venv-peers/.installed: pyproject.toml constraints.txt
	@mkdir -p build
	@grep -Ev '^(transformers|tokenizers|huggingface.hub|pandas)==' constraints.txt > build/constraints-peers.txt
	@echo 'kvpress==$(KVPRESS)' >> build/constraints-peers.txt
	$(call install,.venv-peers,kvpress,build/constraints-peers.txt)

.PHONY: clean
clean:  ## remove the environments and caches; results stay
	rm -rf .venv .venv-compat .venv-peers build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: tables
tables: setup  ## the papers' tables from results/runs, as Markdown, CSV and LaTeX
	$(BIN)/python -m scripts.report tables

.PHONY: figures
figures: setup  ## the papers' figures from results/runs, as PNG and PDF
	$(BIN)/python -m scripts.report figures

.PHONY: committed
committed: setup  ## the committed tables and figures again, from results/archive
	@for kind in tables figures; do for file in results/archive/*.zip; do \
		echo $$kind runs=$$file out=results/$$kind/$$(basename $$file .zip); done; done | \
		OMP_NUM_THREADS=1 xargs -P $(WORKERS) -L 1 $(BIN)/python -m scripts.report

.PHONY: report
report: setup  ## one HTML page with everything: results/report.html
	$(BIN)/python -m scripts.report page
