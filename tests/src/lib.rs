//! Integration tests of OxSHMEM: conformance per device and transport, launch, faults.
