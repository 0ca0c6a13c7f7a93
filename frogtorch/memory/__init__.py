"""FrogNet Memory: published cells, standing reads, and the permanent connections between the members of a group.

It knows bytes, names and ranks; nothing of tensors, and nothing of torch. An address is (space, name, owner): the
space is the group and the incarnation it has in this run, the name is written once, and its owner does not know who
reads it, but only how many will.

======================  ==========================================================================
:mod:`.rendezvous`      members find and admit each other, once, through the c10d store
:mod:`.wire`            frames and greetings, bounded and checked
:mod:`.connection`      what goes out in which order, where what comes in lands
:mod:`.cells`           cells, reads, addresses
:mod:`.space`           the memory of one group: who waits for what, and what became of it
:mod:`.loop`            the I/O thread
======================  ==========================================================================
"""
