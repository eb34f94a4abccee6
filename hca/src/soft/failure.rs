//! Why a work request ends with an error.

use crate::wire::cqe::Syndrome;

/// Why a WQE ends with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub syndrome: Syndrome,
    pub text: String,
}

impl Failure {
    pub(super) fn new(syndrome: Syndrome, text: impl Into<String>) -> Self {
        Self { syndrome, text: text.into() }
    }
}
