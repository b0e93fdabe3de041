"""The page at ``/``: a chat that shows what was reused for each reply. A client of the API like any other."""
