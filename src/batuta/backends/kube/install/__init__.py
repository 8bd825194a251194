"""What a cluster needs to run Batuta: the chart's values, and the objects that they stand for."""
