"""`naiad top`: a live table of a running server's models and guests."""
