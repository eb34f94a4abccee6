//! What the fuzz target runs.
