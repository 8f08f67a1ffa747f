"""Goldens: approved tensors and dumps that a repository keeps, and checks against them. numpy only."""
