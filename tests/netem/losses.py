"""Counts what one path of a network loses, by the engine netem: ``python losses.py COUNT`` prints the number lost.

The path's rate sets the pace: 3,846 datagrams a second, which a guest's one CPU sends, carries and receives.
"""

import sys
import tempfile
from pathlib import Path

from emulator.hosts.netns import Network
from emulator.links.loss import lost
from emulator.topology import load

TOPOLOGY = """\
name: lossy
sites: [here]
hosts:
  a: {site: here}
  b: {site: here}
paths:
  - {between: [here, here], rate: 1 MB/s, delay: 10 ms}
  - {from: a, to: b, loss: 1 %}
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as room:
        file = Path(room, "lossy.yaml")
        file.write_text(TOPOLOGY)
        with Network(load(file), "lossy", "netem") as network:
            print(len(lost(network, network.shaped.path("a", "b"), int(sys.argv[1]))))
