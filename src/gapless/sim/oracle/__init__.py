"""The oracle: a model of the required behaviour of every member, fed by observation."""
