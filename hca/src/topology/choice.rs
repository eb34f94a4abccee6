//! Which devices a user allows, and for which PEs: the values of `OXSHMEM_HCA` and
//! `OXSHMEM_HCA_DEVICES`.

use std::fmt;
use std::str::FromStr;

use super::error::TopologyError;
use super::machine::{Place, is_pci_address};

/// The most cards of its own that one PE drives, which are those that peers send to.
pub const MAX_CARDS: usize = 4;

/// The most cards that one PE sends by: its own, and, where puts are pushed, those of other rails.
pub const MAX_SENDERS: usize = 8;

/// A device by name, and maybe a port of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// The device's name, as in `/sys/class/infiniband`.
    pub device: String,
    /// The port, from 1; without one, the first that is active.
    pub port: Option<u8>,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.device),
            Some(port) => write!(f, "{}/{port}", self.device),
        }
    }
}

impl FromStr for Card {
    type Err = ();

    /// Reads `DEVICE` or `DEVICE/PORT`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (device, port) = match text.split_once('/') {
            Some((device, port)) => (device, Some(port.parse().ok().filter(|port| *port > 0).ok_or(())?)),
            None => (text, None),
        };
        // Names of devices are file names.
        let plain = !device.is_empty() && device.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        plain.then(|| Self { device: device.to_owned(), port }).ok_or(())
    }
}

/// The PE or GPU that an item of a mapping is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// The PE with this number among those of its node, from 0.
    Pe(usize),
    /// Every PE on the GPU with this PCI address.
    Gpu(String),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pe(index) => write!(f, "{index}"),
            Self::Gpu(address) => f.write_str(address),
        }
    }
}

impl FromStr for Who {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(Self::Pe).map_err(|_| ());
        }
        if is_pci_address(text) { Ok(Self::Gpu(text.to_ascii_lowercase())) } else { Err(()) }
    }
}

/// Which devices may be used, and by which PEs: the value of `OXSHMEM_HCA_DEVICES`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// All; topology decides.
    #[default]
    Any,
    /// These; topology decides among them.
    Only(Vec<Card>),
    /// All but these.
    Except(Vec<String>),
    /// Exactly as it says, for each one to [`MAX_CARDS`] cards; topology decides nothing.
    Mapping(Vec<(Who, Vec<Card>)>),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |cards: &[Card], by| cards.iter().map(Card::to_string).collect::<Vec<_>>().join(by);
        let text = match self {
            Self::Any => String::new(),
            Self::Only(cards) => joined(cards, ","),
            Self::Except(names) => format!("^{}", names.join(",")),
            Self::Mapping(items) => {
                let item = |(who, cards): &(Who, Vec<Card>)| format!("{who}={}", joined(cards, "+"));
                items.iter().map(item).collect::<Vec<_>>().join(",")
            }
        };
        f.write_str(&text)
    }
}

impl FromStr for DeviceChoice {
    type Err = ();

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, ()> {
        if text.is_empty() {
            return Ok(Self::Any);
        }
        if let Some(names) = text.strip_prefix('^') {
            let cards = names.split(',').map(Card::from_str).collect::<Result<Vec<_>, ()>>()?;
            let whole = cards.iter().all(|card| card.port.is_none());
            return whole.then(|| Self::Except(cards.into_iter().map(|card| card.device).collect())).ok_or(());
        }
        if text.contains('=') {
            let item = |item: &str| {
                let (who, cards) = item.split_once('=').ok_or(())?;
                Ok((who.parse::<Who>()?, several(cards)?))
            };
            let items = text.split(',').map(item).collect::<Result<Vec<_>, ()>>()?;
            let twice = items.iter().enumerate().any(|(i, (who, _))| items[..i].iter().any(|(other, _)| other == who));
            return if twice { Err(()) } else { Ok(Self::Mapping(items)) };
        }
        text.split(',').map(Card::from_str).collect::<Result<Vec<_>, ()>>().map(Self::Only)
    }
}

/// Reads cards that `+` joins, as many as a PE can drive.
fn several(text: &str) -> Result<Vec<Card>, ()> {
    let cards = text.split('+').map(Card::from_str).collect::<Result<Vec<_>, ()>>()?;
    // Without a port it may be any.
    let same = |a: &Card, b: &Card| a.device == b.device && (a.port == b.port || a.port.is_none() || b.port.is_none());
    let twice = cards.iter().enumerate().any(|(i, card)| cards[..i].iter().any(|other| same(card, other)));
    if twice || cards.len() > MAX_CARDS { Err(()) } else { Ok(cards) }
}

impl DeviceChoice {
    /// Returns the devices of a PE, where they are said exactly, in the order in which they are
    /// named: `index` is the PE's number on its node.
    ///
    /// # Errors
    /// There is a mapping, and it says nothing of this PE.
    pub fn exact(&self, index: usize, place: &Place) -> Result<Option<&[Card]>, TopologyError> {
        let Self::Mapping(items) = self else { return Ok(None) };
        let is_for = |who: &Who| match (who, place) {
            (Who::Pe(number), _) => *number == index,
            (Who::Gpu(address), Place::Pci(own)) => own.eq_ignore_ascii_case(address),
            (Who::Gpu(_), _) => false,
        };
        // A PE's number says more than its GPU.
        let found = items
            .iter()
            .find(|(who, _)| matches!(who, Who::Pe(_)) && is_for(who))
            .or_else(|| items.iter().find(|(who, _)| is_for(who)));
        match found {
            Some((_, cards)) => Ok(Some(cards)),
            None => Err(TopologyError::Unmapped { list: self.to_string(), index, place: place.to_string() }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mappings_say_exactly_who_uses_what() {
        let choice: DeviceChoice = "0=mlx5_7/2,0000:1B:00.0=mlx5_3+mlx5_0,2=rxe0".parse().unwrap();
        let exact = |index, place: &str| {
            let cards = choice.exact(index, &place.parse().unwrap())?.unwrap();
            Ok::<_, TopologyError>(cards.iter().map(Card::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(exact(0, "pci 0000:1b:00.0").unwrap(), "mlx5_7/2");
        // In the order in which it names them.
        assert_eq!(exact(1, "pci 0000:1b:00.0").unwrap(), "mlx5_3 mlx5_0");
        assert_eq!(exact(2, "anywhere").unwrap(), "rxe0");
        let error = exact(3, "pci 0000:43:00.0").unwrap_err().to_string();
        assert!(error.contains("gives no device to PE 3 of the node (pci 0000:43:00.0); add 3=DEVICE"), "{error}");
        assert_eq!(DeviceChoice::Any.exact(0, &Place::Anywhere), Ok(None));
    }

    #[test]
    fn choices_parse_back() {
        for text in [
            "",
            "mlx5_0",
            "mlx5_0,mlx5_3/2",
            "^mlx5_1,mlx5_2",
            "0=mlx5_0,1=mlx5_1/2,0000:1b:00.0=mlx5_0",
            "0=mlx5_0+mlx5_1,1=mlx5_2/1+mlx5_2/2,2=a+b+c+d",
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in [
            ",",
            "mlx5_0,",
            "mlx5_0/0",
            "mlx5_0/x",
            "^",
            "^mlx5_0/1",
            "../x",
            "x=mlx5_0",
            "0=",
            "=a",
            "0=a,0=b",
            "0=a,b",
            "1b:00.0=a",
            "a+b",
            "^a+b",
            "0=a+",
            "0=+a",
            "0=a+1=b",
            "0=a+a",
            "0=a/1+b+a/1",
            "0=a/1+a",
            "0=a+b+c+d+e",
        ] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn mappings_parse_back(items in proptest::collection::vec(
            (proptest::sample::subsequence((0..9).collect::<Vec<u32>>(), 1..=MAX_CARDS), proptest::option::of(1u8..)), 1..6,
        )) {
            let cards = |(numbers, port): (Vec<u32>, Option<u8>)| -> Vec<Card> {
                numbers.into_iter().rev().map(|number| Card { device: format!("mlx5_{number}"), port }).collect()
            };
            let items = items.into_iter().enumerate().map(|(pe, item)| match pe % 2 {
                0 => (Who::Pe(pe), cards(item)),
                _ => (Who::Gpu(format!("0000:{pe:02x}:00.0")), cards(item)),
            });
            let mapping = DeviceChoice::Mapping(items.collect());
            prop_assert_eq!(mapping.to_string().parse(), Ok(mapping));
        }
    }
}
