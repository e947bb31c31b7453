"""Faults as small seeded objects, used by the simulator, the lab and real sockets alike."""
