"""What every room may use: checks at borders, names, seeds, devices, digests, files, Adam. It knows no network."""
