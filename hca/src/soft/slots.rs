//! Numbered objects of one kind.

use oxshmem_system::words::count32;

/// A table of objects with numbers from `first` on. A freed number is reused as late as possible,
/// so that a stale one is noticed.
#[derive(Debug)]
pub(super) struct Slots<T> {
    items: Vec<Option<T>>,
    first: u32,
    limit: usize,
    next: usize,
    used: usize,
}

impl<T> Slots<T> {
    /// Returns an empty table of at most `limit` objects.
    pub(super) fn new(first: u32, limit: usize) -> Self {
        Self { items: Vec::new(), first, limit, next: 0, used: 0 }
    }

    /// Returns the most objects.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Stores what `make` returns for the number it gets. `None` if the table is full.
    pub(super) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.used == self.limit {
            return None;
        }
        let mut slot = self.next;
        while self.items.get(slot).is_some_and(Option::is_some) {
            slot = (slot + 1) % self.limit;
        }
        if slot >= self.items.len() {
            self.items.resize_with(slot + 1, || None);
        }
        let number = self.first + count32(slot);
        self.items[slot] = Some(make(number));
        self.used += 1;
        self.next = (slot + 1) % self.limit;
        Some(number)
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<usize> {
        number.checked_sub(self.first).map(|slot| slot as usize)
    }

    /// Returns the object.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(self.slot(number)?)?.as_ref()
    }

    /// Returns the object.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slot(number)?;
        self.items.get_mut(slot)?.as_mut()
    }

    /// Takes the object out for a while; its number stays taken.
    #[inline]
    pub(super) fn lend(&mut self, number: u32) -> Option<T> {
        let slot = self.slot(number)?;
        self.items.get_mut(slot)?.take()
    }

    /// Puts back what [`lend`](Self::lend) gave.
    #[inline]
    pub(super) fn put_back(&mut self, number: u32, item: T) {
        if let Some(slot) = self.slot(number)
            && let Some(place) = self.items.get_mut(slot)
        {
            *place = Some(item);
        }
    }

    /// Removes the object; its number is free again.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let item = self.lend(number)?;
        self.used -= 1;
        Some(item)
    }

    /// Returns all objects with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let first = self.first;
        self.items.iter().enumerate().filter_map(move |(slot, item)| Some((first + count32(slot), item.as_ref()?)))
    }

    /// Returns how many places the table has ever used; numbers are `first..first + places`.
    pub(super) fn places(&self) -> usize {
        self.items.len()
    }

    /// Returns the number of a place.
    pub(super) fn number(&self, place: usize) -> u32 {
        self.first + count32(place)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_late() {
        let mut slots = Slots::new(10, 3);
        let numbers: Vec<u32> = (0..3).map(|i| slots.insert_with(|_| i).unwrap()).collect();
        assert_eq!(numbers, [10, 11, 12]);
        assert_eq!(slots.insert_with(|_| 9), None);
        assert_eq!(slots.remove(11), Some(1));
        assert_eq!(slots.remove(11), None);
        assert_eq!(slots.insert_with(|_| 4), Some(11));
        assert_eq!(slots.get(11), Some(&4));
        assert_eq!((slots.get(9), slots.get(13)), (None, None));
        let item = slots.lend(12).unwrap();
        assert_eq!(slots.insert_with(|_| 0), None, "a lent number stays taken");
        slots.put_back(12, item);
        assert_eq!(slots.iter().count(), 3);
    }

    #[test]
    fn a_freed_number_is_not_the_next() {
        let mut slots = Slots::new(0, 4);
        assert_eq!(slots.insert_with(|_| ()), Some(0));
        slots.remove(0);
        assert_eq!(slots.insert_with(|_| ()), Some(1));
    }
}
