//! The CPU path of OxSHMEM: descriptor ring and progress engine.
