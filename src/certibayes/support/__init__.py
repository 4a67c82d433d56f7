"""What every room may use: checks at borders, seeds, devices, digests, files. It knows no network."""
