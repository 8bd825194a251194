"""One module per kind of chart; each gives SVG as a string."""
