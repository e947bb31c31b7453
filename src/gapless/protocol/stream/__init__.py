"""Streams: one sender's numbered messages, their window, repair, acks and flow control."""
