"""Streams: the numbered messages of a sender, their window, repair, acks and flow control."""
