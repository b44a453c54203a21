//! Where in the log some offsets of a topic lie, so that a read of a topic from an offset, or a look for a number of its bytes,
//! need not scan from its start.

use std::collections::HashMap;

/// Records of a topic between two samples, at first.
const STRIDE: u64 = 1024;

/// An offset of a topic and where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) offset: u64,
    /// Of its frame.
    pub(super) lsn: u64,
    /// Bytes of the topic before it.
    pub(super) bytes: u64,
}

/// Sparse map of (topic, offset) to LSN. Bounded: when it is full every other sample goes, and new ones come half as often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Samples {
    topics: HashMap<u64, Vec<Sample>>,
    count: usize,
    max: usize,
    stride: u64,
}

impl Samples {
    pub(super) fn new(max: usize) -> Self {
        Self { topics: HashMap::new(), count: 0, max: max.max(2), stride: STRIDE }
    }

    /// Hears of records of a topic: the offset of the first, the LSN of their frame, bytes of the topic before them.
    pub(super) fn note(&mut self, topic: u64, offset: u64, lsn: u64, bytes: u64) {
        let last = self.topics.get(&topic).and_then(|samples| samples.last()).map_or(0, |sample| sample.offset);
        if offset < last.saturating_add(self.stride) {
            return;
        }
        self.insert(topic, Sample { offset, lsn, bytes });
        if self.count > self.max {
            self.halve();
        }
    }

    /// The last sample at or before an offset.
    pub(super) fn find(&self, topic: u64, offset: u64) -> Option<Sample> {
        self.last(topic, |sample| sample.offset <= offset)
    }

    /// The last sample with at most so many bytes before it.
    pub(super) fn find_bytes(&self, topic: u64, bytes: u64) -> Option<Sample> {
        self.last(topic, |sample| sample.bytes <= bytes)
    }

    fn last(&self, topic: u64, is_before: impl Fn(&Sample) -> bool) -> Option<Sample> {
        let samples = self.topics.get(&topic)?;
        samples.get(samples.partition_point(is_before).checked_sub(1)?).copied()
    }

    /// Samples of a topic before an offset are of no use any more.
    pub(super) fn forget(&mut self, topic: u64, before: u64) {
        let Some(samples) = self.topics.get_mut(&topic) else { return };
        let gone = samples.partition_point(|sample| sample.offset < before);
        // The last one stays: the next is taken a stride behind it.
        let gone = gone.min(samples.len().saturating_sub(1));
        samples.drain(..gone);
        self.count -= gone;
    }

    fn insert(&mut self, topic: u64, sample: Sample) {
        self.topics.entry(topic).or_default().push(sample);
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

    /// All samples: topic and sample; a topic's ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Sample)> {
        self.topics.iter().flat_map(|(&topic, samples)| samples.iter().map(move |&sample| (topic, sample)))
    }

    /// As they were read back, a topic's ascending.
    pub(super) fn restore(max: usize, stride: u64, samples: impl IntoIterator<Item = (u64, Sample)>) -> Self {
        let mut restored = Self { stride: stride.max(STRIDE), ..Self::new(max) };
        samples.into_iter().for_each(|(topic, sample)| restored.insert(topic, sample));
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
                samples.note(topic, frame * 100, frame * 300 + topic * 100, frame * 1_000);
            }
            assert!(samples.len() <= 100);
        }
        assert!(samples.len() > 40, "halving keeps half: {}", samples.len());
        for offset in (0..1_000_000).step_by(777) {
            if let Some(Sample { lsn, .. }) = samples.find(1, offset) {
                // Record `offset` of topic 1 lies at LSN offset / 100 * 300 + 100 + offset % 100.
                assert!(lsn <= offset / 100 * 300 + 100 + offset % 100);
                assert!(lsn + 3 * 2 * samples.stride() + 300 > offset * 3, "not much to scan");
            }
        }
        assert_eq!(samples.find(9, 5), None);
        let found = samples.find_bytes(1, 5_000_000).unwrap();
        assert!(found.bytes <= 5_000_000 && found.bytes + 10 * 2 * samples.stride() > 5_000_000, "{found:?}");
        let before = samples.len();
        samples.forget(1, 500_000);
        assert!(samples.find(1, 499_999).is_none() && samples.find(1, 999_999).is_some());
        assert_eq!(samples.iter().count(), samples.len());
        assert!(samples.len() < before);
        samples.forget(1, u64::MAX);
        assert!(samples.find(1, u64::MAX).is_some(), "the last one stays");
    }
}
