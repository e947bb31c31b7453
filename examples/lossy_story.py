"""A story in virtual time: a frame is lost, and the group notices, requests and repairs."""

from gapless.sim import SimulatedGroup

group = SimulatedGroup(3, capacity=4)  # members a, b and c, send windows of four messages
group.drop("DATA 3 a->b")  # the network loses a's third message to b
for number in range(1, 11):
    group.a.send(b"order %d" % number)  # waits while four messages are not acknowledged
group.settle()  # run virtual time until the group is idle
assert group.b.received["a"] == [b"order %d" % number for number in range(1, 11)]
print(group.diagram())  # every frame: the loss, the request, the repair
