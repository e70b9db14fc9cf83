"""Encoders, tasks, training and evaluation: everything that reads region features from a store."""
