"""Forests of decision trees, computed by Treelite on processors."""
