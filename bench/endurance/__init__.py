"""Endurance tests: loads of any duration, and the server's memory, descriptors and threads before, during and after."""
