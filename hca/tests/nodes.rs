//! The tests of transfers, queues, violations and faults between HCAs that reach each other over TCP,
//! as on two nodes; and what only such a connection meets.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "faults.rs"]
mod faults;
#[path = "queues.rs"]
mod queues;
#[path = "transfers.rs"]
mod transfers;
#[path = "violations.rs"]
mod violations;
