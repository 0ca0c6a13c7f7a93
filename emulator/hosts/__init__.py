"""Host runtimes: what makes the hosts of a topology on this machine, and takes them away again."""
