"""Commands that simulate groups, measure them and try to break them."""
