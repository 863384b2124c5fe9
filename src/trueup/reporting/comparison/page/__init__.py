"""What a person explores on the page of a comparison: records, module tree, errors by depth, gradients."""
