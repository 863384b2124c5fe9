"""What losses were made with, how exact they are, and how far they may lie apart."""
