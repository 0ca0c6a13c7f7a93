"""What network is this? Measures one that it knows nothing about, and says where its limits are.

``survey`` holds what was measured, ``plan`` says what to measure next, ``classify`` what follows from it; ``peer`` runs
on every host, ``coordinate`` tells the peers what to do, ``meet`` brings machines together over ``channel``; ``write``
makes a topology of the findings.
"""
