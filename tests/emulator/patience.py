"""What tests of real links share: a busy machine disturbs a link for a while, and a link that is wrong stays so."""

import time

PATIENCE = 60.0
"""Seconds after which what is still wrong is so."""


def assert_becomes(expected, look):
    """Look until what is seen is `expected`, an approx or a value; fail by what was seen last if it never is."""
    until = time.monotonic() + PATIENCE
    while (found := look()) != expected and time.monotonic() < until:
        pass
    assert found == expected
