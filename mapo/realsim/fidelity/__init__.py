"""How far simulated users write like real ones: single features, and a classifier that tells them apart."""
