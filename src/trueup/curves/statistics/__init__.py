"""What can be said of two curves and their difference: pure functions over float64 arrays, one a step."""
