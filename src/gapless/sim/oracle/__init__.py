"""The oracle: a model of what every member must have done, fed by what the members did."""
