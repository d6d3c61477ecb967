"""Loads that a server must bear for as long as they last, and what it holds before, during and after them."""
