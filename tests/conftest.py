"""For all tests: those that make network namespaces are skipped where that is not allowed."""

import os

import pytest


def pytest_collection_modifyitems(items):
    if os.geteuid() != 0:
        skip = pytest.mark.skip(reason="makes network namespaces: needs root")
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(skip)
