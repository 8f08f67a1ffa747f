"""Deterministic MoE routing on one device: ordered top-k, receive layout, scatter and gather, replay."""
