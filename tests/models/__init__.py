"""Small real models the tests train."""
