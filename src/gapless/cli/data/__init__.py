"""Commands about recorded data: spools, tables, traces and reports."""
