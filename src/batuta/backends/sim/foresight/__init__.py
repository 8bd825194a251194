"""What will become of the jobs of a World: forked into the simulator, it goes on from where it is."""
