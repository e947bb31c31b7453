"""Views: who is in the group, who coordinates it, how partitions merge, who is suspected."""
