"""Tilewright behind the interfaces of others."""
