//! The machine and the day that figures belong to.

use std::process::Command;
use std::time::SystemTime;

/// The GPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    /// Model of the first.
    pub model: String,
    /// The driver's version.
    pub driver: String,
    /// How many.
    pub number: u32,
}

impl Gpus {
    /// Parses what `nvidia-smi --query-gpu=name,driver_version --format=csv,noheader` prints.
    fn parse(text: &str) -> Option<Self> {
        let first = text.lines().next()?;
        let (model, driver) = first.rsplit_once(", ")?;
        Some(Self {
            model: model.to_owned(),
            driver: driver.to_owned(),
            number: u32::try_from(text.lines().count()).ok()?,
        })
    }

    /// Returns the GPUs that nvidia-smi names, a program that comes with every driver; `None` if
    /// there are none.
    pub fn find() -> Option<Self> {
        let query = ["--query-gpu=name,driver_version", "--format=csv,noheader"];
        let output = Command::new("nvidia-smi").args(query).output().ok().filter(|output| output.status.success())?;
        Self::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Returns the bytes of memory that are free on every GPU, as nvidia-smi says; `None` if it says
/// nothing.
pub fn free_memory() -> Option<u64> {
    let query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"];
    let output = Command::new("nvidia-smi").args(query).output().ok().filter(|output| output.status.success())?;
    least_mebibytes(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the bytes of the lowest of lines of mebibytes.
fn least_mebibytes(text: &str) -> Option<u64> {
    let lines: Vec<u64> = text.lines().map(|line| line.trim().parse().ok()).collect::<Option<_>>()?;
    lines.into_iter().min().map(|mebibytes| mebibytes << 20)
}

/// Returns the year, the month and the day of a number of days since 1970-01-01: by Howard
/// Hinnant's "days from civil" algorithm, backwards.
fn date(days: u64) -> String {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    format!("{}-{month:02}-{day:02}", year_of_era + era * 400 + u64::from(month <= 2))
}

/// Returns the day, UTC, as in 2026-11-21.
pub fn today() -> String {
    date(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()) / 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, text) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_778, "2026-11-21")]
        {
            assert_eq!(date(days), text);
        }
    }

    #[test]
    fn the_least_memory_counts() {
        assert_eq!(least_mebibytes("81000\n 80000\n"), Some(80000 << 20));
        assert_eq!(least_mebibytes("[N/A]\n"), None);
        assert_eq!(least_mebibytes(""), None);
    }

    #[test]
    fn gpus_are_read_from_the_tool() {
        let text = "NVIDIA H200, 580.95.05\nNVIDIA H200, 580.95.05\n";
        let gpus = Gpus { model: "NVIDIA H200".to_owned(), driver: "580.95.05".to_owned(), number: 2 };
        assert_eq!(Gpus::parse(text), Some(gpus));
        assert_eq!(Gpus::parse(""), None);
        assert_eq!(Gpus::parse("No devices were found\n"), None);
    }
}
