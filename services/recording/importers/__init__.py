"""Importers: what others recorded, converted to recordings."""
