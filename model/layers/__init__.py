"""The layers of the network, and what each device computes them with."""
