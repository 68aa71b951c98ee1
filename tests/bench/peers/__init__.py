"""Other engines on the same weights and cores, under the same load, in one run."""
