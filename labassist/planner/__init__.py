"""Know before you rent: memory, time, cost, power and whether to train at all."""
