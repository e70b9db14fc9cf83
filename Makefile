# make demo   photos in, a store and a gallery out      PHOTOS=dir  your own photos     OUT=dir  where to
# make test   the tests                                 VENV=dir    an environment of yours, used as it is
# make lint | test-slow | bench                         PYTHON=...  the Python that the environment is made with

PYTHON ?= python3
ENV ?= .venv
OUT ?= demo
export PHOTOS OUT

ifdef VENV
  RUN := "$(VENV)/bin/python"
  READY :=
else
  RUN := "$(ENV)/bin/python"
  READY := $(ENV)/.installed
endif

.PHONY: demo test test-slow lint bench
.DELETE_ON_ERROR:

demo: $(READY)
	@$(RUN) -m roivault demo --out "$$OUT" $${PHOTOS:+--photos "$$PHOTOS"}

test: $(READY)
	@OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist loadgroup

test-slow: $(READY)
	@$(RUN) -m pytest -m slow

lint: $(READY)
	@$(RUN) -m ruff check .

bench: $(READY)
	@for file in benchmarks/*.py; do echo "== $$file"; $(RUN) "$$file" || exit 1; done

# Made once, and again only when what it is made from changes.
$(ENV)/.installed: setup.py pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "roivault needs Python 3.10 or newer; this is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(ENV) (a few minutes, once) ..."
	@$(PYTHON) -m venv "$(ENV)"
	@pins=$$($(RUN) -c 'import sys; print("--constraint constraints.txt" * (sys.version_info >= (3, 11)))'); \
	  $(RUN) -m pip install --quiet --disable-pip-version-check $$pins --editable '.[extract,ray,consumers,dev]'
	@touch "$@"
