//! Where in the log some offsets of a topic lie, so that a read of a topic from an offset need not scan from its start.

use std::collections::HashMap;

/// Records of a topic between two samples, at first.
const STRIDE: u64 = 1024;

/// Sparse map of (topic, offset) to LSN. Bounded: when it is full every other sample goes, and new ones come half as often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Samples {
    topics: HashMap<u64, Vec<(u64, u64)>>,
    count: usize,
    max: usize,
    stride: u64,
}

impl Samples {
    pub(super) fn new(max: usize) -> Self {
        Self { topics: HashMap::new(), count: 0, max: max.max(2), stride: STRIDE }
    }

    /// Hears of records of a topic: the offset of the first, and the LSN of their frame.
    pub(super) fn note(&mut self, topic: u64, offset: u64, lsn: u64) {
        let last = self.topics.get(&topic).and_then(|samples| samples.last()).map_or(0, |&(offset, _)| offset);
        if offset < last.saturating_add(self.stride) {
            return;
        }
        self.insert(topic, offset, lsn);
        if self.count > self.max {
            self.halve();
        }
    }

    /// The last sample at or before an offset.
    pub(super) fn find(&self, topic: u64, offset: u64) -> Option<u64> {
        let samples = self.topics.get(&topic)?;
        let at = samples.partition_point(|&(sampled, _)| sampled <= offset).checked_sub(1)?;
        samples.get(at).map(|&(_, lsn)| lsn)
    }

    fn insert(&mut self, topic: u64, offset: u64, lsn: u64) {
        self.topics.entry(topic).or_default().push((offset, lsn));
        self.count += 1;
    }

    fn halve(&mut self) {
        self.stride = self.stride.saturating_mul(2);
        for samples in self.topics.values_mut() {
            let mut at = 0_usize;
            samples.retain(|_| {
                at += 1;
                at.is_multiple_of(2)
            });
        }
        self.topics.retain(|_, samples| !samples.is_empty());
        self.count = self.topics.values().map(Vec::len).sum();
    }

    /// Samples of all topics together.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Records between two samples now.
    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    /// All samples: topic, offset, LSN; a topic's ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.topics.iter().flat_map(|(&topic, samples)| samples.iter().map(move |&(offset, lsn)| (topic, offset, lsn)))
    }

    /// As they were read back, a topic's ascending.
    pub(super) fn restore(max: usize, stride: u64, samples: impl IntoIterator<Item = (u64, u64, u64)>) -> Self {
        let mut restored = Self { stride: stride.max(STRIDE), ..Self::new(max) };
        samples.into_iter().for_each(|(topic, offset, lsn)| restored.insert(topic, offset, lsn));
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_found_sample_is_at_or_before_the_offset_and_the_bound_holds() {
        let mut samples = Samples::new(100);
        for frame in 0..10_000_u64 {
            for topic in 0..3 {
                samples.note(topic, frame * 100, frame * 300 + topic * 100);
            }
            assert!(samples.len() <= 100);
        }
        assert!(samples.len() > 40, "halving keeps half: {}", samples.len());
        for offset in (0..1_000_000).step_by(777) {
            if let Some(lsn) = samples.find(1, offset) {
                // Record `offset` of topic 1 lies at LSN offset / 100 * 300 + 100 + offset % 100.
                assert!(lsn <= offset / 100 * 300 + 100 + offset % 100);
                assert!(lsn + 3 * 2 * samples.stride() + 300 > offset * 3, "not much to scan");
            }
        }
        assert_eq!(samples.find(9, 5), None);
    }
}
