"""The accuracy guide's whole procedure for a pair of runs, from checklist to downstream tasks."""
