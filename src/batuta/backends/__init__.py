"""Where decisions are carried out."""
