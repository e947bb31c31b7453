"""TCP: one connection between each two members, with framed datagrams."""
