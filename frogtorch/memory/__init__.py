"""FrogNet Memory: published cells, standing reads, and the permanent connections between the members of a group.

It knows bytes, names and ranks; nothing of tensors, and nothing of torch. An address is (space, name, owner): the
space is the group and the incarnation it has in this run, the name is written once, and its owner does not know who
reads it, but only how many will; or, of cells that supersede each other, not even that.

======================  ==========================================================================
:mod:`.rendezvous`      members find each other, once, through the c10d store
:mod:`.endpoint`        where a member takes connections
:mod:`.meeting`         the connections that are made, and who is admitted
:mod:`.wire`            frames and greetings, bounded and checked
:mod:`.connection`      what goes out in which order, where what comes in lands
:mod:`.cells`           cells, reads, addresses
:mod:`.space`           the memory of one group: rounds, reads, the end
:mod:`.published`       this rank's cells: who waits for which, and who has them
:mod:`.questions`       asking for the newest cell of a name
:mod:`.series`          this rank's cells of which only the newest counts
:mod:`.peers`           the other members: what comes from each, and what became of it
:mod:`.incoming`        what each frame of a peer does
:mod:`.parcels`         what is sent from one member to another without being a cell
:mod:`.credit`          how much goes unasked, and how much is kept that nobody has read
:mod:`.mailbox`         which receive gets which message
:mod:`.rates`           how fast each peer is read from, and a warning if one is very slow
:mod:`.loop`            the I/O thread
======================  ==========================================================================
"""
