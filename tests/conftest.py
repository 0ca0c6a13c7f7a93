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
