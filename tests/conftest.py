"""For all tests: Ctrl-C works in all of them; those that make namespaces are skipped where that is not allowed."""

import os
import signal

import pytest


def pytest_configure():
    # A shell that starts this in the background has it ignore SIGINT, and all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if os.geteuid() != 0:
        skip = pytest.mark.skip(reason="makes network namespaces: needs root")
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(skip)
    # Of two files at a time (make test): those that wait for links come first, and so beside each other, not beside
    # those that keep both cores busy.
    waiting = {item.path for item in items if item.get_closest_marker("root") or "need" in item.fixturenames}
    items.sort(key=lambda item: item.path not in waiting)


@pytest.fixture(scope="session")
def need():
    """``need(name, reason)``: skip, as this machine lacks `name` for that reason; fail where it must not lack it.

    FROGTORCH_NEED lists what must be there, as in ``docker,uml``: a skipped proof is no proof.
    """
    def lacks(name: str, reason: str) -> None:
        if name in os.environ.get("FROGTORCH_NEED", "").split(","):
            pytest.fail(f"{name} is needed here (FROGTORCH_NEED), and this machine has none: {reason}")
        pytest.skip(f"no {name} on this machine: {reason}")

    return lacks
