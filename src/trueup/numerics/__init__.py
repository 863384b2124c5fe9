"""The one definition of every number trueup computes, in numpy, and one C file that computes them fast."""
