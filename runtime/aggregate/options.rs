//! What aggregating contexts are created with.

use std::fmt;
use std::time::Duration;

use super::error::AggregateError;
use crate::abi;

/// How an aggregating context is made: the bytes that leave together, and how long records wait for
/// others.
///
/// ```
/// use std::time::Duration;
///
/// let options = oxshmem::AggregateOptions::new().segment(4096).age(Duration::from_millis(1));
/// assert_eq!(options.to_string(), "an aggregating context with segments of 4096 bytes and an age of 1ms");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateOptions {
    pub(super) segment: u64,
    pub(super) age: Duration,
}

impl Default for AggregateOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl AggregateOptions {
    pub(super) const MOST_AGE: Duration = Duration::from_secs(60);

    /// Creates options with segments of 8192 bytes, and an age of 200 microseconds.
    ///
    /// ```
    /// assert_eq!(oxshmem::AggregateOptions::new(), oxshmem::AggregateOptions::default());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { segment: 8192, age: Duration::from_micros(200) }
    }

    /// Sets the bytes that leave as one write: a power of two from 1024 to 65536. A put of up to 8
    /// bytes, a signal and an atomic take 16 bytes of them. A ring has 16 segments.
    ///
    /// ```
    /// let options = oxshmem::AggregateOptions::new().segment(1024);
    /// assert!(options.to_string().contains("segments of 1024 bytes"));
    /// ```
    #[must_use]
    pub fn segment(self, bytes: u64) -> Self {
        Self { segment: bytes, ..self }
    }

    /// Sets how long a record waits for a full segment, `flush` or `quiet` before it leaves all the
    /// same, at most a minute. The services look at most every millisecond while they have no other
    /// work.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let options = oxshmem::AggregateOptions::new().age(Duration::from_millis(5));
    /// assert!(options.to_string().ends_with("an age of 5ms"));
    /// ```
    #[must_use]
    pub fn age(self, age: Duration) -> Self {
        Self { age, ..self }
    }

    pub(super) fn segment_log2(&self) -> u32 {
        self.segment.trailing_zeros()
    }

    /// Returns the bytes of the segments of a ring.
    pub(super) fn capacity(&self) -> u64 {
        self.segment * u64::from(abi::AGGREGATE_SEGMENTS)
    }

    /// Returns the bytes of a segment.
    ///
    /// ```
    /// assert_eq!(oxshmem::AggregateOptions::new().segment_bytes(), 8192);
    /// ```
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.segment
    }

    /// Returns how long a record waits.
    ///
    /// ```
    /// assert_eq!(oxshmem::AggregateOptions::new().age_limit().as_micros(), 200);
    /// ```
    #[must_use]
    pub fn age_limit(&self) -> Duration {
        self.age
    }

    /// Refuses options that are out of range.
    ///
    /// # Errors
    /// What is out of range, with its limit.
    ///
    /// ```
    /// use oxshmem::AggregateOptions;
    ///
    /// assert!(AggregateOptions::new().check().is_ok());
    /// assert!(AggregateOptions::new().segment(3).check().is_err());
    /// ```
    pub fn check(&self) -> Result<(), AggregateError> {
        let (least, most) = (1 << abi::MIN_AGGREGATE_SEGMENT_LOG2, 1 << abi::MAX_AGGREGATE_SEGMENT_LOG2);
        if !self.segment.is_power_of_two() || !(least..=most).contains(&self.segment) {
            return Err(AggregateError::Segment { bytes: self.segment, least, most });
        }
        if self.age > Self::MOST_AGE {
            return Err(AggregateError::Age { age: self.age, most: Self::MOST_AGE });
        }
        Ok(())
    }
}

impl fmt::Display for AggregateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, age } = self;
        write!(f, "an aggregating context with segments of {segment} bytes and an age of {age:?}")
    }
}
