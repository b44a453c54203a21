//! Sequences: who this producer is, the next number, and how far that lies ahead of what the broker has stored.
//!
//! A batch refused as a whole is not stored and its sequence stays a hole. The broker takes no sequence that lies too far
//! ahead of the last stored one, so a producer of which everything is refused would end up alone. Before that, a *filler*
//! goes out: a batch without records, which no plugin sees and nothing refuses; stored, it moves the broker's window on.

use bytes::Bytes;
use tidegate_protocol::{batch::BatchBuilder, stored::ProducerStamp};

use super::ProducerIdentity;

/// A hole so wide is filled. With the most batches in flight on top it stays well inside the broker's 1024.
const FILL_FROM: u64 = 256;
/// While a filler is on its way no new sequence is given so far ahead of the last stored one.
const HOLE_MAX: u64 = 900;
/// Sequences given after a filler was refused before there is another.
const REFILL_AFTER: u64 = 64;

#[derive(Debug)]
pub(super) struct Numbering {
    id: u64,
    epoch: u32,
    next: u64,
    /// Behind the highest sequence known to be stored.
    stored: u64,
    /// The sequence of the filler that is not known to be stored. It keeps it: whatever became of a try, the next may not harm.
    filler: Option<u64>,
    /// The filler is on its way.
    filling: bool,
    /// None is sent before this sequence comes.
    fill_at: u64,
    /// We asked for the id, so nobody else goes by it and another will do as well.
    own: bool,
    /// The broker has forgotten us: another id is needed.
    forgotten: bool,
}

impl Numbering {
    pub(super) fn new(identity: ProducerIdentity, own: bool) -> Self {
        let ProducerIdentity { id, epoch, next_sequence } = identity;
        let (filler, filling, fill_at, forgotten) = Default::default();
        Self { id, epoch, next: next_sequence, stored: next_sequence, filler, filling, fill_at, own, forgotten }
    }

    fn stamp(&self, sequence: u64) -> ProducerStamp {
        ProducerStamp { id: self.id, epoch: self.epoch, sequence }
    }

    /// Whether a new batch may be numbered now.
    pub(super) fn has_room(&self) -> bool {
        !self.forgotten && (!self.filling || self.next - self.stored < HOLE_MAX)
    }

    /// For a batch that goes out for the first time.
    pub(super) fn number(&mut self) -> ProducerStamp {
        let stamp = self.stamp(self.next);
        self.next += 1;
        stamp
    }

    /// A filler to send now.
    pub(super) fn fill(&mut self) -> Option<(ProducerStamp, Bytes)> {
        if self.filling || self.forgotten || self.next < self.fill_at || self.next - self.stored < FILL_FROM {
            return None;
        }
        let sequence = match self.filler {
            Some(sequence) => sequence,
            None => self.number().sequence,
        };
        self.filler = Some(sequence);
        self.filling = true;
        Some((self.stamp(sequence), BatchBuilder::new().finish()))
    }

    /// The filler has its last answer, or none.
    pub(super) fn filled(&mut self) {
        self.filling = false;
        self.fill_at = self.next + REFILL_AFTER;
    }

    /// A batch or filler is stored.
    pub(super) fn store(&mut self, stamp: ProducerStamp) {
        if (stamp.id, stamp.epoch) != (self.id, self.epoch) {
            return;
        }
        self.stored = self.stored.max(stamp.sequence + 1);
        self.filler = self.filler.filter(|sequence| *sequence >= self.stored);
    }

    /// The broker finds a sequence too far ahead that it never had: it no longer remembers this producer. Whether the
    /// batch may go out again under another id.
    pub(super) fn forget(&mut self, stamp: ProducerStamp) -> bool {
        self.forgotten |= self.own && stamp.id == self.id;
        self.own
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Goes on under another id.
    pub(super) fn renew(&mut self, id: u64) {
        *self = Self::new(ProducerIdentity { id, epoch: 0, next_sequence: 0 }, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbering(own: bool) -> Numbering {
        Numbering::new(ProducerIdentity { id: 7, epoch: 2, next_sequence: 10 }, own)
    }

    #[test]
    fn a_hole_is_filled_once_and_again_under_the_same_sequence() {
        let mut numbering = numbering(false);
        let stamps: Vec<u64> = (0..FILL_FROM).map(|_| numbering.number().sequence).collect();
        assert_eq!((stamps[0], stamps.last()), (10, Some(&(9 + FILL_FROM))));
        let (stamp, body) = numbering.fill().unwrap();
        assert_eq!((stamp.id, stamp.epoch, stamp.sequence), (7, 2, 10 + FILL_FROM));
        assert!(!body.is_empty(), "a body of its own, without records");
        assert!(numbering.fill().is_none(), "one at a time");
        numbering.filled();
        assert!(numbering.fill().is_none(), "who refused one will refuse the next at once");
        (0..REFILL_AFTER).for_each(|_| assert_eq!(numbering.number().id, 7));
        assert_eq!(numbering.fill().unwrap().0, stamp, "a try of which nothing is known takes no second sequence");
        numbering.store(stamp);
        numbering.filled();
        assert!(numbering.fill().is_none() && numbering.has_room());
        assert_eq!(numbering.number().sequence, 11 + FILL_FROM + REFILL_AFTER);
    }

    #[test]
    fn numbers_stop_before_the_hole_is_too_wide_and_go_on_when_something_is_stored() {
        let mut numbering = numbering(false);
        let mut last = None;
        while numbering.has_room() {
            numbering.fill();
            last = Some(numbering.number());
        }
        let last = last.unwrap();
        assert!(last.sequence - 10 < 1_024, "{last:?}");
        numbering.filled();
        assert!(numbering.has_room(), "if not even a filler is taken, batches are to say why");
        numbering.fill_at = 0;
        numbering.fill();
        assert!(!numbering.has_room());
        numbering.store(last);
        assert!(numbering.has_room());
        assert!(numbering.filler.is_none(), "what lies above it is stored: a filler is of no use");
    }

    #[test]
    fn only_an_id_of_our_own_is_given_up_and_old_stamps_count_no_more() {
        let mut given = numbering(false);
        let stamp = given.number();
        assert!(!given.forget(stamp) && !given.is_forgotten());

        let mut own = numbering(true);
        let old = own.number();
        assert!(own.forget(old) && own.is_forgotten() && !own.has_room());
        own.renew(8);
        assert!(own.has_room());
        assert!(own.forget(old) && !own.is_forgotten(), "another answer to the old id");
        own.store(old);
        assert_eq!(own.number(), ProducerStamp { id: 8, epoch: 0, sequence: 0 });
        assert_eq!(own.stored, 0);
    }
}
