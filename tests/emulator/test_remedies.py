"""Whose system a machine has, by what it says of itself, and the advice that fits."""

import pytest

from emulator.remedies import remedy, system

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nID=debian\n'
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nID_LIKE=debian\n'
MINT = 'PRETTY_NAME="Linux Mint 22"\nID=linuxmint\nID_LIKE="ubuntu debian"\n'
FEDORA = "NAME=\"Fedora Linux\"\nPRETTY_NAME='Fedora Linux 41 (Server Edition)'\nID=fedora\n"
ROCKY = 'PRETTY_NAME="Rocky Linux 9.4"\nID="rocky"\nID_LIKE="rhel centos fedora"\n'
ALPINE = 'PRETTY_NAME="Alpine Linux v3.20"\nID=alpine\n'
LINUX = "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0)"
WSL2 = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1) (gcc (GCC) 11.2.0)"
DESKTOP = "Linux version 6.6.32-linuxkit (root@buildkitsandbox) (gcc (Alpine 13.2.1_git20240309) 13.2.1)"


@pytest.mark.parametrize(("release", "packages"), [
    (DEBIAN, "debian"), (UBUNTU, "ubuntu"), (MINT, "ubuntu"), (FEDORA, "fedora"), (ROCKY, "fedora"), (ALPINE, "other"),
    ("", "other")])
def test_packages_are_those_of_the_distribution_or_its_parent(release, packages):
    assert system(release, LINUX, container=False).packages == packages


@pytest.mark.parametrize(("version", "kernel", "says"), [
    (LINUX, "own", "Ubuntu 24.04.1 LTS"), (WSL2, "wsl2", "Ubuntu 24.04.1 LTS on WSL2"),
    (DESKTOP, "desktop", "Ubuntu 24.04.1 LTS on Docker Desktop")])
def test_the_kernel_may_be_somebody_else_s(version, kernel, says):
    found = system(UBUNTU, version, container=False)
    assert (found.kernel, found.name) == (kernel, says)


@pytest.mark.parametrize(("release", "version", "advice"), [
    (DEBIAN, LINUX, "apt install linux-image-"), (UBUNTU, LINUX, "apt install linux-modules-extra-$(uname -r)"),
    (FEDORA, LINUX, "dnf install kernel-modules-extra-$(uname -r)"), (UBUNTU, WSL2, "wsl --update"),
    (DEBIAN, DESKTOP, "another engine"), (ALPINE, LINUX, "modprobe sch_netem")])
def test_a_missing_netem_is_the_kernel_s_affair(release, version, advice):
    assert advice in remedy("netem", system(release, version, container=False))


def test_a_container_has_the_kernel_of_its_machine():
    advice = remedy("rates", system(DEBIAN, LINUX, container=True))
    assert advice.startswith("on the machine that runs this container: modprobe sch_htb cls_u32")


@pytest.mark.parametrize(("name", "release", "version", "advice"), [
    ("tc", DEBIAN, LINUX, "apt install iproute2"), ("tc", FEDORA, LINUX, "dnf install iproute-tc"),
    ("compose", UBUNTU, LINUX, "apt install docker-compose-v2"), ("docker", UBUNTU, WSL2, "WSL integration"),
    ("iptables-restore", ALPINE, LINUX, "install iptables")])
def test_a_missing_program_is_a_package(name, release, version, advice):
    assert advice in remedy(name, system(release, version, container=False))
