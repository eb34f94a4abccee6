//! What was tried in which way.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use crate::provider::Attempt;

/// Attempts in the order of trying. What is done again with the same outcome is kept once.
#[derive(Debug, Default)]
pub(super) struct Record {
    attempts: Mutex<Vec<Attempt>>,
}

impl Record {
    /// Keeps an attempt, and logs it if it is news.
    pub(super) fn add<E: Display>(&self, what: &str, outcome: Result<String, &E>) {
        let attempt = Attempt { what: what.to_owned(), outcome: outcome.map_err(ToString::to_string) };
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if !attempts.contains(&attempt) {
            tracing::info!("{attempt}");
            attempts.push(attempt);
        }
    }

    /// Returns all of them.
    pub(super) fn attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_kept_once() {
        let record = Record::default();
        record.add::<String>("umem by dma-buf", Err(&"no".to_owned()));
        record.add::<String>("umem by address", Ok("yes".to_owned()));
        record.add::<String>("umem by dma-buf", Err(&"no".to_owned()));
        record.add::<String>("umem by dma-buf", Err(&"not any more".to_owned()));
        let texts: Vec<String> = record.attempts().iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["umem by dma-buf: no: no", "umem by address: yes", "umem by dma-buf: no: not any more"]);
    }
}
