//! mlx5 wire formats, verbs objects, and the HCA providers of OxSHMEM.
