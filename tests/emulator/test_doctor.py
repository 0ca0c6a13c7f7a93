"""What the examination makes of a machine."""

import pytest

from emulator import doctor
from emulator.doctor import Examination, Finding
from emulator.links import nfqueue
from emulator.links.engines import ENGINES

NAMES = ("privilege", "ip", "tc", "rates", "cubic", "torch", "docker", "compose", "real time", *ENGINES)


def machine(*lacking):
    return Examination(tuple(Finding(name, name not in lacking, "") for name in NAMES))


def test_the_main_job_needs_no_docker_and_one_engine():
    seen = machine("docker", "compose", "real time", *ENGINES[:-1])
    assert seen.ready
    assert seen.engine == ENGINES[-1]


def test_the_first_engine_that_works_is_taken():
    assert machine().engine == ENGINES[0]


def test_without_any_engine_there_is_no_main_job():
    seen = machine(*ENGINES)
    assert not seen.ready
    assert seen.lacking == ["an engine (netem, nfqueue, tun)"]


@pytest.mark.parametrize("name", ["privilege", "ip", "tc", "rates", "cubic", "torch"])
def test_what_the_main_job_needs_is_named(name):
    seen = machine(name)
    assert not seen.ready
    assert seen.lacking == [name]


@pytest.mark.root
def test_links_are_tried_and_say_what_the_engines_say(monkeypatch):
    monkeypatch.setitem(doctor._WHY_NOT, "netem", lambda: "Error: Specified qdisc kind is unknown.\nCommand failed -:4")
    found = {finding.name: finding for finding in doctor.links()}
    assert set(found) == {"rates", "ifb", "real time", *ENGINES}
    assert found["nfqueue"].ok == (nfqueue.why_not() is None)
    assert not found["netem"].ok
    assert found["netem"].found == "Error: Specified qdisc kind is unknown."
    assert "sch_netem" in found["netem"].remedy or "another engine" in found["netem"].remedy
    assert not found["nfqueue"].remedy


def test_an_ordinary_user_where_user_namespaces_are_forbidden_is_told_so(monkeypatch):
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor.userns, "why_not", lambda: "no user namespace: No space left on device")
    monkeypatch.setattr(doctor, "_torch", lambda: Finding("torch", True, ""))
    seen = doctor.examine()
    found = {finding.name: finding for finding in seen.findings}
    assert found["privilege"].found == "no root, and no user namespace: No space left on device"
    assert "privilege" in seen.lacking
    assert "rates" in seen.lacking
