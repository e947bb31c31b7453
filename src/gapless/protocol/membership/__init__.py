"""Membership: joining and leaving, the coordinator, merging of partitions, failure detection."""
