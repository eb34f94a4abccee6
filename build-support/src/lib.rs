//! Compiles OxSHMEM device code to PTX and to CPU objects, for build scripts.
