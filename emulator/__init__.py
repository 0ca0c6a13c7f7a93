"""The network, twice: real links and hosts (``links``, ``hosts``), and simulated ones (``sim``)."""
