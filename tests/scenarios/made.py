"""Two hosts: a topology without its paths, and a network that is not there, whose links are valid or off as told."""

import contextlib
from types import SimpleNamespace

PAIR = """\
name: pair
sites: [here, there]
hosts:
  one: {site: here}
  far: {site: there}
"""


class Network:
    """`world.probes` has the validity of each probing that is to come; then all are valid."""

    def __init__(self, world, target, speedup=1.0):
        self.world, self.target, self.speedup = world, target, speedup
        self.stamp, self.addresses, self.device, self.python = {}, {"one": "", target: ""}, "lo", ""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def probe(self, report):
        valid = self.world.probes.pop(0) if self.world.probes else True
        return [SimpleNamespace(source="one", target=self.target, rtt=0.004, expected_rtt=0.004, goodput=1.0,
                                expected_goodput=1.0, valid=valid, attempts=1)]

    def rendezvous(self):
        return contextlib.nullcontext("store")

    def entrance(self, host):
        return lambda: None

    def check(self):
        pass
