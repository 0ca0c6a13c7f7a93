# make run    set everything up (once) and run the main job on network namespaces
# make test   the whole test suite
# make check  linter, types and the fast tests
# make image  the container image, for --runtime docker and compose.yaml (docker/README.md)
#
# PYTHON=python3.12   another interpreter for the virtual environment
# PIP_FLAGS=...       passed to pip, e.g. an --index-url with CPU builds of torch (see README.md)

PYTHON ?= python3
PIP_FLAGS ?=
SCENARIO ?= scenarios/seattle-newyork.yaml
BIN := .venv/bin
# Two files at a time, in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)
.DELETE_ON_ERROR:
.PHONY: run test check lint image system clean

run: $(BIN)/frogtorch system
	$(AS_ROOT) $(BIN)/frogtorch compare $(SCENARIO)

test: $(BIN)/frogtorch system
	$(AS_ROOT) env PYTHONDONTWRITEBYTECODE=1 FROGTORCH_NEED="$$FROGTORCH_NEED" $(PYTEST) -p no:cacheprovider --durations=30 --durations-min=5

check: lint
	$(PYTEST) -m "not slow and not root and not soak"

lint: $(BIN)/frogtorch
	$(BIN)/ruff check
	$(BIN)/mypy

# On BASE; by default that of docker/base, which is made if that is possible here, as it needs no image registry.
image: docker/wheels/.complete
	@base="$(BASE)"; if [ -z "$$base" ]; then base=frogtorch-base; \
		docker image inspect $$base >/dev/null 2>&1 || \
		{ [ "$$(id -u)" = 0 ] && command -v mmdebstrap >/dev/null && docker/base >/dev/null; } || \
		base=python:3.11-slim-bookworm; fi; \
	DOCKER_BUILDKIT=0 docker build --quiet --file docker/Dockerfile --build-arg BASE=$$base --tag frogtorch . 

# The wheels of what the image needs: pip, here, knows of indexes and certificates that a build does not.
docker/wheels/.complete: pyproject.toml constraints.txt docker/requirements | $(BIN)/frogtorch
	$(BIN)/python docker/requirements >docker/wheels/.requirements
	$(BIN)/pip download --quiet $(PIP_FLAGS) --dest docker/wheels --only-binary :all: --python-version 3.11 \
		--constraint constraints.txt --requirement docker/wheels/.requirements pip
	@touch $@

# Kernel tools that the links need; installed where this is Debian or Ubuntu, named elsewhere.
system:
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v ip >/dev/null && command -v tc >/dev/null && command -v iptables >/dev/null || \
	if command -v apt-get >/dev/null; then \
		$(AS_ROOT) apt-get update -qq && \
		$(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 iptables; \
	else \
		echo "please install ip and tc (iproute2) and iptables, then try again" >&2; exit 1; \
	fi

$(BIN)/frogtorch: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { command -v apt-get >/dev/null && \
		$(AS_ROOT) apt-get update -qq && $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(notdir $(PYTHON))-venv; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PIP_FLAGS) --constraint constraints.txt --editable '.[testbed,dev]'
	@touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
