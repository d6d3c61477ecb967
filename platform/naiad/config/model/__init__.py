"""`config.pbtxt`: parsed, completed, checked and rendered."""
