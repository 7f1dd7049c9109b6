"""Figures: how a call is timed, what is measured, tables that say where they come from."""
