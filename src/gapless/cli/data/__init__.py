"""Commands about what a group has sent: spools, tables, traces and reports."""
