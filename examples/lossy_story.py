"""A story in virtual time: one frame is lost, and the group notices, asks and repairs."""

from gapless.sim import SimulatedGroup

group = SimulatedGroup(3, capacity=4)  # members a, b and c, windows of four messages
group.drop("DATA 2 a->b")  # b will not get the second message at first
for number in range(1, 11):
    group.a.send(b"order %d" % number)  # waits for room when four are not acknowledged
group.settle()  # virtual time runs until nothing is left to do
assert group.b.received["a"] == [b"order %d" % number for number in range(1, 11)]
print(group.diagram())
