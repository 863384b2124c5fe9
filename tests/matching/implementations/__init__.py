"""Models of one mathematics written by several hands, with the pairs between them written by hand too."""
