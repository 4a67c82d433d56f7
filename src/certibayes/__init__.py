"""Bayesian neural networks with honest uncertainty and a proof of robustness."""
