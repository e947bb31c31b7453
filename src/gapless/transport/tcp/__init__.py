"""TCP: one connection between each two members, framed datagrams on it."""
