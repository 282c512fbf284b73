"""SCAFFOLD and FedAvg: the arithmetic once, and the engines that compute it."""
