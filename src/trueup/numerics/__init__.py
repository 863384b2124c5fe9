"""The one definition of every number trueup computes: statistics, digest, sketch, metrics, ulp. Numpy and one C file."""
