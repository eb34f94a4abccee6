//! What a probe found.

use serde::Serialize;

/// What a finding means for the configuration in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing to look at here, or nothing that is needed.
    Skip,
    /// It is as it should be.
    Ok,
    /// It works with less than the machine could do, or the state is unknown.
    Warn,
    /// This machine does not have what the configuration requires.
    Fail,
}

impl Outcome {
    /// Returns the word that is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, as in `gpu.driver`.
    pub probe: &'static str,
    /// Which of several it was, as in `GPU 0`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// How it is.
    pub result: Outcome,
    /// What was seen.
    pub reason: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn new(probe: &'static str, result: Outcome, reason: impl Into<String>) -> Self {
        // Texts of libraries may have lines.
        let reason = reason.into().replace('\n', " ");
        Self { probe, subject: String::new(), result, reason, remedy: None }
    }

    /// Creates the finding that all is well.
    pub fn ok(probe: &'static str, reason: impl Into<String>) -> Self {
        Self::new(probe, Outcome::Ok, reason)
    }

    /// Creates the finding that there is nothing to look at.
    pub fn skip(probe: &'static str, reason: impl Into<String>) -> Self {
        Self::new(probe, Outcome::Skip, reason)
    }

    /// Creates the finding of something that wants a remedy, unless it does not matter.
    pub fn bad(probe: &'static str, result: Outcome, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = (result >= Outcome::Warn).then(|| remedy.into());
        Self { remedy, ..Self::new(probe, result, reason) }
    }

    /// Names the card, GPU or library that the finding is about.
    pub fn of(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }
}

/// How much the configuration wants of a kind of hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// It is not used even if it is there.
    No,
    /// It is used if it is there.
    IfThere,
    /// Nothing works without.
    Must,
}

impl Want {
    /// Returns what it means that there is none.
    pub fn absent(self) -> Outcome {
        match self {
            Self::No | Self::IfThere => Outcome::Skip,
            Self::Must => Outcome::Fail,
        }
    }

    /// Returns what it means that it is there and cannot be used, where programs go on without.
    pub fn broken(self) -> Outcome {
        match self {
            Self::No => Outcome::Skip,
            Self::IfThere => Outcome::Warn,
            Self::Must => Outcome::Fail,
        }
    }
}

/// What the configuration wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// A GPU.
    pub gpu: Want,
    /// An RDMA card.
    pub card: Want,
    /// The card must be a ConnectX with mlx5 objects; verbs are not enough.
    pub mlx5: bool,
}
