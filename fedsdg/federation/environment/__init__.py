"""Client-side conditions: who attacks, leaves, is late, sends less, or names things otherwise."""
